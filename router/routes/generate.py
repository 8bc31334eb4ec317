"""POST /generate: raw prompts in SGLang's shape."""

import time
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from hypic.request import TokenLogprob
from hypic.router.bodies.generate import FinishReasonBody, GenerateBody, Generated, MetaInfo
from hypic.router.calls import AnswerSoFar, Call, Tally, start
from hypic.router.faults import answers
from hypic.router.observation import ObservationDep
from hypic.router.prompts import generate_requests
from hypic.router.routes.chat import LEAST_LOGPROB
from hypic.router.service import CallerDep, ServedModel, ServiceDep
from hypic.router.streams import DONE, EventStream, event, schema
from hypic.router.strict_json import StrictRoute

router = APIRouter(route_class=StrictRoute, responses=answers(400, 404, 408, 413, 429, 503))


@router.post(
    "/generate",
    response_model=Generated | list[Generated],
    responses=schema("One answer, or a list where several were asked for; with `stream`, events", Generated),
)
async def generate(body: GenerateBody, service: ServiceDep, tenant: CallerDep, observation: ObservationDep) -> Any:
    """Continue raw prompts. One prompt and n = 1 give an object, more a list; a stream has an object an event."""
    began = time.perf_counter()
    requests = await service.tokenised(lambda: generate_requests(service, tenant, body))
    runs = [observation.begin(service.drift.marked(request)) for request in requests]
    call = await start(service.dispatcher, runs, began, body.timeout)
    tally = Tally((body.sampling_params and body.sampling_params.n) or 1)
    if body.stream:
        return EventStream(_events(call, tally, service.served, body))
    async for number, output in call.outputs:
        tally.add(number, output)
    found = [_generated(call, tally, index, service.served, body) for index in sorted(tally.answers)]
    several = len(found) > 1 or isinstance(body.text, list) or _nested(body.input_ids)
    return JSONResponse(found if several else found[0])


async def _events(call: Call, tally: Tally, model: ServedModel, body: GenerateBody) -> AsyncGenerator[str, None]:
    try:
        async for number, output in call.outputs:
            index = tally.add(number, output)
            if output.text or output.finish_reason is not None:
                yield event(_generated(call, tally, index, model, body))
    finally:
        await call.outputs.aclose()
    yield DONE


def _generated(call: Call, tally: Tally, index: int, model: ServedModel, body: GenerateBody) -> dict[str, Any]:
    answer = tally.answers[index]
    number = index // tally.choices
    last = answer.last
    assert last is not None
    explain = body.hypic is not None and body.hypic.explain and last.finish_reason is not None
    generated = Generated(
        index=index,
        text=answer.text,
        output_ids=answer.token_ids,
        meta_info=MetaInfo(
            id=last.request_id,
            prompt_tokens=last.usage.prompt_tokens,
            completion_tokens=len(answer.token_ids),
            cached_tokens=last.usage.cached_tokens,
            finish_reason=_finish(answer),
            e2e_latency=time.perf_counter() - call.began,
            **(_logprobs(answer.logprobs, model, body) if body.return_logprob else {}),
        ),
        hypic=call.reports()[number] if explain else None,
    )
    hidden = set() if body.return_logprob else {"output_token_logprobs", "output_top_logprobs"}
    record = generated.model_dump(exclude={"meta_info": hidden})
    if not explain:
        del record["hypic"]
    return record


def _finish(answer: AnswerSoFar) -> FinishReasonBody | None:
    last = answer.last
    if last is None or last.finish_reason is None:
        return None
    if last.finish_reason == "length":
        return FinishReasonBody(type="length", length=len(answer.token_ids))
    return FinishReasonBody(type="stop", matched=last.matched)


def _logprobs(tokens: list[TokenLogprob], model: ServedModel, body: GenerateBody) -> dict[str, Any]:
    def entry(token_id: int, logprob: float) -> tuple[float, int, str | None]:
        text = model.tokenizer.token_bytes(token_id).decode("utf-8", "replace")
        return max(LEAST_LOGPROB, logprob), token_id, text if body.return_text_in_logprobs else None

    return {
        "output_token_logprobs": [entry(token.token_id, token.logprob) for token in tokens],
        "output_top_logprobs": [[entry(top, logprob) for top, logprob in token.top] for token in tokens],
    }


def _nested(input_ids: list[Any] | None) -> bool:
    return bool(input_ids and isinstance(input_ids[0], list))
