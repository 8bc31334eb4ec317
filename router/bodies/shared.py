"""What bodies of several routes have in common: types as in JSON, fields of sampling, usage, errors.

A field that is not listed is refused by name, so nothing that a client asks for is left out silently. Fields that are
taken and have no effect are listed as such (`Harmless`).
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

ItemT = TypeVar("ItemT")

MOST_UNKNOWN_FIELDS = 8
"""So many are looked at to name one of them; a body of a million gets no list of them all."""

MOST_BIASED_TOKENS = 1024


def _encodable(text: str) -> str:
    """JSON can spell half of a surrogate pair, which is no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("holds a lone surrogate, which is not a character") from error
    return text


def _few(entries: Any) -> Any:
    if isinstance(entries, dict) and len(entries) > MOST_BIASED_TOKENS:
        raise PydanticCustomError("too_many", f"at most {MOST_BIASED_TOKENS} entries are taken")
    return entries


Items = Annotated[list[ItemT], Field(fail_fast=True)]
"""A list of which the first fault is told: what validation costs must not grow with the number of faults."""

Text = Annotated[str, AfterValidator(_encodable)]
Name = Annotated[str, Field(max_length=512), AfterValidator(_encodable)]
StopString = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_encodable)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class Body(BaseModel):
    """Types as in JSON, without conversions: "5" is not 5."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _fields_are_few(cls, sent: Any) -> Any:
        if isinstance(sent, dict) and len(sent) > len(cls.model_fields) + MOST_UNKNOWN_FIELDS:
            raise PydanticCustomError(
                "too_many", f"{len(sent)} fields were sent, {len(cls.model_fields)} are known here"
            )
        return sent


class Harmless(Body):
    """Fields of OpenAI's that are taken and change nothing here: they name the caller, or steer what is not here."""

    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None


class DocumentBody(Body):
    text: Text
    title: Text | None = None
    id: Name | None = Field(default=None, description="Names the document in a plan; it does not identify its text.")
    metadata: Any = Field(default=None, description="Not part of the prompt.")


class StreamOptions(Body):
    include_usage: bool | None = False
    include_obfuscation: bool | None = Field(default=False, description="Taken; this server adds none.")


class HypicOptions(Body):
    explain: bool = Field(default=False, description="Return the plan, a row a segment, and timings.")
    arm: Name | None = Field(default=None, description="How to reuse: full, prefix, hypic, anchored, ...")


class CacheFields(Body):
    """Whose the cached data are and how long they are wanted."""

    cache_salt: Name | None = Field(default=None, description="Nothing cached is shared between different salts.")
    session_id: Name | None = Field(
        default=None, description="Of a conversation that goes on: what it would reuse is evicted last."
    )
    timeout: Annotated[float, Field(gt=0, le=86_400)] | None = Field(
        default=None, description="Seconds after which the request ends with 408."
    )
    hypic: HypicOptions | None = None


class SamplingFields(CacheFields, Harmless):
    """How to choose tokens, in OpenAI's names and, behind them, those of vLLM."""

    model: Name | None = Field(default=None, description="As in /v1/models; may be left out.")
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    n: Count | None = Field(default=1, description="Answers from one prefill.")
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = Field(
        default=None, description="Answer i of n is drawn with seed + i."
    )
    stop: StopString | Items[StopString] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: (
        Annotated[
            dict[Annotated[str, Field(pattern="^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]],
            BeforeValidator(_few),
        ]
        | None
    ) = Field(default=None, max_length=MOST_BIASED_TOKENS)
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = Field(default=None, description="-1 and 0 take all.")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    stop_token_ids: Annotated[Items[TokenId], Field(max_length=64)] | None = None
    ignore_eos: bool | None = None


class PromptTokensDetails(BaseModel):
    cached_tokens: int = Field(description="Prompt tokens whose computation was skipped; seam tokens are not.")


class UsageBody(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Report(BaseModel):
    """What `explain` asks for."""

    arm: str
    plan: dict[str, Any]
    timings: dict[str, Any]


class Model(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "hypic"
    max_model_len: int = Field(description="Longest prompt and answer together, in tokens.")


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


class HealthBody(BaseModel):
    status: Literal["ok", "degraded", "unavailable"]
    workers: dict[str, str]


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """OpenAI's envelope, of every answer above 399."""

    error: ErrorDetail
