"""GET /metrics: what is counted, and what never becomes a label."""

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from http_service import BODY, CHAT, COMPLETIONS, app_over, check_envelope, client_of
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from hypic.config import EngineConfig
from hypic.router.keys import ApiKeys, Tenant
from hypic.router.metrics import Metrics
from hypic.router.observation import Observation, Run
from hypic.router.record import BuildRecord
from hypic.router.service import ServedModel
from hypic.workers.combine import CombineWorker

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

ARMS = {"full", "prefix", "addition", "last_state", "transition", "hypic", "anchored"}


def samples(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


KINDS = ("segment", "full", "state")


def value(found: Samples, name: str, **labels: str) -> float:
    return found.get((f"hypic:{name}", frozenset(labels.items())), 0.0)


@pytest.fixture(scope="module")
def counted(combine: CombineWorker, scatter_ports: Any, model: ServedModel) -> Iterator[TestClient]:
    for port in scatter_ports:
        port.broken = False
    with client_of(app_over(combine, scatter_ports, model)) as client:
        yield client


def scrape(client: TestClient) -> Samples:
    response = client.get("/metrics")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return samples(response.text)


def test_a_cold_and_a_warm_answer_are_counted_as_what_they_are(counted: TestClient) -> None:
    body, before = {**BODY, "cache_salt": "metrics"}, scrape(counted)
    usages = [counted.post(CHAT, json=body).json()["usage"] for _ in range(2)]
    after = scrape(counted)

    def grown(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    cached = usages[1]["prompt_tokens_details"]["cached_tokens"]
    assert usages[0]["prompt_tokens_details"]["cached_tokens"] == 0 < cached
    assert grown("prompt_tokens_total") == sum(usage["prompt_tokens"] for usage in usages)
    assert grown("generation_tokens_total") == 16
    assert sum(grown("cached_tokens_total", source=source) for source in ("prefix", "segment", "build")) == cached
    assert grown("prefix_cache_hits_total") == grown("cached_tokens_total", source="prefix") > 0
    assert grown("segments_total", source="build", reason="cold") == 2
    assert grown("seam_tokens_total") == 16
    assert grown("built_tokens_total") > 0
    assert grown("request_success_total", finished_reason="length") == 2
    for name in ("time_to_first_token", "e2e_request_latency", "combine", "reserve", "request_decode_time"):
        assert grown(f"{name}_seconds_count") == 2, name
    assert grown("inter_token_latency_seconds_count") == 14
    assert grown("dispatch_seconds_count") == 1
    assert grown("build_seconds_count") == grown("transfer_seconds_count") == 2
    assert grown("transfer_bytes_total", sender="scatter") > 0
    assert grown("http_requests_total", handler=CHAT, method="POST", status="200") == 2


def test_refusals_count_as_http_alone(counted: TestClient) -> None:
    before = scrape(counted)
    counted.post(CHAT, json={**BODY, "n": 0})
    after = scrape(counted)
    name = {"handler": CHAT, "method": "POST", "status": "400"}
    assert value(after, "http_requests_total", **name) == value(before, "http_requests_total", **name) + 1
    assert value(after, "http_errors_total", code="invalid_value") > value(
        before, "http_errors_total", code="invalid_value"
    )
    assert value(after, "prompt_tokens_total") == value(before, "prompt_tokens_total")


def test_a_segment_that_does_not_come_is_a_fallback_by_cause(counted: TestClient, scatter_ports: Any) -> None:
    before = scrape(counted)
    for port in scatter_ports:
        port.broken = True
    counted.post(CHAT, json={**BODY, "cache_salt": "fallback", "max_tokens": 1})
    for port in scatter_ports:
        port.broken = False
    after = scrape(counted)
    assert value(after, "fallbacks_total", cause="late") == value(before, "fallbacks_total", cause="late") + 2
    assert value(after, "worker_up", worker="combine-0", role="combine") == 1


def test_workers_say_what_they_hold(counted: TestClient) -> None:
    counted.post(CHAT, json={**BODY, "cache_salt": "held"})
    found = scrape(counted)
    held = {kind: value(found, "cache_bytes", worker="combine-0", tier="device", kind=kind) for kind in KINDS}
    assert all(held.values()), held
    budget = EngineConfig().cache_bytes
    assert sum(held.values()) / budget == pytest.approx(
        value(found, "kv_cache_usage_perc", worker="combine-0", tier="device")
    )
    assert value(found, "cache_entries", worker="combine-0", tier="device", kind="segment") >= 2
    assert value(found, "worker_leases", worker="combine-0") == 0
    assert value(found, "num_requests_running") == value(found, "num_requests_waiting") == 0


ODD: list[Any] = [
    lambda c: c.get("/zq-path/zq"),
    lambda c: c.request("ZQMETHOD", CHAT),
    lambda c: c.request("zq", "/zq"),
    lambda c: c.post(CHAT, json={**BODY, "model": "zq-model"}),
    lambda c: c.post(CHAT, json={**BODY, "zq-field": 1}),
    lambda c: c.post(CHAT, json={**BODY, "hypic": {"arm": "zq-arm"}}),
    lambda c: c.post(CHAT, json={**BODY, "max_tokens": 1, "session_id": "zq-s", "cache_salt": "zq-salt", "user": "z"}),
    lambda c: c.post(COMPLETIONS, json={"prompt": "zq text<<PIC_SEP>>zq", "max_tokens": 1, "stop": "zq"}),
    lambda c: c.post("/v1/segments", json={"documents": [{"id": "zq-id", "title": "zq", "text": "zq " * 30}]}),
    lambda c: c.delete("/v1/segments/zq"),
    lambda c: c.get("/health", headers={"X-Request-Id": "zq-1"}),
    lambda c: c.get("/health", headers={"X-Request-Id": "zq 1"}),
    lambda c: c.post("/close_session", json={"session_id": "zq"}),
]  # fmt: skip


def test_nothing_of_a_client_becomes_a_label(counted: TestClient, model: ServedModel) -> None:
    for ask in ODD * 2:  # cold, then warm
        ask(counted)
    found = scrape(counted)
    values: dict[str, set[str]] = {}
    for _, labels in found:
        for name, text in labels:
            values.setdefault(name, set()).add(text)
    assert not any("zq" in text.lower() or model.id == text for texts in values.values() for text in texts), values
    del values["le"], values["version"]
    assert set(values) == {
        "handler", "method", "status", "code", "finished_reason", "source", "reason", "cause",
        "worker", "role", "store", "outcome", "tier", "kind", "sender",
    }  # fmt: skip
    assert values["method"] <= {"GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS", "other"}
    assert {"none", CHAT, "/v1/segments/{segment_id}"} <= values["handler"]
    assert values["worker"] == {"combine-0", "scatter-0", "scatter-1"}
    before = len(found)
    for ask in ODD:
        ask(counted)
    assert len(scrape(counted)) == before, "the same odd requests make no new series"


def test_metrics_are_for_operators(combine: CombineWorker, model: ServedModel) -> None:
    hashes = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("op", "user")}
    keys = ApiKeys({hashes["op"]: Tenant("ops", True), hashes["user"]: Tenant("acme", False)})
    with TestClient(app_over(combine, [], model, keys=keys), raise_server_exceptions=False) as client:
        check_envelope(client.get("/metrics"), 401, "invalid_api_key")
        check_envelope(client.get("/metrics", headers={"Authorization": "Bearer user"}), 403, "operator_only")
        assert client.get("/metrics", headers={"Authorization": "Bearer op"}).status_code == 200


def build(worker: str, seconds: float, waited: float) -> BuildRecord:
    return BuildRecord("k", 10, worker, seconds / 2, seconds, 0.1, 100, waited)


def test_skew_and_makespan_of_a_scattered_prompt(make_request: Any) -> None:
    metrics, run = Metrics("1"), Run(make_request("r", "a document"))
    run.record.builds += [build("a", 3.0, 3.5), build("b", 1.0, 1.5), build("b", 2.0, 3.6)]
    run.record.builds.append(BuildRecord("k", 10, "combine-0", 0.0, 0.0, 0.0, 0, 9.0, "TimeoutError: zq", "late"))
    run.record.builds.append(BuildRecord("k", 10, "combine-1", 0.0, 0.0, 0.1, 50, 8.0, pulled=True))
    observation = Observation("a", status=503, code="unavailable", runs=[run])
    metrics.ended(observation.end("POST", CHAT, ""))
    found = samples(metrics.text().decode())
    assert value(found, "scatter_makespan_seconds_sum") == 3.6
    assert value(found, "scatter_skew_ratio_sum") == 1.0
    assert value(found, "build_prediction_ratio_sum") == 6.0
    assert value(found, "transfer_bytes_total", sender="scatter") == 300
    assert value(found, "transfer_bytes_total", sender="combine") == 50
    assert value(found, "pulled_segments_total") == 1
    assert value(found, "build_seconds_count") == 3
    assert value(found, "fallbacks_total", cause="late") == 1
    assert value(found, "request_success_total", finished_reason="abort") == 1
    assert value(found, "prompt_tokens_total") == 0
