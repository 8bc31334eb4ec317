"""When drift is measured: a share of requests is marked to be probed, and the workers are asked to compute the next
piece of a probe as long as nothing is open anywhere.

The router asks for one piece at a time, since it alone knows of work that is on its way to any worker.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import replace

from prometheus_client import CollectorRegistry, Counter, Histogram

from hypic.engine.drift import Drift, DriftReport
from hypic.errors import HypicError
from hypic.request import GenerationRequest
from hypic.router.dispatcher import Dispatcher
from hypic.router.observation import Observations

QUIET_SECONDS = 0.5
"""How long nothing has to be open before a probe goes on: the next turn of a conversation often follows at once."""

_LOOK_SECONDS = 0.05

_log = logging.getLogger(__name__)

_NATS = (1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)


class DriftMetrics:
    """How far served first tokens were from those of a full recompute."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._kl = Histogram(
            "hypic:drift_kl_nats",
            "KL(full recompute || served) of the next-token distribution behind the prompt, of probed requests.",
            ["arm"],
            buckets=_NATS,
            registry=registry,
        )
        self._first = Counter(
            "hypic:drift_first_token",
            "Probed requests by whether a full recompute finds the same first token likeliest.",
            ["arm", "agrees"],
            registry=registry,
        )
        self._probes = Counter(
            "hypic:drift_probes",
            "Probes by what came of them: measured, or dropped since the worker was busy.",
            ["outcome"],
            registry=registry,
        )
        for outcome in ("measured", "dropped"):
            self._probes.labels(outcome)

    def count(self, report: DriftReport) -> None:
        """Take in what a worker reports."""
        self._probes.labels("measured").inc(len(report.measured))
        self._probes.labels("dropped").inc(report.dropped)
        for drift in report.measured:
            self._count(drift)

    def _count(self, drift: Drift) -> None:
        self._kl.labels(drift.arm).observe(drift.kl_nats)
        self._first.labels(drift.arm, "yes" if drift.first_agrees else "no").inc()


class DriftWatch:
    """Marks requests, and has them probed while nothing else is to be done. For one event loop."""

    def __init__(
        self,
        share: float,
        observations: Observations,
        dispatcher: Dispatcher,
        metrics: DriftMetrics,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """share: of the requests, 0 to 1. draw: a number in [0, 1)."""
        self._share, self._draw = share, draw
        self._observations, self._dispatcher, self._metrics = observations, dispatcher, metrics
        self._wanted = asyncio.Event()

    def marked(self, request: GenerationRequest) -> GenerationRequest:
        """The request, to be probed if its turn has come. A full recompute has nothing to be compared with."""
        if request.arm.name == "full" or self._draw() >= self._share:
            return request
        self._wanted.set()
        return replace(request, probe=True)

    async def run(self) -> None:
        """Probe for ever."""
        while True:
            await self._wanted.wait()
            await self._quiet()
            self._wanted.clear()
            try:
                while await self._piece():
                    if self._observations.runs:
                        self._wanted.set()
                        break
            except HypicError as error:  # a worker is gone, and its probes with it; the others have theirs
                _log.warning("drift probes were interrupted: %s", error)
                self._wanted.set()
                await asyncio.sleep(QUIET_SECONDS)

    async def _quiet(self) -> None:
        """Until nothing has been open for a while."""
        quiet_seconds = 0.0
        while quiet_seconds < QUIET_SECONDS:
            await asyncio.sleep(_LOOK_SECONDS)
            quiet_seconds = 0.0 if self._observations.runs else quiet_seconds + _LOOK_SECONDS

    async def _piece(self) -> bool:
        """One piece on each worker at once; whether there is more to do."""
        reports = await asyncio.gather(*(port.drift() for port in self._dispatcher.combine_ports))
        for report in reports:
            self._metrics.count(report)
        return any(report.left for report in reports)
