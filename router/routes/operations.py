"""What is served, whether it is well, sessions, and the handles of operators."""

import asyncio
import importlib.metadata
from dataclasses import asdict, fields
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from hypic.arms import arm_named
from hypic.errors import UnavailableError
from hypic.prompt import marked_segments
from hypic.request import GenerationRequest, SamplingParams
from hypic.router.bodies.operations import CloseSessionBody, Flushed, OpenSessionBody, ServerInfo
from hypic.router.bodies.shared import HealthBody, Model, ModelList
from hypic.router.faults import answers
from hypic.router.fleet import Health
from hypic.router.observation import ObservationDep
from hypic.router.prompts import check_model, identifier
from hypic.router.service import RETRY_SECONDS, CallerDep, OperatorDep, ServedModel, ServiceDep
from hypic.router.strict_json import StrictRoute

GENERATE_SECONDS = 20.0
"""How long the one token of /health_generate may take."""

router = APIRouter(route_class=StrictRoute)


@router.get("/v1/models", responses=answers(503))
async def models(service: ServiceDep, tenant: CallerDep) -> ModelList:
    """The one model that is served."""
    return ModelList(data=[_described(service.served)])


@router.get("/v1/models/{name}", responses=answers(404, 503))
async def model(name: str, service: ServiceDep, tenant: CallerDep) -> Model:
    """The model of that name, where it is the one that is served."""
    check_model(name, service.served)
    return _described(service.served)


@router.get("/health", response_model=HealthBody, responses={503: {"model": HealthBody}})
async def health(service: ServiceDep) -> Any:
    """200 while requests can be answered; "degraded" where some workers are missing. Needs no key."""
    state = await service.dispatcher.health() if service.model else Health(False, {})
    if not state.serving:
        body = HealthBody(status="unavailable", workers=state.workers)
        return JSONResponse(body.model_dump(), 503, headers={"Retry-After": str(RETRY_SECONDS)})
    complete = all(status == "ok" for status in state.workers.values())
    return JSONResponse(HealthBody(status="ok" if complete else "degraded", workers=state.workers).model_dump())


@router.get("/health_generate", response_class=Response, responses=answers(503))
async def health_generate(service: ServiceDep, tenant: CallerDep, observation: ObservationDep) -> Response:
    """200 once a token has been generated, without any cache."""
    segments = marked_segments(service.served.tokenizer, "a")
    request = GenerationRequest(identifier("health"), segments, arm_named("full"), SamplingParams(max_tokens=1))
    outputs = observation.begin(request).outputs(service.dispatcher)
    try:
        async with asyncio.timeout(GENERATE_SECONDS):
            async for _ in outputs:
                pass
    except TimeoutError as error:
        told = f"no token came within {GENERATE_SECONDS:.0f} seconds"
        raise UnavailableError(told, RETRY_SECONDS) from error
    finally:
        await outputs.aclose()
    return Response()


@router.post("/flush_cache", responses=answers(403, 503))
async def flush_cache(service: ServiceDep, tenant: OperatorDep) -> Flushed:
    """Drop everything cached that nothing running holds, of all tenants."""
    _ = service.served
    service.token_cache.clear()
    return Flushed(segments=sum([await port.flush() for port in service.dispatcher.combine_ports]))


@router.get("/server_info", responses=answers(403, 503))
async def server_info(service: ServiceDep, tenant: OperatorDep) -> ServerInfo:
    """What is served, under which limits, and what the workers hold."""
    model = service.served
    names = [field.name for field in fields(service.config) if field.name.startswith("max_")]
    return ServerInfo(
        version=importlib.metadata.version("hypic"),
        model=model.id,
        max_tokens=model.max_tokens,
        arm=model.arm,
        limits={name: getattr(service.config, name) for name in names},
        workers=[asdict(stats) for stats in await service.dispatcher.stats()],
    )


@router.get("/metrics", response_class=Response, responses=answers(403))
async def metrics(service: ServiceDep, tenant: OperatorDep) -> Response:
    """Counts and times for Prometheus, of all tenants together. Answers before the workers are there, too."""
    await service.worker_metrics.refresh()
    return Response(service.metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


@router.post("/open_session", responses=answers(400, 413, 503))
async def open_session(body: OpenSessionBody, service: ServiceDep, tenant: CallerDep) -> str:
    """Begin a session, again if it was closed; the answer is its id. A request that names a session begins it too."""
    _ = service.served
    name, salt = body.session_id or identifier("session"), tenant.salt(body.cache_salt)
    for port in service.dispatcher.combine_ports:
        await port.open_session(name, salt)
    return name


@router.post("/close_session", response_class=Response, responses=answers(400, 413, 503))
async def close_session(body: CloseSessionBody, service: ServiceDep, tenant: CallerDep) -> Response:
    """Keep what a session referred to no longer than anything else. Closing what is not open changes nothing."""
    _ = service.served
    for port in service.dispatcher.combine_ports:
        await port.close_session(body.session_id, tenant.salt(body.cache_salt))
    return Response()


def _described(model: ServedModel) -> Model:
    return Model(id=model.id, created=model.created, max_model_len=model.max_tokens)
