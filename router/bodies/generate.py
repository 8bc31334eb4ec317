"""Bodies of POST /generate, in SGLang's shape."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from hypic.router.bodies.shared import Body, CacheFields, Count, Items, Name, Penalty, Report, StopString, Text, TokenId


class SamplingBody(Body):
    """SGLang's `sampling_params`; temperature and top_p default to the checkpoint's own."""

    max_new_tokens: Count | None = 128
    min_new_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = 0
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = -1
    min_p: Annotated[float, Field(ge=0, le=1)] | None = 0.0
    stop: StopString | Items[StopString] | None = None
    stop_token_ids: Annotated[Items[TokenId], Field(max_length=64)] | None = None
    presence_penalty: Penalty | None = 0.0
    frequency_penalty: Penalty | None = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = 1.0
    ignore_eos: bool | None = False
    n: Count | None = 1
    sampling_seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    skip_special_tokens: Literal[True] | None = True
    spaces_between_special_tokens: Literal[True] | None = True
    no_stop_trim: Literal[False] | None = False


class SessionParams(Body):
    """A session that /open_session gave out."""

    id: Name


class GenerateBody(CacheFields):
    """POST /generate. Either text, with `<<PIC_SEP>>` between its segments, or input_ids."""

    text: Text | Items[Text] | None = None
    input_ids: Items[TokenId] | Items[Items[TokenId]] | None = None
    sampling_params: SamplingBody | None = None
    stream: bool | None = False
    return_logprob: bool | None = False
    top_logprobs_num: Annotated[int, Field(ge=0, lt=2**31)] | None = 0
    logprob_start_len: Literal[-1] | None = Field(default=-1, description="Of the answer alone.")
    return_text_in_logprobs: bool | None = False
    session_params: SessionParams | None = None
    rid: Any = Field(default=None, description="Taken and without effect: requests are named here.")


class FinishReasonBody(BaseModel):
    """type "stop" with what matched, or "length" with the length."""

    type: Literal["stop", "length"]
    matched: str | int | None = None
    length: int | None = None


class MetaInfo(BaseModel):
    id: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    finish_reason: FinishReasonBody | None
    e2e_latency: float = Field(description="Seconds since the request came in.")
    output_token_logprobs: list[tuple[float, int, str | None]] | None = None
    output_top_logprobs: list[list[tuple[float, int, str | None]]] | None = None


class Generated(BaseModel):
    """One answer. In a stream each event has all of its text so far."""

    index: int = Field(description="Of the prompt and its answer: prompt times n, plus answer.")
    text: str
    output_ids: list[int]
    meta_info: MetaInfo
    hypic: Report | None = None
