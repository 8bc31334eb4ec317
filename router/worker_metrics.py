"""Gauges of what goes on now: open requests, and what the workers say of themselves.

Workers are asked when the metrics are; one that is busy is waited for a moment only, and then stands with what it said
last.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from hypic.router.dispatcher import Dispatcher
from hypic.router.observation import Observations
from hypic.workers.ports import WorkerStats

PATIENCE_SECONDS = 1.0
"""How long a scrape waits for workers: Prometheus itself gives up after ten seconds."""


class WorkerMetrics(Collector):
    """Collects from the router and, by way of `refresh`, from the workers."""

    def __init__(self, registry: CollectorRegistry, observations: Observations, dispatcher: Dispatcher) -> None:
        self._observations, self._dispatcher = observations, dispatcher
        self._said: dict[str, WorkerStats] = {}
        self._asking: asyncio.Task[None] | None = None
        registry.register(self)

    async def refresh(self) -> None:
        """Ask the workers, one question at a time however often this is called."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        await asyncio.wait({self._asking}, timeout=PATIENCE_SECONDS)

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        yield from self._requests()
        up = GaugeMetricFamily("hypic:worker_up", "Whether a worker answers.", labels=["worker", "role"])
        for name, (role, alive) in self._dispatcher.alive.items():
            up.add_metric([name, role], float(alive))
        yield up
        said = [self._said[name] for name in sorted(self._said)]
        yield _gauge("worker_open_requests", "Requests that a worker has open.", said, lambda own: own.open_requests)
        yield _gauge("worker_leases", "Cached things promised to somebody; 0 at idle.", said, lambda own: own.leases)
        yield _counter("worker_builds", "Cold segments that a scatter worker prefilled.", said, lambda own: own.built)
        yield from _tiers(said)
        yield from _stores(said)

    def _requests(self) -> Iterator[Metric]:
        runs = self._observations.runs
        running = sum(bool(run.record.ttft_seconds) for run in runs)
        yield GaugeMetricFamily("hypic:num_requests_running", "Generations that are past their first token.", running)
        yield GaugeMetricFamily(
            "hypic:num_requests_waiting", "Generations that have no token yet.", len(runs) - running
        )

    async def _ask(self) -> None:
        self._said |= {stats.name: stats for stats in await self._dispatcher.stats()}


def _gauge(name: str, text: str, said: Iterable[WorkerStats], value: Callable[[WorkerStats], float]) -> Metric:
    family = GaugeMetricFamily(f"hypic:{name}", text, labels=["worker"])
    for stats in said:
        family.add_metric([stats.name], value(stats))
    return family


def _counter(name: str, text: str, said: Iterable[WorkerStats], value: Callable[[WorkerStats], float]) -> Metric:
    family = CounterMetricFamily(f"hypic:{name}", text, labels=["worker"])
    for stats in said:
        family.add_metric([stats.name], value(stats))
    return family


def _stores(said: list[WorkerStats]) -> Iterator[Metric]:
    """Of the segment store and of the prefix tree."""
    labels = ["worker", "store"]
    evicted = CounterMetricFamily("hypic:cache_evictions", "Entries that had to go.", labels=labels)
    rejected = CounterMetricFamily("hypic:cache_rejections", "Entries that found no room.", labels=labels)
    for stats in said:
        for store, counts in (("segments", stats.segments), ("prefixes", stats.prefixes)):
            if counts:
                evicted.add_metric([stats.name, store], counts["evicted"])
                rejected.add_metric([stats.name, store], counts["rejected"])
    yield evicted
    yield rejected


def _tiers(said: list[WorkerStats]) -> Iterator[Metric]:
    """Of the memory under both, by tier and by kind of what is kept."""
    kinds = ["worker", "tier", "kind"]
    usage = GaugeMetricFamily(
        "hypic:kv_cache_usage_perc", "Share of a tier's budget that is used, 0 to 1.", labels=["worker", "tier"]
    )
    nbytes = GaugeMetricFamily("hypic:cache_bytes", "What is cached, in true bytes.", labels=kinds)
    entries = GaugeMetricFamily("hypic:cache_entries", "How many things are cached.", labels=kinds)
    for stats in said:
        for use in stats.cache:
            if use.budget_bytes:
                usage.add_metric([stats.name, use.tier], use.used_bytes / use.budget_bytes)
            for kind in use.entries:
                nbytes.add_metric([stats.name, use.tier, kind], use.nbytes.get(kind, 0))
                entries.add_metric([stats.name, use.tier, kind], use.entries[kind])
    yield usage
    yield nbytes
    yield entries
