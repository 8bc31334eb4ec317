"""Faults behind the interface: workers that are lost, in mid stream, before, or that never came."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
from http_service import (
    BODY,
    CHAT,
    COMPLETIONS,
    QUESTION,
    SMALL,
    app_over,
    check_envelope,
    client_of,
    events_of,
    listening,
)
from starlette.testclient import TestClient

from hypic.errors import OverloadedError
from hypic.request import GenerationRequest
from hypic.router.service import ServedModel
from hypic.workers.combine import CombineWorker
from hypic.workers.ports import Opened, Tokens, WorkerLostError


class Torn:
    """A combine worker that is lost after three tokens, or before anything."""

    def __init__(self, inner: CombineWorker, after_tokens: int) -> None:
        self.name, self._inner, self._after_tokens = "combine-0", inner, after_tokens
        self.hello, self.stats, self.deliver, self.abort = inner.hello, inner.stats, inner.deliver, inner.abort
        self.changes, self.holdings = inner.changes, inner.holdings

    async def generate(self, request: GenerationRequest) -> Any:
        seen = 0
        async for message in self._inner.generate(request):
            assert isinstance(message, Opened | Tokens)
            seen += isinstance(message, Tokens)
            if seen > self._after_tokens or self._after_tokens == 0:
                raise WorkerLostError("combine-0 is gone")
            yield message


def test_a_fault_in_mid_stream_ends_it_with_an_error(combine: CombineWorker, model: ServedModel) -> None:
    with client_of(app_over(Torn(combine, 3), [], model)) as client:
        body = {"messages": QUESTION, "max_tokens": 8}
        *chunks, last = events_of(client.post(CHAT, json={**body, "stream": True}))
        check_envelope(client.post(CHAT, json=body), 503, "worker_lost")
    assert "error" in last
    assert last["error"]["code"] == "worker_lost"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)


def test_without_workers_503_says_when_to_try_again(combine: CombineWorker, model: ServedModel) -> None:
    with client_of(app_over(Torn(combine, 0), [], model)) as client:
        response = client.post(CHAT, json={"messages": QUESTION, "stream": True})
    check_envelope(response, 503, "unavailable")
    assert int(response.headers["Retry-After"]) > 0


class Held:
    """A combine worker that begins no answer before it is told to."""

    def __init__(self, inner: CombineWorker) -> None:
        self.name, self.go, self.begun = "combine-0", threading.Event(), 0
        self.hello, self.stats, self.deliver, self.abort = inner.hello, inner.stats, inner.deliver, inner.abort
        self.changes, self.holdings, self.build_here = inner.changes, inner.holdings, inner.build_here
        self._inner = inner

    async def generate(self, request: GenerationRequest) -> Any:
        self.begun += 1
        while not self.go.is_set():
            await asyncio.sleep(0.005)
        async for message in self._inner.generate(request):
            yield message


def test_more_than_the_server_takes_is_refused_at_once(combine: CombineWorker, model: ServedModel) -> None:
    """With a word on when to try again; what is on its way is not harmed, and its end makes room."""
    held, body = Held(combine), {"messages": QUESTION, "max_tokens": 8}
    config = replace(SMALL, max_requests=2)
    with (
        listening(app_over(held, [], model, config)) as url,
        ThreadPoolExecutor(2) as pool,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        bodies = [{**body, "stream": True}, body]
        running = [pool.submit(httpx.post, url + CHAT, json=asked, timeout=60) for asked in bodies]
        try:
            while held.begun < 2:
                time.sleep(0.005)
            for path in (CHAT, COMPLETIONS, "/generate", "/v1/segments"):
                refused = client.post(path, content=b"{never read")
                check_envelope(refused, 429, "too_many_requests")
                assert int(refused.headers["Retry-After"]) > 0
            assert client.get("/health").status_code == 200
            assert client.get("/v1/models").status_code == 200
        finally:
            held.go.set()
        assert [future.result().status_code for future in running] == [200, 200]
        assert client.post(CHAT, json=body).status_code == 200


def test_a_client_that_leaves_makes_room(combine: CombineWorker, model: ServedModel) -> None:
    held, body = Held(combine), {"messages": QUESTION, "max_tokens": 8, "stream": True}
    config = replace(SMALL, max_requests=1)
    with listening(app_over(held, [], model, config)) as url, httpx.Client(base_url=url, timeout=60) as client:
        held.go.set()
        with client.stream("POST", CHAT, json={**body, "max_tokens": 3000}) as response:
            lines = response.iter_lines()
            next(lines)
            assert httpx.post(url + CHAT, json=body).status_code == 429
        deadline = time.monotonic() + 20
        while (answer := client.post(CHAT, json=body)).status_code == 429:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert answer.status_code == 200


class Full(Torn):
    """A combine worker whose queue is full."""

    async def generate(self, request: GenerationRequest) -> Any:
        raise OverloadedError("the queue is full", 7)
        yield


def test_a_full_queue_is_429_and_says_when_to_try_again(combine: CombineWorker, model: ServedModel) -> None:
    with client_of(app_over(Full(combine, 0), [], model)) as client:
        response = client.post(CHAT, json={"messages": QUESTION, "stream": True})
    check_envelope(response, 429, "overloaded")
    assert response.headers["Retry-After"] == "7"


class Absent:
    """A combine worker that has not started yet."""

    name = "combine-0"

    async def hello(self) -> Any:
        raise WorkerLostError("combine-0 is not there")


def test_before_the_workers_are_there_everything_says_503(model: ServedModel) -> None:
    with TestClient(app_over(Absent(), [], model), raise_server_exceptions=False) as client:
        health = client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "unavailable")
        for response in (client.get("/v1/models"), client.post(CHAT, json=BODY)):
            check_envelope(response, 503, "unavailable")
            assert int(response.headers["Retry-After"]) > 0
