"""POST /v1/chat/completions: a chat over documents, as OpenAI's."""

import time
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from hypic.request import TokenLogprob, TokenOutput
from hypic.router.bodies.chat import (
    AnswerMessage,
    ChatBody,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    Choice,
    ContentLogprob,
    TopLogprob,
)
from hypic.router.calls import AnswerSoFar, Call, Tally, start
from hypic.router.faults import answers
from hypic.router.observation import ObservationDep
from hypic.router.prompts import chat_request
from hypic.router.service import CallerDep, ServedModel, ServiceDep
from hypic.router.streams import DONE, EventStream, event, schema
from hypic.router.strict_json import StrictRoute

LEAST_LOGPROB = -9999.0
"""What stands for the logarithm of zero, which JSON has no number for; OpenAI's servers say the same."""

router = APIRouter(route_class=StrictRoute, responses=answers(400, 404, 408, 413, 429, 503))


@router.post(
    "/v1/chat/completions",
    response_model=ChatCompletion,
    responses=schema("The answer; with `stream`, events of its parts", ChatChunk),
)
async def chat_completions(body: ChatBody, service: ServiceDep, tenant: CallerDep, observation: ObservationDep) -> Any:
    """Answer a chat over documents. With `stream`, server-sent events of `chat.completion.chunk`."""
    began = time.perf_counter()
    request = await service.tokenised(lambda: chat_request(service, tenant, body))
    call = await start(service.dispatcher, [observation.begin(service.drift.marked(request))], began, body.timeout)
    if body.stream:
        return EventStream(_events(call, service.served, body))
    return JSONResponse((await _whole(call, service.served, body)).model_dump())


async def _whole(call: Call, model: ServedModel, body: ChatBody) -> ChatCompletion:
    tally = Tally(body.n or 1)
    async for number, output in call.outputs:
        tally.add(number, output)
    return ChatCompletion(
        id=call.id,
        created=call.created,
        model=model.id,
        choices=[_choice(index, answer, model, body) for index, answer in sorted(tally.answers.items())],
        usage=tally.usage(),
        hypic=call.reports()[0] if _explain(body) else None,
    )


async def _events(call: Call, model: ServedModel, body: ChatBody) -> AsyncGenerator[str, None]:
    with_usage = bool(body.stream_options and body.stream_options.include_usage)
    head: dict[str, Any] = {"id": call.id, "object": "chat.completion.chunk", "created": call.created}
    head |= {"model": model.id} | ({"usage": None} if with_usage else {})
    tally = Tally(body.n or 1)
    for index in range(tally.choices):
        yield _chunk(head, index, {"role": "assistant", "content": ""})
    try:
        async for number, output in call.outputs:
            index = tally.add(number, output)
            logprobs = _logprobs(output.logprobs, model) if body.logprobs else None
            if output.text or (logprobs and logprobs.content):
                yield _chunk(head, index, {"content": output.text}, logprobs)
            if output.finish_reason is not None:
                extra = {"hypic": call.reports()[0].model_dump()} if _explain(body) and output.ends_request else {}
                yield _chunk(head | extra, index, {}, None, output)
    finally:
        await call.outputs.aclose()
    if with_usage:
        yield event(head | {"choices": [], "usage": tally.usage().model_dump()})
    yield DONE


def _choice(index: int, answer: AnswerSoFar, model: ServedModel, body: ChatBody) -> Choice:
    last = answer.last
    assert last is not None
    assert last.finish_reason in ("stop", "length"), last
    return Choice(
        index=index,
        message=AnswerMessage(content=answer.text),
        finish_reason=last.finish_reason,
        stop_reason=last.matched,
        logprobs=_logprobs(answer.logprobs, model) if body.logprobs else None,
    )


def _chunk(
    head: dict[str, Any],
    index: int,
    delta: dict[str, str],
    logprobs: ChatLogprobs | None = None,
    last: TokenOutput | None = None,
) -> str:
    choice: dict[str, Any] = {"index": index, "delta": delta, "finish_reason": last and last.finish_reason}
    choice["logprobs"] = logprobs and logprobs.model_dump()
    if last is not None:
        choice["stop_reason"] = last.matched
    return event(head | {"choices": [choice]})


def _logprobs(tokens: list[TokenLogprob] | tuple[TokenLogprob, ...], model: ServedModel) -> ChatLogprobs:
    return ChatLogprobs(
        content=[
            ContentLogprob(
                **_token(model, token.token_id, token.logprob),
                top_logprobs=[TopLogprob(**_token(model, top, logprob)) for top, logprob in token.top],
            )
            for token in tokens
        ]
    )


def _token(model: ServedModel, token_id: int, logprob: float) -> dict[str, Any]:
    spelled = model.tokenizer.token_bytes(token_id)
    text = spelled.decode("utf-8", "replace")
    return {"token": text, "logprob": max(LEAST_LOGPROB, logprob), "bytes": list(spelled)}


def _explain(body: ChatBody) -> bool:
    return body.hypic is not None and body.hypic.explain
