"""The outermost layer of the application: it gives every request an id, and tells the observers when it is over."""

import re
from collections.abc import Sequence

from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hypic.router.faults import error_response, fault_response
from hypic.router.guards import TENANT
from hypic.router.keys import Tenant
from hypic.router.observation import Observation, Observations, observe
from hypic.router.prompts import identifier

REQUEST_ID = "X-Request-Id"

_PROPER = re.compile(rb"[A-Za-z0-9._:-]{1,128}")

_TRACE = (b"traceparent", b"tracestate")


class Watch:
    """Observes requests. Ids are the client's (up to 128 letters, digits and `._:-`; another is a 400), or made up."""

    def __init__(self, app: ASGIApp, observations: Observations, routes: Sequence[BaseRoute], send_id: bool) -> None:
        """routes: whose templates are told. send_id: False behind Ray Serve's proxy, which sends the header itself, and
        the same id in it."""
        self._app, self._observations, self._send_id = app, observations, send_id
        self._routes = [route for route in routes if isinstance(route, Route)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = [value for name, value in scope["headers"] if name == REQUEST_ID.lower().encode()]
        proper = not asked or (len(asked) == 1 and _PROPER.fullmatch(asked[0]) is not None)
        request_id = asked[0].decode() if asked and proper else identifier("req")
        observation = Observation(request_id, _trace_of(scope))
        observe(scope, observation)
        self._observations.add(observation)

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                observation.status = message["status"]
                if self._send_id:
                    MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)
            observation.complete = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            if proper:
                await self._app(scope, receive, watched)
            else:
                told = f"{REQUEST_ID}: up to 128 letters, digits and ._:- are taken, once"
                await error_response(400, told, "invalid_value", REQUEST_ID)(scope, receive, watched)
        except Exception as error:  # what no handler took
            if observation.status:
                raise  # the answer has begun, and cannot be another
            await fault_response(Request(scope), error)(scope, receive, watched)
        finally:
            tenant: Tenant | None = scope.get(TENANT)
            ended = observation.end(scope["method"], self._route_of(scope), tenant.name if tenant else "")
            self._observations.remove(observation, ended)

    def _route_of(self, scope: Scope) -> str:
        """The template of the path, also of a request that was refused before it was routed."""
        matching = (route.path for route in self._routes if route.matches(scope)[0] != Match.NONE)
        return next(matching, "")


def _trace_of(scope: Scope) -> dict[str, str]:
    return {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _TRACE}
