"""POST /v1/completions: raw prompts, as OpenAI's, with `<<PIC_SEP>>` between segments."""

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from hypic.request import FinishReason, TokenLogprob
from hypic.router.bodies.completions import Completion, CompletionBody, CompletionChoice, CompletionLogprobs
from hypic.router.calls import Call, Tally, start
from hypic.router.faults import answers
from hypic.router.observation import ObservationDep
from hypic.router.prompts import completion_requests
from hypic.router.routes.chat import LEAST_LOGPROB
from hypic.router.service import CallerDep, ServedModel, ServiceDep
from hypic.router.streams import DONE, EventStream, event, schema
from hypic.router.strict_json import StrictRoute

router = APIRouter(route_class=StrictRoute, responses=answers(400, 404, 408, 413, 429, 503))


@router.post(
    "/v1/completions",
    response_model=Completion,
    responses=schema("The answer; with `stream`, events of its parts", Completion),
)
async def completions(body: CompletionBody, service: ServiceDep, tenant: CallerDep, observation: ObservationDep) -> Any:
    """Continue raw prompts: choice i of prompt p has the index p times n plus i."""
    began = time.perf_counter()
    requests = await service.tokenised(lambda: completion_requests(service, tenant, body))
    runs = [observation.begin(service.drift.marked(request)) for request in requests]
    call = await start(service.dispatcher, runs, began, body.timeout)
    if body.stream:
        return EventStream(_events(call, service.served, body))
    tally = Tally(body.n or 1)
    async for number, output in call.outputs:
        tally.add(number, output)
    choices = []
    for index, answer in sorted(tally.answers.items()):
        assert answer.last is not None
        choices.append(
            _choice(
                index,
                answer.text,
                answer.logprobs,
                service.served,
                body,
                answer.last.finish_reason,
                answer.last.matched,
            )
        )
    reports = call.reports() if _explain(body) else None
    head = _head(call, service.served)
    return JSONResponse(Completion(**head, choices=choices, usage=tally.usage(), hypic=reports).model_dump())


async def _events(call: Call, model: ServedModel, body: CompletionBody) -> AsyncGenerator[str, None]:
    with_usage = bool(body.stream_options and body.stream_options.include_usage)
    head, tally = _head(call, model), Tally(body.n or 1)
    hidden = set() if with_usage else {"usage"}
    try:
        async for number, output in call.outputs:
            index = tally.add(number, output)
            if not (output.text or output.logprobs or output.finish_reason):
                continue
            choice = _choice(index, output.text, output.logprobs, model, body, output.finish_reason, output.matched)
            yield event(Completion(**head, choices=[choice]).model_dump(exclude={*hidden, "hypic"}))
    finally:
        await call.outputs.aclose()
    if with_usage or _explain(body):
        reports = call.reports() if _explain(body) else None
        usage = tally.usage() if with_usage else None
        yield event(Completion(**head, choices=[], usage=usage, hypic=reports).model_dump(exclude=hidden))
    yield DONE


def _head(call: Call, model: ServedModel) -> dict[str, Any]:
    return {"id": call.id, "created": call.created, "model": model.id}


def _choice(
    index: int,
    text: str,
    logprobs: Sequence[TokenLogprob],
    model: ServedModel,
    body: CompletionBody,
    finish: FinishReason | None,
    matched: str | int | None,
) -> CompletionChoice:
    assert finish != "error", index
    found = None if body.logprobs is None else _logprobs(logprobs, model)
    return CompletionChoice(index=index, text=text, finish_reason=finish, stop_reason=matched, logprobs=found)


def _logprobs(tokens: Sequence[TokenLogprob], model: ServedModel) -> CompletionLogprobs:
    """A token that is part of a character is spelled by its bytes, as OpenAI's servers do: two parts must not meet in
    one key of a dictionary."""
    return CompletionLogprobs(
        tokens=[_spelled(model, token.token_id) for token in tokens],
        token_logprobs=[max(LEAST_LOGPROB, token.logprob) for token in tokens],
        top_logprobs=[
            {_spelled(model, top): max(LEAST_LOGPROB, logprob) for top, logprob in token.top} for token in tokens
        ],
        text_offset=[token.offset_chars for token in tokens],
    )


def _spelled(model: ServedModel, token_id: int) -> str:
    spelled = model.tokenizer.token_bytes(token_id)
    try:
        return spelled.decode() or f"token_id:{token_id}"
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def _explain(body: CompletionBody) -> bool:
    return body.hypic is not None and body.hypic.explain
