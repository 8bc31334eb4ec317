"""Faults behind the interface: workers that are lost, in mid stream, before, or that never came."""

from typing import Any

from http_service import BODY, CHAT, QUESTION, app_over, check_envelope, client_of, events_of
from starlette.testclient import TestClient

from hypic.request import GenerationRequest
from hypic.router.service import ServedModel
from hypic.workers.combine import CombineWorker
from hypic.workers.ports import Opened, Tokens, WorkerLostError


class Torn:
    """A combine worker that is lost after three tokens, or before anything."""

    def __init__(self, inner: CombineWorker, after_tokens: int) -> None:
        self.name, self._inner, self._after_tokens = "combine-0", inner, after_tokens
        self.hello, self.stats, self.deliver, self.abort = inner.hello, inner.stats, inner.deliver, inner.abort

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
