"""Bodies of the HTTP interface, in OpenAI's shapes with `documents` and `hypic` beside them.

Fields that are not listed are ignored, as OpenAI's servers do; fields that would change the answer and are not served
are listed, and refused by hypic.router.chat.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _encodable(text: str) -> str:
    """JSON can spell half of a surrogate pair, which is no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("holds a lone surrogate, which is not a character") from error
    return text


Text = Annotated[str, AfterValidator(_encodable)]


class Body(BaseModel):
    """Types as in JSON, without conversions: "5" is not 5."""

    model_config = ConfigDict(extra="ignore", strict=True)


class TextPart(Body):
    type: Literal["text"]
    text: Text


class MessageBody(Body):
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[TextPart] | None = Field(
        default=None, description="A text, or parts: of the last user message each part but the last is a segment."
    )


class DocumentBody(Body):
    text: Text
    title: Text | None = None
    id: Text | None = Field(default=None, description="Names the document in a plan; it does not identify its text.")


class StreamOptions(Body):
    include_usage: bool = False


class HypicOptions(Body):
    explain: bool = Field(default=False, description="Return the plan, a row a segment, and timings.")
    arm: Text | None = Field(default=None, description="How to reuse: full, prefix, hypic, anchored, ...")


class ChatBody(Body):
    """POST /v1/chat/completions."""

    messages: list[MessageBody]
    model: Text | None = Field(default=None, description="As in /v1/models; may be left out.")
    documents: list[DocumentBody] | None = Field(
        default=None, description="Stand before the last user message's text, each a segment that is cached by itself."
    )
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Text | list[Text] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    cache_salt: Text | None = Field(default=None, description="Nothing cached is shared between different salts.")
    hypic: HypicOptions | None = None
    n: int | None = 1
    logprobs: bool | None = False
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    response_format: dict[str, Any] | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class PromptTokensDetails(BaseModel):
    cached_tokens: int = Field(description="Prompt tokens whose computation was skipped; seam tokens are not.")


class UsageBody(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class AnswerMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str


class Choice(BaseModel):
    index: int = 0
    message: AnswerMessage
    finish_reason: Literal["stop", "length"]
    logprobs: None = None


class Report(BaseModel):
    """What `explain` asks for."""

    arm: str
    plan: dict[str, Any]
    timings: dict[str, Any]


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: UsageBody
    hypic: Report | None = None


class Model(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "hypic"


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
