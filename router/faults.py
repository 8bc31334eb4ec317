"""Errors as HTTP sees them: OpenAI's envelope around every answer above 399, whatever went wrong."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from hypic.errors import DeadlineError, HypicError, InvalidRequestError, UnavailableError
from hypic.router.bodies.shared import ErrorBody, ErrorDetail
from hypic.router.observation import observation_of

_log = logging.getLogger(__name__)

_CODES = {
    404: "not_found",
    405: "method_not_allowed",
    408: "body_too_slow",
    413: "body_too_large",
    429: "too_many_requests",
}

_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}

ANSWERS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text}
    for status, text in {
        400: "The request cannot be served as it is; `param` names the field (what other servers answer with 422 too)",
        401: "No key, or one that is not known",
        403: "The key may not do this",
        404: "No such model, segment or route",
        405: "The route has another method",
        408: "The request's own timeout, or the body came in too slowly",
        409: "The segment is in use; try again",
        413: "The body is too large",
        429: "More is waiting than can be done in time; see Retry-After",
        500: "A fault of the server",
        503: "No worker is there; see Retry-After",
    }.items()
}
"""What the schema says of errors, for every route but /health; 422 does not occur."""


class ParameterError(InvalidRequestError):
    """One named field of the request cannot be served."""

    def __init__(self, message: str, param: str | None, code: str = "invalid_value", status: int = 400) -> None:
        super().__init__(message)
        self.param, self.code, self.status = param, code, status


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors that a route can answer with."""
    return {status: ANSWERS[status] for status in (*statuses, 401, 405, 500)}


def error_body(error: Exception) -> ErrorBody:
    """The envelope. What is not ours to explain is called internal, without its details."""
    if not isinstance(error, HypicError):
        return ErrorBody(error=ErrorDetail(message="internal error", type="server_error", code="internal_error"))
    param = getattr(error, "param", None)
    return ErrorBody(error=ErrorDetail(message=str(error), type=_kind(error.status), param=param, code=error.code))


class ErrorResponse(JSONResponse):
    """The envelope as an answer; whoever observes the request finds its code."""

    def __init__(self, body: ErrorBody, status: int, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(body.model_dump(), status, headers)
        self._code = body.error.code or ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        observation_of(scope).code = self._code
        await super().__call__(scope, receive, send)


def error_response(status: int, message: str, code: str, param: str | None = None) -> ErrorResponse:
    """The envelope around what went wrong."""
    detail = ErrorDetail(message=message, type=_kind(status), param=param, code=code)
    return ErrorResponse(ErrorBody(error=detail), status)


def fault_response(request: Request, error: Exception) -> ErrorResponse:
    """The envelope around what nobody foresaw."""
    _log.error("unhandled fault in %s %s", request.method, request.url.path, exc_info=error)
    return ErrorResponse(error_body(error), 500)


def install(app: FastAPI) -> None:
    """Have an application answer every error in the envelope; what has no handler here is answered by `Watch`."""
    handlers: dict[type[Exception], Callable[[Request, Any], Any]] = {
        HypicError: _on_hypic_error,
        RequestValidationError: _on_invalid,
        HTTPException: _on_http_error,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


def _kind(status: int) -> str:
    return "server_error" if status >= 500 else _KINDS.get(status, "invalid_request_error")


async def _on_hypic_error(request: Request, error: HypicError) -> ErrorResponse:
    seconds = getattr(error, "retry_after_seconds", None)
    headers = {"Retry-After": str(seconds)} if seconds is not None else {}
    if isinstance(error, DeadlineError):
        headers["X-Should-Retry"] = "false"  # OpenAI's clients take 408 for a reason to do the same work twice more
    if error.status >= 500 and not isinstance(error, UnavailableError):
        _log.error("fault in %s %s", request.method, request.url.path, exc_info=error)
    return ErrorResponse(error_body(error), error.status, headers)


async def _on_invalid(request: Request, error: RequestValidationError) -> ErrorResponse:
    """Bad JSON or a wrong type is the client's: 400, naming the field. What was sent is not echoed."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return error_response(400, f"the body is not JSON: {first.get('ctx', {}).get('error', '')}", "invalid_json")
    param = _param(first["loc"])
    if param is None and "json" not in request.headers.get("content-type", ""):
        return error_response(
            400, "the body is not announced as JSON: send Content-Type: application/json", "invalid_json"
        )
    if first["type"] == "extra_forbidden":
        message = f"{param}: there is no such field; leave it out, or see /docs for those there are"
        return error_response(400, message, "unknown_parameter", param)
    return error_response(400, f"{param or 'body'}: {first['msg']}", "invalid_value", param)


async def _on_http_error(request: Request, error: HTTPException) -> ErrorResponse:
    response = error_response(error.status_code, str(error.detail), _CODES.get(error.status_code, "invalid_request"))
    response.headers.update(error.headers or {})
    return response


def _param(location: tuple[int | str, ...]) -> str | None:
    """("body", "messages", 0, "role") as messages[0].role; which type of a union was tried is left out."""
    path = ""
    for step in location[1:]:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not any(mark in step for mark in "([") and step not in ("str", "int", "float", "bool", "none"):
            path += f".{ascii(step)[1:-1]:.64}"
    return path.removeprefix(".") or None
