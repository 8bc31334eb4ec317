"""Bodies of POST /v1/chat/completions, in OpenAI's shapes with `documents` and `hypic` beside them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from hypic.router.bodies.shared import Body, Count, DocumentBody, Items, Name, Report, SamplingFields, Text, UsageBody


class CacheControl(Body):
    """As Anthropic's: this part ends a section that is worth keeping."""

    type: Literal["ephemeral"]
    ttl: Name | None = Field(default=None, description="Taken and without effect: what is kept is a matter of room.")


class TextPart(Body):
    type: Literal["text"]
    text: Text
    cache_control: CacheControl | None = Field(
        default=None, description="Ends a reusable segment, which begins behind the one before or with the message."
    )


class MessageBody(Body):
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Items[TextPart] | None = Field(
        default=None, description="A text, or parts: of the last user message each part but the last is a segment."
    )
    name: Any = Field(default=None, description="Taken and without effect: chat templates have no place for it.")
    refusal: None = None
    audio: None = None
    function_call: None = None
    tool_calls: Annotated[list[Any], Field(max_length=0)] | None = None
    annotations: Any = None


class ChatBody(SamplingFields):
    """POST /v1/chat/completions."""

    messages: Items[MessageBody]
    documents: Items[DocumentBody] | None = Field(
        default=None, description="Stand before the last user message's text, each a segment that is cached by itself."
    )
    max_completion_tokens: Count | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    parallel_tool_calls: bool | None = Field(default=None, description="Taken and without effect: there are no tools.")
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None
    response_format: dict[str, Any] | None = None
    modalities: Items[Text] | None = None
    audio: Any = None
    prediction: Any = Field(default=None, description="Taken and without effect: a guess changes no answer.")
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """By the model's own distribution, before temperature, penalties and bias."""

    content: list[ContentLogprob]
    refusal: None = None


class AnswerMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class Choice(BaseModel):
    index: int = 0
    message: AnswerMessage
    finish_reason: Literal["stop", "length"]
    stop_reason: str | int | None = Field(default=None, description="The stop string or token id that ended the text.")
    logprobs: ChatLogprobs | None = None


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: UsageBody
    hypic: Report | None = None


class Delta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(BaseModel):
    index: int = 0
    delta: Delta
    finish_reason: Literal["stop", "length"] | None = None
    logprobs: ChatLogprobs | None = None


class ChatChunk(BaseModel):
    """One server-sent event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: UsageBody | None = None
    hypic: Report | None = None
