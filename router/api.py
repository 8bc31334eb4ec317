"""The HTTP interface: routes, limits and errors, as a FastAPI application over a dispatcher.

It knows nothing of Ray, so tests can call it in process; hypic.router.app puts it on Ray Serve.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hypic.errors import HypicError, UnavailableError
from hypic.router.bodies import ChatBody, ChatCompletion, ErrorBody, ErrorDetail, HealthBody, Model, ModelList
from hypic.router.chat import ServedModel, error_body, events, start, whole
from hypic.router.dispatcher import Dispatcher, Health

MAX_BODY_BYTES = 32 * 1024**2

RETRY_SECONDS = 2
"""When a client should try again, and when the workers are looked for again."""

_log = logging.getLogger(__name__)

router = APIRouter(
    responses={
        status: {"model": ErrorBody, "description": text}
        for status, text in {
            400: "The request cannot be served as it is",
            404: "No such model",
            413: "The body is too large",
            500: "A fault of the server",
            503: "No worker is there; see Retry-After",
        }.items()
    }
)


class Service:
    """What the routes work on. model is there once the workers are."""

    def __init__(self, dispatcher: Dispatcher, load: Callable[[int], ServedModel]) -> None:
        """load: the served model, given the longest text that the workers read."""
        self.dispatcher = dispatcher
        self._load = load
        self.model: ServedModel | None = None
        self._missing = "the workers are still loading the model"

    async def connect(self) -> None:
        """Wait for the workers, and keep trying while they are not there."""
        while self.model is None:
            try:
                info = await self.dispatcher.connect()
                self.model = self._load(info.max_tokens)
            except Exception as error:  # whatever it is: said to every client, and tried again
                _log.warning("no workers yet", exc_info=error)
                self._missing = f"the workers are not there yet: {error}"
                await asyncio.sleep(RETRY_SECONDS)

    @property
    def served(self) -> ServedModel:
        if self.model is None:
            raise UnavailableError(self._missing, RETRY_SECONDS)
        return self.model


def build_api(service: Service, max_body_bytes: int = MAX_BODY_BYTES) -> FastAPI:
    """The application. It answers at once, with 503 until the workers are there."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        connecting = asyncio.create_task(service.connect())
        yield
        connecting.cancel()
        await service.dispatcher.close()

    app = FastAPI(title="HYPIC", description="Position-independent caching, OpenAI-compatible.", lifespan=lifespan)
    app.state.service = service
    app.include_router(router)
    app.add_exception_handler(HypicError, _on_hypic_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_body)
    app.add_exception_handler(StarletteHTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_fault)
    app.add_middleware(BodyLimit, max_body_bytes=max_body_bytes)
    return app


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceDep = Annotated[Service, Depends(_service)]


@router.post("/v1/chat/completions", response_model=ChatCompletion, response_model_exclude_none=False)
async def chat_completions(body: ChatBody, service: ServiceDep) -> Any:
    """Answer a chat over documents. With `stream`, server-sent events of `chat.completion.chunk`."""
    model = service.served
    answer = await start(service.dispatcher, model, body)
    if body.stream:
        headers = {"Cache-Control": "no-cache"}
        return StreamingResponse(events(answer, model, body), media_type="text/event-stream", headers=headers)
    return JSONResponse((await whole(answer, model, body)).model_dump())


@router.get("/v1/models")
async def models(service: ServiceDep) -> ModelList:
    """The one model that is served."""
    model = service.served
    return ModelList(data=[Model(id=model.id, created=model.created)])


@router.get("/health", responses={503: {"model": HealthBody}})
async def health(service: ServiceDep) -> Any:
    """200 while requests can be answered; "degraded" where some workers are missing."""
    state = await service.dispatcher.health() if service.model else Health(False, {})
    if not state.serving:
        body = HealthBody(status="unavailable", workers=state.workers)
        return JSONResponse(body.model_dump(), 503, headers={"Retry-After": str(RETRY_SECONDS)})
    complete = all(status == "ok" for status in state.workers.values())
    return JSONResponse(HealthBody(status="ok" if complete else "degraded", workers=state.workers).model_dump())


class BodyLimit:
    """Refuses bodies over a limit with 413, by their announced length or as they come in."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app, self._max_body_bytes = app, max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._max_body_bytes:
            await _error(413, self._message(), "body_too_large")(scope, receive, send)
            return
        received_bytes = 0

        async def counted() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > self._max_body_bytes:
                raise HTTPException(413, self._message())
            return message

        await self._app(scope, counted, send)

    def _message(self) -> str:
        return f"the body is larger than {self._max_body_bytes} bytes: send fewer documents in one request"


async def _on_hypic_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HypicError)
    headers = {"Retry-After": str(error.retry_after_seconds)} if isinstance(error, UnavailableError) else None
    return JSONResponse(error_body(error).model_dump(), error.status, headers=headers)


async def _on_invalid_body(request: Request, error: Exception) -> JSONResponse:
    """Bad JSON or a wrong type is the client's: 400, naming the field. What was sent is not echoed."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return _error(400, f"the body is not JSON: {first.get('ctx', {}).get('error', '')}", "invalid_json")
    param = _param(first["loc"])
    return _error(400, f"{param or 'body'}: {first['msg']}", "invalid_value", param)


async def _on_http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    codes = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}
    return _error(error.status_code, str(error.detail), codes.get(error.status_code, "invalid_request"))


async def _on_fault(request: Request, error: Exception) -> JSONResponse:
    _log.error("unhandled fault in %s %s", request.method, request.url.path, exc_info=error)
    return JSONResponse(error_body(error).model_dump(), 500)


def _error(status: int, message: str, code: str, param: str | None = None) -> JSONResponse:
    kind = "invalid_request_error" if status < 500 else "server_error"
    detail = ErrorDetail(message=message, type=kind, param=param, code=code)
    return JSONResponse(ErrorBody(error=detail).model_dump(), status)


def _param(location: tuple[int | str, ...]) -> str | None:
    """("body", "messages", 0, "role") as messages[0].role; which type of a union was tried is left out."""
    path = ""
    for step in location[1:]:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step.isidentifier() and step != "str":
            path += f".{step}"
    return path.removeprefix(".") or None
