"""Server-sent events: how a stream is framed, and how it ends when something goes wrong."""

import json
import logging
from collections.abc import AsyncGenerator
from typing import Any

from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from hypic.errors import HypicError
from hypic.router.bodies.shared import ErrorBody
from hypic.router.faults import error_body
from hypic.router.observation import Observation, error_code, observation_of

MEDIA_TYPE = "text/event-stream"

DONE = "data: [DONE]\n\n"

_log = logging.getLogger(__name__)


def event(value: BaseModel | dict[str, Any]) -> str:
    """One event; a body is written as it is, without fields that nobody set."""
    data = value.model_dump_json() if isinstance(value, BaseModel) else json.dumps(value, ensure_ascii=False)
    return f"data: {data}\n\n"


class EventStream(StreamingResponse):
    """An answer of events. A fault ends it with an error event and no [DONE]: the text so far is not the answer."""

    def __init__(self, events: AsyncGenerator[str, None]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(self._told(events), media_type=MEDIA_TYPE, headers=headers)
        self._observation: Observation | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._observation = observation_of(scope)
        await super().__call__(scope, receive, send)

    async def _told(self, events: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
        try:
            async for text in events:
                yield text
        except Exception as error:
            if not isinstance(error, HypicError):
                _log.error("a stream broke off", exc_info=error)
            assert self._observation is not None, "events are asked for by the answer alone"
            self._observation.code = error_code(error)
            yield event(error_body(error))
        finally:
            await events.aclose()


def schema(description: str, *bodies: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """What the OpenAPI schema says of a 200 that may be a stream of `bodies`; the response model is its other form."""
    every: list[type[BaseModel]] = [*bodies, ErrorBody]
    names = [body.__name__ for body in every]
    bodies_schema = {"anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in names]}
    said = {"type": "string", "contentMediaType": "application/json", "contentSchema": bodies_schema}
    data = {"anyOf": [{"const": "[DONE]"}, said], "description": f"{' or '.join(names)}; [DONE] ends what is whole"}
    event_schema = {"type": "object", "required": ["data"], "properties": {"data": data}}
    return {200: {"description": description, "content": {MEDIA_TYPE: {"schema": event_schema}}}}
