"""An HTTP service over workers in this process, and what tests of its routes ask of answers."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from starlette.testclient import TestClient

from hypic.config import ServerConfig
from hypic.router.api import build_api
from hypic.router.dispatcher import Dispatcher
from hypic.router.keys import ApiKeys
from hypic.router.service import ServedModel, Service

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
QUESTION = [{"role": "user", "content": "what?"}]
DOCUMENTS = [
    {"id": "a", "title": "First", "text": "the blue key is in the red box by the door"},
    {"text": "a second text, which is somewhat longer than the first one is"},
]
BODY: dict[str, Any] = {"messages": QUESTION, "documents": DOCUMENTS, "max_tokens": 8}

SMALL = ServerConfig(
    max_body_bytes=3 * 1024**2,
    max_open_body_bytes=3 * 1024**2,
    max_documents=40,
    max_segments=50,
    max_messages=60,
    max_document_bytes=1_500_000,
    max_prompts=4,
    max_choices=4,
    max_top_logprobs=5,
)
"""Limits that tests can reach."""


def app_over(
    combine: Any, scatter: Any, model: ServedModel, config: ServerConfig = SMALL, keys: ApiKeys | None = None
) -> Any:
    """The application over one combine worker."""
    return build_api(Service(Dispatcher(scatter, [combine]), lambda max_tokens: model, config, keys))


@contextmanager
def client_of(app: Any, **headers: str) -> Iterator[TestClient]:
    """A client of an application that has found its workers."""
    with TestClient(app, raise_server_exceptions=False, headers=headers) as client:
        while client.get("/v1/models").status_code == 503:
            time.sleep(0.01)
        yield client


@contextmanager
def listening(app: Any) -> Iterator[str]:
    """The URL of an application that has found its workers, on a socket of this machine."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        while httpx.get(f"{url}/health", timeout=60).status_code == 503:
            time.sleep(0.01)
        yield url
    finally:
        server.should_exit = True
        thread.join(timeout=30)
    assert not thread.is_alive(), "the server did not stop"


def text_of(response: Any) -> str:
    """The first answer."""
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def events_of(response: Any) -> list[Any]:
    """What a stream said, in order."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    payloads = [line.removeprefix("data: ") for line in lines]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]


def check_envelope(response: Any, status: int, code: str) -> dict[str, Any]:
    """That an answer is an error in OpenAI's envelope; the error."""
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code, error
    assert error["message"]
    assert (error["type"] == "server_error") == (status >= 500)
    return error


def cached_tokens(answer: dict[str, Any]) -> int:
    """Of an answer's usage."""
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert isinstance(cached, int)
    return cached
