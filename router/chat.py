"""Chat bodies to requests of the engine, and its outputs to OpenAI's objects. No routes and no Ray here."""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypic.arms import arm_named
from hypic.errors import HypicError, InvalidRequestError
from hypic.prompt import chat_segments
from hypic.request import GenerationRequest, SamplingParams, TokenOutput, Usage
from hypic.router.bodies import (
    AnswerMessage,
    ChatBody,
    ChatCompletion,
    Choice,
    ErrorBody,
    ErrorDetail,
    MessageBody,
    PromptTokensDetails,
    Report,
    UsageBody,
)
from hypic.router.dispatcher import Dispatcher
from hypic.router.record import RequestRecord
from hypic.segment import Document, Message
from hypic.tokenizer import PromptTokenizer

DEFAULT_ANSWER_TOKENS = 512
"""Longest answer where a request does not say, if so many fit the model."""


class ParameterError(InvalidRequestError):
    """One named field of the body cannot be served."""

    def __init__(self, message: str, param: str, code: str = "unsupported_parameter", status: int = 400) -> None:
        super().__init__(message)
        self.param, self.code, self.status = param, code, status


@dataclass(frozen=True)
class ServedModel:
    """What is served, under which name. arm, temperature, top_p: of requests that do not say."""

    id: str
    tokenizer: PromptTokenizer
    max_tokens: int
    arm: str
    created: int
    temperature: float = 0.0
    top_p: float = 1.0


@dataclass
class Answer:
    """A request whose first token is there: from now on it is a 200."""

    id: str
    created: int
    record: RequestRecord
    first: TokenOutput
    rest: AsyncGenerator[TokenOutput, None]

    async def outputs(self) -> AsyncGenerator[TokenOutput, None]:
        """All outputs, the first one included. Closing stops the work."""
        try:
            yield self.first
            async for output in self.rest:
                yield output
        finally:
            await self.rest.aclose()


async def start(dispatcher: Dispatcher, model: ServedModel, body: ChatBody) -> Answer:
    """Run a body up to its first token, so that what goes wrong before it has its own status."""
    refuse_unserved(body, model)
    identifier = f"chatcmpl-{uuid.uuid4().hex}"
    request = await asyncio.to_thread(to_request, body, model, identifier)  # long documents take long to tokenise
    record = RequestRecord()
    outputs = dispatcher.generate(request, record)
    try:
        first = await anext(outputs)
    except BaseException:
        await outputs.aclose()
        raise
    return Answer(identifier, int(time.time()), record, first, outputs)


async def whole(answer: Answer, model: ServedModel, body: ChatBody) -> ChatCompletion:
    """The answer in one object."""
    pieces = [output async for output in answer.outputs()]
    finish = pieces[-1].finish_reason
    assert finish in ("stop", "length"), finish
    return ChatCompletion(
        id=answer.id,
        created=answer.created,
        model=model.id,
        choices=[Choice(message=AnswerMessage(content="".join(piece.text for piece in pieces)), finish_reason=finish)],
        usage=usage_body(pieces[-1].usage),
        hypic=report(answer.record) if _explain(body) else None,
    )


async def events(answer: Answer, model: ServedModel, body: ChatBody) -> AsyncGenerator[str, None]:
    """The answer as server-sent events. A fault ends them with an error event and no [DONE]."""
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    head: dict[str, Any] = {"id": answer.id, "object": "chat.completion.chunk", "created": answer.created}
    head |= {"model": model.id} | ({"usage": None} if with_usage else {})
    yield _event(head, {"role": "assistant", "content": ""})
    outputs = answer.outputs()
    last = answer.first
    try:
        async for last in outputs:
            if last.text:
                yield _event(head, {"content": last.text})
    except HypicError as error:
        yield f"data: {error_body(error).model_dump_json()}\n\n"
        return
    except Exception as error:  # the client must hear of it: the text so far is not the answer
        yield f"data: {error_body(error).model_dump_json()}\n\n"
        raise
    finally:
        await outputs.aclose()
    extra = {"hypic": report(answer.record).model_dump()} if _explain(body) else {}
    yield _event(head | extra, {}, last.finish_reason)
    if with_usage:
        yield f"data: {json.dumps(head | {'choices': [], 'usage': usage_body(last.usage).model_dump()})}\n\n"
    yield "data: [DONE]\n\n"


def to_request(body: ChatBody, model: ServedModel, identifier: str) -> GenerationRequest:
    """Tokenise a body. Raises InvalidRequestError."""
    documents = [Document(document.text, document.title, document.id) for document in body.documents or ()]
    segments = chat_segments(model.tokenizer, [_message(message) for message in body.messages], documents)
    room = model.max_tokens - sum(len(segment) for segment in segments)
    asked = body.max_completion_tokens or body.max_tokens or max(1, min(DEFAULT_ANSWER_TOKENS, room))
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    sampling = SamplingParams(
        max_tokens=asked,
        temperature=model.temperature if body.temperature is None else float(body.temperature),
        top_p=model.top_p if body.top_p is None else float(body.top_p),
        seed=body.seed,
        stop=stop,
        min_tokens=body.min_tokens or 0,
    )
    return GenerationRequest(
        identifier, segments, arm_named((body.hypic and body.hypic.arm) or model.arm), sampling, body.cache_salt or ""
    )


def default_sampling(path: Path) -> tuple[float, float]:
    """Temperature and top-p that a checkpoint's generation_config.json asks for: greedy unless it says do_sample."""
    file = path / "generation_config.json"
    record = json.loads(file.read_text()) if file.is_file() else {}
    if not record.get("do_sample"):
        return 0.0, 1.0
    return float(record.get("temperature", 1.0)), float(record.get("top_p", 1.0))


def refuse_unserved(body: ChatBody, model: ServedModel) -> None:
    """Raise ParameterError for what would change the answer and is not served, and for another model's name."""
    if body.model is not None and body.model != model.id:
        raise ParameterError(
            f"there is no model {body.model!r} here; this server has {model.id!r}", "model", "model_not_found", 404
        )
    unserved = {
        "n": body.n not in (None, 1),
        "logprobs": bool(body.logprobs),
        "top_logprobs": bool(body.top_logprobs),
        "tools": bool(body.tools),
        "functions": bool(body.functions),
        "response_format": (body.response_format or {}).get("type", "text") != "text",
        "logit_bias": bool(body.logit_bias),
        "presence_penalty": bool(body.presence_penalty),
        "frequency_penalty": bool(body.frequency_penalty),
    }
    for name, asked in unserved.items():
        if asked:
            raise ParameterError(f"{name} = {getattr(body, name)!r:.100} is not served: leave {name} out", name)


def usage_body(usage: Usage) -> UsageBody:
    return UsageBody(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=usage.cached_tokens),
    )


def report(record: RequestRecord) -> Report:
    """What `explain` returns of a request that has its first token."""
    assert record.plan is not None, record
    return Report(arm=record.plan.arm, plan=record.plan.as_dict(), timings=record.timings())


def error_body(error: Exception) -> ErrorBody:
    """OpenAI's envelope. What is not ours to explain is called internal, without its details."""
    if not isinstance(error, HypicError):
        return ErrorBody(error=ErrorDetail(message="internal error", type="server_error", code="internal_error"))
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    param = getattr(error, "param", None)
    return ErrorBody(error=ErrorDetail(message=str(error), type=kind, param=param, code=error.code))


def _explain(body: ChatBody) -> bool:
    return body.hypic is not None and body.hypic.explain


def _message(message: MessageBody) -> Message:
    role = "system" if message.role == "developer" else message.role
    content = message.content or ""
    if isinstance(content, str):
        return Message(role, content)
    return Message(role, tuple(part.text for part in content) or "")


def _event(head: dict[str, Any], delta: dict[str, str], finish: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
    return f"data: {json.dumps(head | {'choices': [choice]}, ensure_ascii=False)}\n\n"
