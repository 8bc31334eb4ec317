"""Bodies of POST /v1/completions."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from hypic.router.bodies.shared import Items, Report, SamplingFields, Text, TokenId, UsageBody


class CompletionBody(SamplingFields):
    """POST /v1/completions."""

    prompt: Text | Items[Text] | Items[TokenId] | Items[Items[TokenId]] = Field(
        description="A text, with `<<PIC_SEP>>` between its segments, or token ids, or a list of either."
    )
    logprobs: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    echo: bool | None = False
    best_of: int | None = None
    suffix: Any = None


class CompletionLogprobs(BaseModel):
    """OpenAI's parallel lists, by the model's own distribution."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    finish_reason: Literal["stop", "length"] | None
    stop_reason: str | int | None = None
    logprobs: CompletionLogprobs | None = None


class Completion(BaseModel):
    """An answer, or one server-sent event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody | None = None
    hypic: list[Report] | None = Field(default=None, description="One for each prompt.")
