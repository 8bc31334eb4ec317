"""Bodies as strict JSON: a key stands once in an object, and numbers are numbers.

Python takes the last of two equal keys, other parsers take the first: a gateway and this server could then see two
different requests in one body. It also takes NaN and Infinity, which JSON has not.
"""

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute


class StrictRequest(Request):
    """A request whose `json` is strict. Raises json.JSONDecodeError, which the route answers with 400."""

    async def json(self) -> Any:
        try:
            text = (
                await self.body()
            ).decode()  # json.loads itself would take UTF-16 and UTF-32, which JSON is not sent in
            return json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
        except json.JSONDecodeError:
            raise
        except RecursionError as error:
            raise _fault("it is nested too deeply") from error
        except ValueError as error:  # bytes that are no UTF-8; numbers of thousands of digits
            raise _fault("it is not in UTF-8, or has a number too long") from error


class StrictRoute(APIRoute):
    """A route whose bodies are strict JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return strict


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _fault("a key stands twice in one object")
    return found


def _no_number(name: str) -> None:
    raise _fault(f"{name} is not a number in JSON")


def _fault(message: str) -> json.JSONDecodeError:
    return json.JSONDecodeError(message, "", 0)
