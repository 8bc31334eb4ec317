"""Server-sent events: how a stream is framed, and how it ends when something goes wrong."""

import json
import logging
from collections.abc import AsyncGenerator
from typing import Any

from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from hypic.errors import HypicError
from hypic.router.faults import error_body

MEDIA_TYPE = "text/event-stream"

DONE = "data: [DONE]\n\n"

_log = logging.getLogger(__name__)


def event(value: BaseModel | dict[str, Any]) -> str:
    """One event; a body is written as it is, without fields that nobody set."""
    data = value.model_dump_json() if isinstance(value, BaseModel) else json.dumps(value, ensure_ascii=False)
    return f"data: {data}\n\n"


def streamed(events: AsyncGenerator[str, None]) -> StreamingResponse:
    """An answer of events. A fault ends it with an error event and no [DONE]: the text so far is not the answer."""
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(_told(events), media_type=MEDIA_TYPE, headers=headers)


def schema(body: type[BaseModel], description: str) -> dict[int | str, dict[str, Any]]:
    """What the OpenAPI schema says of a 200 that may be a stream; the route's response model is its other form."""
    name = body.__name__
    content = {MEDIA_TYPE: {"schema": {"type": "string", "description": f"`data: ` lines, each a {name}, then [DONE]"}}}
    return {200: {"description": description, "content": content}}


async def _told(events: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
    try:
        async for text in events:
            yield text
    except HypicError as error:
        yield event(error_body(error))
    except Exception as error:
        _log.error("a stream broke off", exc_info=error)
        yield event(error_body(error))
    finally:
        await events.aclose()
