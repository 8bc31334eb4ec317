"""Every request is told of once, however it ends, and has an id."""

from collections.abc import Iterator
from typing import Any

import pytest
from http_service import BODY, CHAT, COMPLETIONS, DOCUMENTS, QUESTION, app_over, check_envelope, client_of, events_of
from starlette.testclient import TestClient

from hypic.router.keys import ApiKeys, Tenant
from hypic.router.observation import CLIENT_GONE, Ended, Observation, Observations
from hypic.router.service import ServedModel
from hypic.workers.combine import CombineWorker


class Spy:
    """An observer that remembers, and fails after that."""

    def __init__(self) -> None:
        self.seen: list[Ended] = []

    def ended(self, ended: Ended) -> None:
        self.seen.append(ended)
        raise RuntimeError("an observer's own fault")

    def close(self) -> None: ...

    def one(self) -> Ended:
        (ended,) = self.seen
        self.seen.clear()
        return ended


@pytest.fixture(scope="module")
def app(combine: CombineWorker, scatter_ports: Any, model: ServedModel) -> Any:
    for port in scatter_ports:
        port.broken = False
    return app_over(combine, scatter_ports, model)


@pytest.fixture(scope="module")
def watched(app: Any) -> Iterator[TestClient]:
    with client_of(app) as client:
        yield client


@pytest.fixture
def spy(app: Any, watched: TestClient) -> Iterator[Spy]:
    found = Spy()
    observations: Observations = app.state.service.observations
    observations.observers.append(found)
    yield found
    observations.observers.remove(found)
    assert observations.runs == [], "a generation that is over is not open"


def test_an_answer_is_told_with_its_plan_and_its_tokens(watched: TestClient, spy: Spy) -> None:
    answer = watched.post(CHAT, json=BODY, headers={"X-Request-Id": "mine-1", "traceparent": "00-ab-cd-01"})
    ended = spy.one()
    assert answer.headers["X-Request-Id"] == ended.request_id == "mine-1"
    assert (ended.method, ended.route, ended.status, ended.outcome) == ("POST", CHAT, 200, "ok")
    assert ended.trace == {"traceparent": "00-ab-cd-01"}
    (run,) = ended.runs
    assert run.record.plan is not None
    assert run.record.request_id == answer.json()["id"]
    assert run.usage is not None
    assert run.usage.completion_tokens == 8
    assert (run.finishes, len(run.gaps_seconds), run.over) == (["length"], 7, True)
    assert 0 < run.record.ttft_seconds <= run.total_seconds <= ended.total_seconds


def test_every_generation_of_a_request_is_a_run_of_it(watched: TestClient, spy: Spy) -> None:
    watched.post(COMPLETIONS, json={"prompt": ["one", "two"], "n": 2, "max_tokens": 3})
    ended = spy.one()
    assert [run.finishes for run in ended.runs] == [["length", "length"]] * 2
    assert [len(run.gaps_seconds) for run in ended.runs] == [4, 4]
    watched.post("/v1/segments", json={"documents": DOCUMENTS})
    assert [run.request.build_only for run in spy.one().runs] == [True, True]
    watched.get("/health_generate")
    assert len(spy.one().runs) == 1


JSON = {"Content-Type": "application/json"}

REFUSED: dict[str, tuple[Any, int, str, str]] = {
    "a wrong value": (lambda c: c.post(CHAT, json={**BODY, "n": 0}), 400, "invalid_value", CHAT),
    "no JSON": (lambda c: c.post(CHAT, content=b"{", headers=JSON), 400, "invalid_json", CHAT),
    "too long": (lambda c: c.post(CHAT, json={**BODY, "max_tokens": 9999}), 400, "context_length_exceeded", CHAT),
    "no such route": (lambda c: c.get("/a/b"), 404, "not_found", ""),
    "no such segment": (
        lambda c: c.delete("/v1/segments/" + "0" * 64),
        404,
        "segment_not_found",
        "/v1/segments/{segment_id}",
    ),
    "another method": (lambda c: c.get(CHAT), 405, "method_not_allowed", CHAT),
    "a body too large": (lambda c: c.post(CHAT, content=b" " * 4 * 1024**2), 413, "body_too_large", CHAT),
    "an improper id": (lambda c: c.get("/health", headers={"X-Request-Id": "a b"}), 400, "invalid_value", "/health"),
    "a long id": (lambda c: c.get("/health", headers={"X-Request-Id": "a" * 129}), 400, "invalid_value", "/health"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_are_told_with_their_code(case: str, watched: TestClient, spy: Spy) -> None:
    ask, status, code, route = REFUSED[case]
    response = ask(watched)
    check_envelope(response, status, code)
    ended = spy.one()
    assert response.headers["X-Request-Id"] == ended.request_id
    assert (ended.status, ended.code, ended.route, ended.outcome) == (status, code, route, "refused")


def test_a_stream_that_breaks_off_failed(watched: TestClient, spy: Spy) -> None:
    asked = {"messages": QUESTION, "max_tokens": 3000, "timeout": 0.4, "stream": True}
    *_, last = events_of(watched.post(CHAT, json=asked))
    ended = spy.one()
    assert last["error"]["code"] == ended.code == "deadline_exceeded"
    assert (ended.status, ended.outcome, ended.runs[0].finishes) == (200, "failed", [])


def test_a_client_that_leaves_is_told_as_that() -> None:
    gone = Observation("a").end("POST", CHAT, "")
    assert (gone.status, gone.outcome) == (CLIENT_GONE, "cancelled")
    half = Observation("b", status=200).end("POST", CHAT, "")
    assert (half.status, half.outcome) == (200, "cancelled")


def test_a_fault_of_ours_is_answered_and_told(
    app: Any, watched: TestClient, spy: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a secret of the server")

    monkeypatch.setattr(app.state.service.token_cache, "clear", broken)
    response = watched.post("/flush_cache")
    assert "secret" not in check_envelope(response, 500, "internal_error")["message"]
    ended = spy.one()
    assert response.headers["X-Request-Id"] == ended.request_id
    assert (ended.status, ended.code, ended.outcome) == (500, "internal_error", "failed")


def test_tenants_are_told_by_name_and_strangers_by_none(combine: CombineWorker, model: ServedModel) -> None:
    import hashlib

    keys = ApiKeys({hashlib.sha256(b"k").hexdigest(): Tenant("acme", False)})
    app, found = app_over(combine, [], model, keys=keys), Spy()
    app.state.service.observations.observers.append(found)
    with TestClient(app, raise_server_exceptions=False) as client:
        response = client.get("/v1/models")
        assert response.headers["X-Request-Id"]
        client.get("/v1/models", headers={"Authorization": "Bearer k"})
    strange, known = found.seen
    assert (strange.tenant, strange.status, strange.code) == ("", 401, "invalid_api_key")
    assert (strange.route, known.tenant) == ("/v1/models", "acme")
