"""The HTTP interface as a FastAPI application: routes, guards and errors around a service.

It knows nothing of Ray, so tests can call it in process; hypic.router.app puts it on Ray Serve. Each file in
hypic/router/routes brings an `APIRouter`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from hypic.router import faults
from hypic.router.guards import Admission, BodyLimit, Doorkeeper
from hypic.router.openapi import DescribedAPI
from hypic.router.playground.route import router as playground
from hypic.router.routes import chat, completions, generate, operations, segments
from hypic.router.service import Service
from hypic.router.watch import Watch

ROUTERS = (chat.router, completions.router, generate.router, segments.router, operations.router, playground)


def build_api(service: Service, send_request_id: bool = True) -> FastAPI:
    """The application. It answers at once, with 503 until the workers are there. send_request_id: False where what
    stands in front of it sends the header."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        background = [asyncio.create_task(service.connect()), asyncio.create_task(service.drift.run())]
        yield
        for task in background:
            task.cancel()
        await service.close()

    app = DescribedAPI(
        asks_for_keys=service.keys is not None,
        title="HYPIC",
        description="Position-independent caching, OpenAI-compatible.",
        lifespan=lifespan,
    )
    app.state.service = service
    for router in ROUTERS:
        app.include_router(router)
    faults.install(app)
    config = service.config
    app.add_middleware(
        BodyLimit,
        max_body_bytes=config.max_body_bytes,
        max_open_body_bytes=config.max_open_body_bytes,
        body_seconds=config.body_seconds,
    )
    app.add_middleware(Admission, max_requests=config.max_requests)
    app.add_middleware(Doorkeeper, keys=service.keys)
    # The last one added is the first one asked.
    routes = [*app.routes, *(route for router in ROUTERS for route in router.routes)]
    app.add_middleware(Watch, observations=service.observations, routes=routes, send_id=send_request_id)
    return app
