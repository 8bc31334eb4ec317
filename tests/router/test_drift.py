"""When the router has drift measured: for a share of requests, and only while nothing is open."""

import asyncio
import time
from dataclasses import replace
from typing import Any, cast

import pytest
from http_service import BODY, CHAT, SMALL, app_over, client_of
from prometheus_client import CollectorRegistry

from hypic.config import ServerConfig
from hypic.engine.drift import Drift, DriftReport
from hypic.errors import UnavailableError
from hypic.router import drift
from hypic.router.drift import DriftMetrics, DriftWatch
from hypic.router.observation import Observation, Observations
from hypic.router.service import ServedModel
from hypic.tokenizer import PromptTokenizer


class Port:
    """A combine worker with so many pieces to compute, one of which its process does not survive."""

    def __init__(self, pieces: int, lost_at: int = -1) -> None:
        self.left, self.calls, self._lost_at = pieces, 0, lost_at

    async def drift(self) -> DriftReport:
        self.calls += 1
        if self.calls == self._lost_at:
            raise UnavailableError("gone")
        self.left = max(0, self.left - 1)
        return DriftReport((Drift("hypic", 0.02, True, 9),) if not self.left else (), 0, self.left)


class Ports:
    def __init__(self, *ports: Port) -> None:
        self.combine_ports = list(ports)


def watch_over(share: float, observations: Observations, *ports: Port) -> tuple[DriftWatch, CollectorRegistry]:
    registry = CollectorRegistry()
    draws = iter([0.0, 0.4, 0.6, 0.99] * 10)
    watch = DriftWatch(share, observations, cast(Any, Ports(*ports)), DriftMetrics(registry), lambda: next(draws))
    return watch, registry


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "QUIET_SECONDS", 0.02)
    monkeypatch.setattr(drift, "_LOOK_SECONDS", 0.005)


def test_a_share_of_requests_is_marked(make_request: Any) -> None:
    watch, _ = watch_over(0.5, Observations())
    assert [watch.marked(make_request("r")).probe for _ in range(4)] == [True, True, False, False]
    assert not watch.marked(make_request("r", arm="full")).probe
    never, _ = watch_over(0.0, Observations())
    assert not any(never.marked(make_request("r")).probe for _ in range(8))
    with pytest.raises(ValueError, match="drift_share must be in 0 to 1"):
        ServerConfig(drift_share=1.5)


def test_nothing_is_probed_while_a_request_is_open(make_request: Any) -> None:
    async def scene() -> tuple[int, int, int]:
        observations, port = Observations(), Port(3)
        watch, _ = watch_over(1.0, observations, port)
        observation = Observation("a")
        observations.add(observation)
        run = observation.begin(watch.marked(make_request("r")))
        task = asyncio.create_task(watch.run())
        await asyncio.sleep(0.1)
        while_open = port.calls
        run.over = True
        while port.left:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)
        task.cancel()
        return while_open, port.calls, port.left

    assert asyncio.run(scene()) == (0, 3, 0)


def test_a_request_that_comes_in_stops_the_probe_and_it_goes_on_later(make_request: Any) -> None:
    async def scene() -> tuple[int, int]:
        observations, port = Observations(), Port(1000)
        watch, _ = watch_over(1.0, observations, port)
        watch.marked(make_request("r"))
        task = asyncio.create_task(watch.run())
        while port.calls < 3:
            await asyncio.sleep(0)
        observation = Observation("a")
        observations.add(observation)
        run = observation.begin(make_request("s"))
        at = port.calls
        await asyncio.sleep(0.1)
        during = port.calls - at
        run.over = True
        while port.calls < at + during + 3:
            await asyncio.sleep(0.005)
        task.cancel()
        return during, port.calls

    during, _ = asyncio.run(scene())
    assert during <= 1, "at most the piece that was asked for already"


def test_a_lost_worker_does_not_end_the_watch(make_request: Any) -> None:
    async def scene() -> float | None:
        port = Port(2, lost_at=1)
        watch, registry = watch_over(1.0, Observations(), port)
        task = asyncio.create_task(watch.run())
        watch.marked(make_request("r"))
        while port.calls < 1:
            await asyncio.sleep(0.005)
        watch.marked(make_request("s"))
        while port.left:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.02)
        assert not task.done()
        task.cancel()
        return registry.get_sample_value("hypic:drift_kl_nats_sum", {"arm": "hypic"})

    assert asyncio.run(scene()) == 0.02


def test_a_served_request_is_measured(in_process: Any, chatty_checkpoint: Any) -> None:
    model = ServedModel("tiny", PromptTokenizer.load(chatty_checkpoint), 4096, "hypic", 0)
    app = app_over(in_process.combine[0], [], model, replace(SMALL, drift_share=1.0))
    registry = app.state.service.metrics.registry
    with client_of(app) as client:
        client.post(CHAT, json=BODY)
        client.post(CHAT, json={**BODY, "hypic": {"arm": "full"}})
        for _ in range(1000):
            if registry.get_sample_value("hypic:drift_probes_total", {"outcome": "measured"}):
                break
            time.sleep(0.01)
        said = client.get("/metrics").text
    assert 'hypic:drift_kl_nats_count{arm="hypic"} 1.0' in said
    assert registry.get_sample_value("hypic:drift_kl_nats_sum", {"arm": "hypic"}) > 0
