"""What stands in front of every route: who is it, is there room, is the body small and quick enough. Plain ASGI, so
that nothing is read or parsed of a request that is refused."""

import asyncio
from collections.abc import Awaitable, Callable

from fastapi import HTTPException, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hypic.router.faults import ParameterError, error_response
from hypic.router.keys import ApiKeys, Tenant
from hypic.router.playground.route import PATHS as PLAYGROUND_PATHS

OPEN_PATHS = frozenset({"/health", *PLAYGROUND_PATHS})
"""What is answered without a key: whether the server is well, and the page, which asks with the user's key."""

WORK_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/generate", "/v1/segments"})
"""What is answered by the workers' work; the rest is answered however much of that there is."""

TENANT = "hypic.tenant"
"""Where the guard leaves who it is, in the ASGI scope."""


class Doorkeeper:
    """Asks for an API key, as `Authorization: Bearer KEY`, where there are keys; 401 without a known one."""

    def __init__(self, app: ASGIApp, keys: ApiKeys | None) -> None:
        self._app, self._keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            tenant = Tenant() if self._keys is None else self._known(scope, self._keys)
            if tenant is None and scope["path"] not in OPEN_PATHS:
                message = "no API key was sent, or one that is not known: send Authorization: Bearer KEY"
                response = error_response(401, message, "invalid_api_key")
                response.headers["WWW-Authenticate"] = "Bearer"
                await response(scope, receive, send)
                return
            scope[TENANT] = tenant
        await self._app(scope, receive, send)

    def _known(self, scope: Scope, keys: ApiKeys) -> Tenant | None:
        sent = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(sent) != 1:
            return None
        scheme, _, key = sent[0].decode("latin-1").partition(" ")
        return keys.tenant(key.strip()) if scheme.lower() == "bearer" else None


class Admission:
    """Refuses work (429) while as much as the server takes is on its way: what waits longer than its client does is
    better said so at once. A request counts until its answer has been sent, or its client has gone."""

    def __init__(self, app: ASGIApp, max_requests: int) -> None:
        self._app, self._max_requests = app, max_requests
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in WORK_PATHS:
            await self._app(scope, receive, send)
            return
        if self._open >= self._max_requests:
            message = f"{self._max_requests} requests are on their way, which is what the server takes: try again soon"
            response = error_response(429, message, "too_many_requests")
            response.headers["Retry-After"] = "1"
            await response(scope, receive, send)
            return
        self._open += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._open -= 1


class BodyLimit:
    """Refuses bodies that are too large (413), too slow (408), or too many at once (429)."""

    def __init__(self, app: ASGIApp, max_body_bytes: int, max_open_body_bytes: int, body_seconds: float) -> None:
        self._app, self._body_seconds = app, body_seconds
        self._max_body_bytes, self._max_open_body_bytes = max_body_bytes, max_open_body_bytes
        self._open_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and (len(announced) > 18 or int(announced) > self._max_body_bytes):
            await error_response(413, self._too_large(), "body_too_large")(scope, receive, send)
            return
        body = _Body(receive, self._take, self._body_seconds)
        try:
            await self._app(scope, body.receive, send)
        finally:
            self._open_bytes -= body.received_bytes

    def _take(self, before_bytes: int, more_bytes: int) -> None:
        """Count what came in. Raises HTTPException where it is too much, of one body or of all."""
        if before_bytes + more_bytes > self._max_body_bytes:
            raise HTTPException(413, self._too_large())
        if self._open_bytes + more_bytes > self._max_open_body_bytes:
            message = "the bodies of all open requests are more than the server holds: try again soon"
            raise HTTPException(429, message, {"Retry-After": "1"})
        self._open_bytes += more_bytes

    def _too_large(self) -> str:
        return f"the body is larger than {self._max_body_bytes} bytes: send fewer documents in one request"


class _Body:
    """The body of one request as it comes in."""

    def __init__(self, receive: Receive, take: Callable[[int, int], None], seconds: float) -> None:
        self._receive, self._take = receive, take
        self._ends = asyncio.get_running_loop().time() + seconds
        self._whole = False
        self.received_bytes = 0

    async def receive(self) -> Message:
        """The next message; how long the client may take counts for the body alone, not for the answer."""
        if self._whole:
            return await self._receive()
        message = await self._in_time(self._receive())
        piece = len(message.get("body", b""))
        self._take(self.received_bytes, piece)
        self.received_bytes += piece
        self._whole = not message.get("more_body", False)
        return message

    async def _in_time(self, message: Awaitable[Message]) -> Message:
        try:
            async with asyncio.timeout_at(self._ends):
                return await message
        except TimeoutError as error:
            raise HTTPException(408, "the body came in too slowly") from error


def caller(request: Request) -> Tenant:
    """Who sent a request."""
    tenant: Tenant = request.scope[TENANT]
    return tenant


def operator(request: Request) -> Tenant:
    """Who sent a request that concerns all tenants. Raises ParameterError (403) for those who may not."""
    tenant = caller(request)
    if not tenant.operator:
        raise ParameterError("this key may not do that: it is for operators", None, "operator_only", 403)
    return tenant
