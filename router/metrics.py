"""Prometheus metrics of requests, cache and cluster. Names mirror those of vLLM and SGLang where these have one.

No label comes from a client: routes are templates, methods, codes and causes are of fixed sets, workers are named by
the server. Counters of generations leave out documents that are only warmed up, but for what was built of them.
"""

from collections import defaultdict
from collections.abc import Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from hypic.plan import Plan
from hypic.router.observation import Ended, Run
from hypic.router.record import BuildRecord, RequestRecord

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144)
RATIOS = (1, 1.1, 1.25, 1.5, 2, 3, 5, 10)

_METHODS = frozenset({"GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"})


class Metrics:
    """Observes requests, and counts."""

    def __init__(self, version: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, which says when the process began
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        Info("hypic:build", "What runs.", registry=self.registry).info({"version": version})
        self.dropped_lines = Counter(
            "hypic:request_log_dropped",
            "Lines of the request log that were lost to a slow disk.",
            registry=self.registry,
        )
        self._http = _Http(self.registry)
        self._generations = _Generations(self.registry)
        self._segments = _Segments(self.registry)
        self._builds = _Builds(self.registry)

    def ended(self, ended: Ended) -> None:
        """See `Observer`."""
        self._http.count(ended)
        for run in ended.runs:
            if not run.request.build_only:
                self._generations.count(run)
            if run.record.plan is not None:
                self._segments.count(run.record.plan)
            self._builds.count(run.record)

    def close(self) -> None:
        """See `Observer`."""

    def text(self) -> bytes:
        """All of it in Prometheus's text format 0.0.4. The newer format would turn the colons of names into _."""
        return generate_latest(self.registry)


class _Http:
    """Answers, whatever they were."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "hypic:http_requests", "HTTP requests that are over.", ["handler", "method", "status"], registry=registry
        )
        self._seconds = Histogram(
            "hypic:http_request_duration_seconds",
            "From the first byte of a request to the last of its answer.",
            ["handler"],
            buckets=SECONDS,
            registry=registry,
        )
        self._errors = Counter(
            "hypic:http_errors", "Answers and streams that ended in an error.", ["code"], registry=registry
        )

    def count(self, ended: Ended) -> None:
        handler = ended.route or "none"
        method = ended.method if ended.method in _METHODS else "other"
        self._requests.labels(handler, method, str(ended.status)).inc()
        self._seconds.labels(handler).observe(ended.total_seconds)
        if ended.code:
            self._errors.labels(ended.code).inc()


class _Generations:
    """Prompts and answers: how many tokens, how quickly."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def seconds(name: str, text: str) -> Histogram:
            return Histogram(f"hypic:{name}_seconds", text, buckets=SECONDS, registry=registry)

        self._finished = Counter(
            "hypic:request_success", "Answers by how they ended.", ["finished_reason"], registry=registry
        )
        for reason in ("stop", "length", "abort", "error"):
            self._finished.labels(reason)
        self._ttft = seconds("time_to_first_token", "From the router's first move to the first token.")
        self._gap = seconds("inter_token_latency", "Between two tokens of one answer, as the router sees them.")
        self._per_token = seconds("request_time_per_output_token", "Mean of these in one request.")
        self._total = seconds("e2e_request_latency", "From the router's first move to the last token.")
        self._decode = seconds("request_decode_time", "From the first token to the last.")
        self._reserve = seconds("reserve", "Until the combine worker had planned the request and leased what it needs.")
        self._dispatch = seconds("dispatch", "From there until all cold segments were there; of requests that had any.")
        self._combine = seconds("combine", "The one pass over the active tokens, in which states are composed.")
        self._prompt = Counter("hypic:prompt_tokens", "Prompt tokens.", registry=registry)
        self._answer = Counter("hypic:generation_tokens", "Generated tokens.", registry=registry)
        self._prompt_sizes = Histogram(
            "hypic:request_prompt_tokens", "Tokens of a prompt.", buckets=TOKENS, registry=registry
        )
        self._answer_sizes = Histogram(
            "hypic:request_generation_tokens", "Tokens of all answers to a prompt.", buckets=TOKENS, registry=registry
        )
        self._retries = Counter(
            "hypic:request_retries", "Combine workers that were lost before the first token.", registry=registry
        )

    def count(self, run: Run) -> None:
        record = run.record
        for reason in run.finishes:
            self._finished.labels(reason).inc()
        rest = run.request.choices - len(run.finishes)
        self._finished.labels("error" if run.error else "abort").inc(max(0, rest))
        self._retries.inc(max(0, record.attempts - 1))
        if run.usage is None:
            return
        self._prompt.inc(run.usage.prompt_tokens)
        self._answer.inc(run.usage.completion_tokens)
        self._prompt_sizes.observe(run.usage.prompt_tokens)
        self._answer_sizes.observe(run.usage.completion_tokens)
        self._ttft.observe(record.ttft_seconds)
        self._reserve.observe(record.reserve_seconds)
        self._combine.observe(record.combine_seconds)
        if record.dispatch_seconds:
            self._dispatch.observe(record.dispatch_seconds)
        self._total.observe(run.total_seconds)
        self._decode.observe(max(0.0, run.total_seconds - record.ttft_seconds))
        for gap in run.gaps_seconds:
            self._gap.observe(gap)
        if run.gaps_seconds:
            self._per_token.observe(sum(run.gaps_seconds) / len(run.gaps_seconds))


class _Segments:
    """What became of the segments of prompts: where they came from, and why they were not simply reused."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._segments = Counter(
            "hypic:segments",
            "Segments of prompts by where they came from, and why they were not simply reused (none: they were).",
            ["source", "reason"],
            registry=registry,
        )
        self._cached = Counter(
            "hypic:cached_tokens", "Prompt tokens whose computation was skipped.", ["source"], registry=registry
        )
        self._queries = Counter(
            "hypic:prefix_cache_queries", "Prompt tokens that were looked for in the prefix cache.", registry=registry
        )
        self._hits = Counter(
            "hypic:prefix_cache_hits", "Prompt tokens that were found in the prefix cache.", registry=registry
        )
        self._seam = Counter(
            "hypic:seam_tokens", "Tokens at the head of reused segments, computed again.", registry=registry
        )
        self._computed = Counter(
            "hypic:computed_tokens", "Prompt tokens computed in combine passes, seams included.", registry=registry
        )
        self._built = Counter(
            "hypic:built_tokens", "Tokens of cold segments that were prefilled on their own.", registry=registry
        )

    def count(self, plan: Plan) -> None:
        for row in plan.rows:
            self._segments.labels(row.source, row.reason or "none").inc()
            self._seam.inc(row.seam_tokens)
            if not row.builds and row.source != "active":
                self._cached.labels(row.source).inc(row.tokens - row.computed_tokens)
        self._computed.inc(plan.computed_tokens)
        self._built.inc(plan.built_tokens)
        if plan.arm != "full":
            self._queries.inc(plan.prompt_tokens)
            self._hits.inc(sum(row.tokens for row in plan.rows if row.source == "prefix"))


class _Builds:
    """Cold segments on their way through the cluster."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: Sequence[float] = SECONDS) -> Histogram:
            return Histogram(f"hypic:{name}", text, buckets=buckets, registry=registry)

        self._seconds = histogram("build_seconds", "Prefill of one cold segment on a scatter worker.")
        self._error = histogram(
            "build_prediction_ratio",
            "Seconds that a build took by those that were predicted.",
            (0.25, 0.5, 0.8, 0.9, *RATIOS),
        )
        self._transfer = histogram("transfer_seconds", "A segment from ready at its sender to usable.")
        self._makespan = histogram(
            "scatter_makespan_seconds", "From dispatch until the last cold segment of a request was usable."
        )
        self._skew = histogram(
            "scatter_skew_ratio", "Seconds of the busiest scatter worker by the mean of those a request used.", RATIOS
        )
        self._bytes = Counter(
            "hypic:transfer_bytes",
            "Bytes of segments that were brought to combine workers, by the role of who sent them.",
            ["sender"],
            registry=registry,
        )
        self._pulled = Counter(
            "hypic:pulled_segments", "Segments that another combine worker had and sent.", registry=registry
        )
        self._fallbacks = Counter(
            "hypic:fallbacks", "Segments built on the combine worker after all.", ["cause"], registry=registry
        )
        for cause in ("lost", "late", "damaged", "failed", "gone", "receiver_lost"):
            self._fallbacks.labels(cause)

    def count(self, record: RequestRecord) -> None:
        for build in record.builds:
            if build.cause:
                self._fallbacks.labels(build.cause).inc()
            if build.payload_bytes:
                self._transfer.observe(build.transfer_seconds)
                self._bytes.labels("combine" if build.pulled else "scatter").inc(build.payload_bytes)
            if build.pulled:
                self._pulled.inc()
        built = [build for build in record.builds if build.payload_bytes and not build.pulled]
        for build in built:
            self._seconds.observe(build.build_seconds)
            if build.predicted_seconds:
                self._error.observe(build.build_seconds / build.predicted_seconds)
        if built:
            self._makespan.observe(max(build.waited_seconds for build in built))
            self._skew.observe(_skew(built))


def _skew(builds: list[BuildRecord]) -> float:
    busy: dict[str, float] = defaultdict(float)
    for build in builds:
        busy[build.worker] += build.build_seconds
    return max(busy.values()) * len(busy) / sum(busy.values())
