"""/v1/segments: documents that are prefilled before anybody asks; a tenant's cached segments, listed and deleted."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import JSONResponse

from hypic.arms import Arm, arm_named
from hypic.errors import HypicError, InvalidRequestError
from hypic.request import GenerationRequest, SamplingParams, TokenOutput
from hypic.router.bodies.segments import (
    SegmentBody,
    SegmentDeleted,
    SegmentList,
    WarmBody,
    WarmedSegment,
    WarmReport,
)
from hypic.router.faults import ParameterError, answers
from hypic.router.limits import Encoder, documents_of
from hypic.router.observation import Observation, ObservationDep
from hypic.router.prompts import identifier
from hypic.router.service import CallerDep, Service, ServiceDep
from hypic.router.streams import DONE, EventStream, event, schema
from hypic.router.strict_json import StrictRoute
from hypic.segment import Document, Segment
from hypic.tokenizer import TextPart

WARMED_AT_ONCE = 8
"""Documents of one request that are on their way together."""

router = APIRouter(route_class=StrictRoute, responses=answers(400, 503))

Salt = Annotated[str, Query(max_length=512, description="As `cache_salt` of the requests that use the segments.")]
Identifier = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]


@router.post(
    "/v1/segments",
    response_model=WarmReport,
    responses=schema("What became of each document; with `stream`, an event as each is done", WarmedSegment, WarmReport)
    | answers(413, 429),
)
async def warm(body: WarmBody, service: ServiceDep, tenant: CallerDep, observation: ObservationDep) -> Any:
    """Prefill documents, so that the first question over them finds them cached. What is cached already stays."""
    arm = arm_named((body.hypic and body.hypic.arm) or service.served.arm)
    if not arm.reuse_segments or arm.anchored:
        told = f"the arm {arm.name!r} has no segments that stand for themselves: warm those of hypic or transition"
        raise ParameterError(f"hypic.arm: {told}", "hypic.arm")
    documents = documents_of(body.documents, service.config)
    done = _warmed(service, observation, documents, arm, tenant.salt(body.cache_salt))
    if body.stream:
        return EventStream(_events(done))
    began, found = time.perf_counter(), [segment async for segment in done]
    found.sort(key=lambda segment: segment.index)
    return JSONResponse(_report(found, began, with_data=True).model_dump())


@router.get("/v1/segments")
async def listed(
    service: ServiceDep,
    tenant: CallerDep,
    cache_salt: Salt = "",
    after: Annotated[str, Query(pattern="^([0-9a-f]{64})?$", description="`last_id` of the page before.")] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> SegmentList:
    """The caller's own cached segments, a page at a time, in order of their ids."""
    _ = service.served
    salt = tenant.salt(_encodable(cache_salt))
    pages = [
        (port.name, await port.segments(salt, bytes.fromhex(after), limit + 1))
        for port in service.dispatcher.combine_ports
    ]
    found: dict[bytes, SegmentBody] = {}
    for worker, page in pages:
        for stored in page:
            body = found.setdefault(
                stored.key,
                SegmentBody(
                    id=stored.key.hex(),
                    label=stored.label,
                    tokens=stored.tokens,
                    bytes=stored.nbytes,
                    tiers=list(stored.tiers),
                    workers=[],
                ),
            )
            body.workers.append(worker)
    data = [found[key] for key in sorted(found)][:limit]
    return SegmentList(data=data, has_more=len(found) > limit, last_id=data[-1].id if data else None)


@router.delete("/v1/segments/{segment_id}", responses=answers(404, 409))
async def deleted(
    segment_id: Identifier, service: ServiceDep, tenant: CallerDep, cache_salt: Salt = ""
) -> SegmentDeleted:
    """Drop one of the caller's own cached segments, on every worker and in every tier."""
    _ = service.served
    salt, key = tenant.salt(_encodable(cache_salt)), bytes.fromhex(segment_id)
    outcomes = [await port.delete(salt, key) for port in service.dispatcher.combine_ports]
    if "in_use" in outcomes:
        raise ParameterError("a request is using the segment: try again soon", None, "segment_in_use", 409)
    if "deleted" not in outcomes:
        raise ParameterError("there is no such segment of yours", None, "segment_not_found", 404)
    return SegmentDeleted(id=segment_id)


async def _events(done: AsyncGenerator[WarmedSegment, None]) -> AsyncGenerator[str, None]:
    began, found = time.perf_counter(), []
    try:
        async for segment in done:
            found.append(segment)
            yield event(segment)
    finally:
        await done.aclose()
    yield event(_report(found, began, with_data=False))
    yield DONE


async def _warmed(
    service: Service, observation: Observation, documents: list[Document], arm: Arm, salt: str
) -> AsyncGenerator[WarmedSegment, None]:
    """What becomes of each document, as it is done; the longest are begun first, so that none comes last alone."""
    gate = asyncio.Semaphore(WARMED_AT_ONCE)

    async def one(number: int) -> WarmedSegment:
        async with gate:
            return await _warm(service, observation, number, documents[number], arm, salt)

    order = sorted(range(len(documents)), key=lambda number: -len(documents[number].text))
    tasks = [asyncio.ensure_future(one(number)) for number in order]
    try:
        for task in asyncio.as_completed(tasks):
            yield await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _warm(
    service: Service, observation: Observation, number: int, document: Document, arm: Arm, salt: str
) -> WarmedSegment:
    """One document. What goes wrong with it is its own: the others go on."""
    label = document.id or document.title or f"document {number + 1}"
    tokens = 0
    try:
        encode = Encoder(service, service.served, salt)
        token_ids = await service.tokenised(lambda: encode([TextPart(document.section)]))
        tokens = len(token_ids)
        segments = (Segment("document", token_ids, label), Segment("question", token_ids[:1]))
        request = GenerationRequest(
            identifier("warm"), segments, arm, SamplingParams(max_tokens=1), salt, build_only=True
        )
        outputs = [output async for output in observation.begin(request).outputs(service.dispatcher)]
    except HypicError as error:
        return WarmedSegment(index=number, id=None, label=label, tokens=tokens, status="failed", error=str(error))
    return _outcome(number, label, outputs[-1])


def _outcome(number: int, label: str, output: TokenOutput) -> WarmedSegment:
    row = output.plan.rows[0]
    if not row.key:
        return WarmedSegment(index=number, id=None, label=label, tokens=row.tokens, status="too_short")
    built = row.source == "build"
    return WarmedSegment(
        index=number, id=row.key, label=label, tokens=row.tokens, status="built" if built else "reused"
    )


def _report(found: list[WarmedSegment], began: float, with_data: bool) -> WarmReport:
    counts = Counter(segment.status for segment in found)
    return WarmReport(
        built=counts["built"],
        reused=counts["reused"],
        too_short=counts["too_short"],
        failed=counts["failed"],
        seconds=time.perf_counter() - began,
        data=found if with_data else None,
    )


def _encodable(text: str) -> str:
    """A query may spell what is no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError("cache_salt holds a lone surrogate, which is not a character") from error
    return text
