"""Traces of requests over OTLP: where the time of each went, in the router and in the workers.

Spans are made when a request is over, from the times that its records hold: workers measure and report these anyway, so
no tracer runs in them and nothing is sent from them. Times of builds are counted back from their arrival by the
router's clock; clocks of other machines do not matter, but for transfers, which are clamped. Needs the extra `otel`.
"""

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from hypic.router.observation import Ended, Run
from hypic.router.record import BuildRecord, RequestRecord

EXPORT_SECONDS = 5
"""How long the collector may take to answer."""


class Tracing:
    """Observes requests, and exports spans from a thread of its own: spans that a collector does not take in time are
    lost, no request waits for it. A request whose `traceparent` says that it is not sampled has none."""

    def __init__(self, endpoint: str, version: str) -> None:
        """endpoint: base URL of the collector."""
        exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_SECONDS)
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "hypic", "service.version": version}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("hypic")
        self._propagator = TraceContextTextMapPropagator()

    def ended(self, ended: Ended) -> None:
        """See `Observer`."""
        parent = self._propagator.extract(dict(ended.trace))
        root = self._tracer.start_span(
            f"{ended.method} {ended.route}".strip(),
            parent,
            SpanKind.SERVER,
            {
                "http.request.method": ended.method,
                "http.route": ended.route,
                "http.response.status_code": ended.status,
                "hypic.request_id": ended.request_id,
                "hypic.tenant": ended.tenant,
                "hypic.outcome": ended.outcome,
            },
            start_time=_nanoseconds(ended.began_at),
        )
        if ended.code:
            root.set_attribute("error.type", ended.code)
        if ended.outcome == "failed":
            root.set_status(Status(StatusCode.ERROR))
        if root.is_recording():
            for run in ended.runs:
                _RunSpans(self._tracer, run, set_span_in_context(root)).draw()
        root.end(_nanoseconds(ended.began_at + ended.total_seconds))

    def close(self) -> None:
        """See `Observer`."""
        self._provider.shutdown()


class _RunSpans:
    """Spans of one generation, placed by seconds from its beginning."""

    def __init__(self, tracer: Tracer, run: Run, parent: Context) -> None:
        self._tracer, self._run, self._parent = tracer, run, parent
        self._ends: list[tuple[Span, int]] = []

    def draw(self) -> None:
        record, run = self._run.record, self._run
        if not record.began_at:
            return  # it was never begun
        whole = self._span("warm up" if run.request.build_only else "generate", 0.0, run.total_seconds, self._parent)
        whole.set_attribute("hypic.generation_id", run.request.request_id)
        whole.set_attribute("hypic.arm", run.request.arm.name)
        if run.usage is not None:
            whole.set_attribute("gen_ai.usage.input_tokens", run.usage.prompt_tokens)
            whole.set_attribute("gen_ai.usage.output_tokens", run.usage.completion_tokens)
            whole.set_attribute("hypic.cached_tokens", run.usage.cached_tokens)
        if run.error:
            whole.set_attribute("error.type", run.error)
            whole.set_status(Status(StatusCode.ERROR))
        within, worker = set_span_in_context(whole), record.combine_worker
        if record.reserve_seconds:
            self._span("reserve", 0.0, record.reserve_seconds, within, worker=worker)
        for build in record.builds:
            self._build(record, build, within)
        if record.ttft_seconds and not run.request.build_only:
            first = record.ttft_seconds
            self._span("combine", first - record.combine_seconds, first, within, worker=worker)
            self._span("decode", first, run.total_seconds, within, worker=worker)
        for span, nanoseconds in self._ends:
            span.end(nanoseconds)

    def _build(self, record: RequestRecord, build: BuildRecord, within: Context) -> None:
        attributes: dict[str, AttributeValue] = {
            "worker": build.worker,
            "tokens": build.tokens,
            "predicted_seconds": build.predicted_seconds,
        }
        usable = record.reserve_seconds + build.waited_seconds
        if build.payload_bytes:
            ready = max(record.reserve_seconds, usable - build.transfer_seconds)
            if not build.pulled:
                began = max(record.reserve_seconds, ready - build.build_seconds)
                self._span("build", began, ready, within, **attributes, build_seconds=build.build_seconds)
            told: dict[str, AttributeValue] = {"worker": build.worker, "pulled": build.pulled}
            self._span("transfer", ready, usable, within, **told, bytes=build.payload_bytes)
        else:  # on the combine worker itself, from the first or after all: it was there when the pass could begin
            there = record.reserve_seconds + record.dispatch_seconds
            self._span("build", usable, max(usable, there), within, **attributes, fallback=build.cause or "none")

    def _span(
        self, name: str, began_seconds: float, ended_seconds: float, within: Context, **attributes: AttributeValue
    ) -> Span:
        """A span that ends with the others, once it has all its attributes."""
        began_at = self._run.record.began_at
        named = {f"hypic.{key}": value for key, value in attributes.items()}
        start = _nanoseconds(began_at + began_seconds)
        span = self._tracer.start_span(name, within, SpanKind.INTERNAL, named, start_time=start)
        self._ends.append((span, _nanoseconds(began_at + ended_seconds)))
        return span


def _nanoseconds(unix_seconds: float) -> int:
    return int(unix_seconds * 1e9)
