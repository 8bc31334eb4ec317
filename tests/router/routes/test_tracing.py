"""Traces, as a real collector receives them over HTTP."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from http_service import BODY, CHAT, SMALL, app_over, client_of
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from hypic.router import tracing
from hypic.router.observation import Observation, Run
from hypic.router.record import BuildRecord
from hypic.router.service import ServedModel
from hypic.router.tracing import Tracing
from hypic.workers.combine import CombineWorker

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@dataclass
class Collector:
    """What came in over OTLP."""

    url: str
    spans: list[Span] = field(default_factory=list)
    services: set[str] = field(default_factory=set)

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            names = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            self.services.add(names["service.name"])
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


@pytest.fixture
def collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/traces"
            found.take(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


def attributes(span: Span) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}


def within(inner: Span, outer: Span) -> bool:
    slack = 1_000_000  # two clocks: the wall's for beginnings, the monotonic one for lengths
    begins = outer.start_time_unix_nano - slack <= inner.start_time_unix_nano
    return begins and inner.end_time_unix_nano <= outer.end_time_unix_nano + slack


def test_a_request_is_a_trace_across_router_and_workers(
    collector: Collector, combine: CombineWorker, scatter_ports: Any, model: ServedModel
) -> None:
    for port in scatter_ports:
        port.broken = False
    config = replace(SMALL, otlp_endpoint=collector.url)
    sent = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "id-1"}
    with client_of(app_over(combine, scatter_ports, model, config)) as client:
        client.post(CHAT, json={**BODY, "cache_salt": "zq-traced"}, headers=sent)
        client.post(CHAT, json={**BODY, "n": 0})
        client.post(CHAT, json=BODY, headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
    assert collector.services == {"hypic"}
    ours = [span for span in collector.spans if span.trace_id.hex() == TRACE]
    (root,) = [span for span in ours if span.parent_span_id.hex() == PARENT]
    assert (root.name, root.kind) == (f"POST {CHAT}", Span.SPAN_KIND_SERVER)
    assert attributes(root)["hypic.request_id"] == "id-1"
    assert attributes(root)["http.response.status_code"] == 200
    (whole,) = [span for span in ours if span.parent_span_id == root.span_id]
    assert whole.name == "generate"
    assert attributes(whole)["gen_ai.usage.output_tokens"] == 8
    parts = [span for span in ours if span.parent_span_id == whole.span_id]
    names = sorted(span.name for span in parts)
    assert names == ["build", "build", "combine", "decode", "reserve", "transfer", "transfer"]
    assert all(within(span, whole) for span in parts)
    assert within(whole, root)
    for build in (span for span in parts if span.name == "build"):
        told = attributes(build)
        assert told["hypic.worker"] in ("scatter-0", "scatter-1")
        assert told["hypic.tokens"] > 0
        assert told["hypic.predicted_seconds"] > 0
        assert told["hypic.build_seconds"] > 0
    assert len(ours) == 9, "a trace that is not sampled has no spans"
    refused = [span for span in collector.spans if attributes(span).get("error.type") == "invalid_value"]
    assert len(refused) == 1
    assert "zq" not in str(collector.spans)


def test_a_segment_that_fell_back_is_a_span_that_says_so(collector: Collector, make_request: Any) -> None:
    run = Run(make_request("r", "a document"), total_seconds=3.0, error="worker_lost")
    record = run.record
    record.began_at, record.combine_worker = 1000.0, "combine-0"
    record.reserve_seconds, record.dispatch_seconds, record.combine_seconds, record.ttft_seconds = 0.5, 1.0, 0.25, 1.75
    record.builds.append(BuildRecord("k", 10, "scatter-0", 0.2, 0.25, 0.5, 100, 0.875))
    record.builds.append(BuildRecord("k", 20, "combine-0", 0.2, 0.0, 0.0, 0, 0.5, "zq", "lost"))
    record.builds.append(BuildRecord("k", 30, "combine-1", 0.2, 0.0, 0.25, 100, 1.0, pulled=True))
    observer = Tracing(collector.url + "/", "1")
    observer.ended(Observation("a", status=200, code="worker_lost", runs=[run]).end("POST", CHAT, "acme"))
    observer.close()

    def seconds(span: Span) -> tuple[float, float]:
        return span.start_time_unix_nano / 1e9 - 1000, span.end_time_unix_nano / 1e9 - 1000

    brought, fell_back = sorted(collector.named("build"), key=seconds)
    assert seconds(brought) == (0.625, 0.875)
    sent, pulled = sorted(collector.named("transfer"), key=seconds)
    assert seconds(sent) == (0.875, 1.375)
    assert seconds(pulled) == (1.25, 1.5)
    assert attributes(pulled)["hypic.worker"] == "combine-1"
    assert seconds(fell_back) == (1.0, 1.5)
    assert attributes(fell_back)["hypic.fallback"] == "lost"
    assert seconds(collector.named("combine")[0]) == (1.5, 1.75)
    assert seconds(collector.named("decode")[0]) == (1.75, 3.0)
    failed = [span for span in collector.spans if span.status.code == 2]
    assert sorted(span.name for span in failed) == [f"POST {CHAT}", "generate"]


def test_without_a_collector_requests_are_answered(
    combine: CombineWorker, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "EXPORT_SECONDS", 0.5)
    config = replace(SMALL, otlp_endpoint="http://127.0.0.1:9")
    with client_of(app_over(combine, [], model, config)) as client:
        assert client.post(CHAT, json=BODY).status_code == 200
