"""Scatter: the simulation is that of the stages, more workers never hurt, and wrong or warm runs are not reported."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic.config import EngineConfig
from hypic.eval import scatter_bench
from hypic.eval.scatter_bench import Kind, mixes, run_scatter
from hypic.eval.scatter_config import ScatterConfig
from hypic.eval.scatter_simulation import StageCosts, fit_stages, simulate
from hypic.eval.ttft import GateError
from hypic.router.record import BuildRecord, RequestRecord
from hypic.workers.cost import CostModel

COSTS = StageCosts(CostModel(1e-3), 0.01, 0.05, 0.02, 0.3, 0.04)


def test_one_worker_is_the_sum_of_its_stages() -> None:
    found = simulate([100, 200, 300], 1, "lpt", COSTS)
    assert found.dispatch_seconds == pytest.approx(0.6 + 3 * 0.01 + 0.05)
    assert found.transfer_seconds == pytest.approx(3 * 0.05), "the next build takes longer than a transfer"
    assert found.ttft_seconds == pytest.approx(found.dispatch_seconds + 0.02 + 0.3 + 0.04)
    assert found.lower_bound_seconds == pytest.approx(0.6)


def test_segments_that_arrive_together_are_taken_in_one_by_one() -> None:
    found = simulate([100] * 4, 4, "lpt", COSTS)
    assert found.dispatch_seconds == pytest.approx(0.1 + 0.01 + 4 * 0.05)
    assert found.transfer_seconds == pytest.approx((1 + 2 + 3 + 4) * 0.05)


def test_the_placement_is_the_routers() -> None:
    """Lengths on which round robin puts both long ones on one worker."""
    tokens = [1000, 10, 1000, 10]
    assert simulate(tokens, 2, "lpt", COSTS).dispatch_seconds < 1.3
    assert simulate(tokens, 2, "round_robin", COSTS).dispatch_seconds > 2.0


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=40), st.integers(1, 16))
def test_never_below_the_bound_and_lpt_within_its_guarantee(tokens: list[int], workers: int) -> None:
    free = replace(COSTS, hand_over_seconds=0.0, transfer_seconds=0.0)
    found = simulate(tokens, workers, "lpt", free)
    assert found.dispatch_seconds >= found.lower_bound_seconds * (1 - 1e-9)
    assert found.dispatch_seconds <= simulate(tokens, 1, "lpt", free).dispatch_seconds * (1 + 1e-9)
    assert found.dispatch_seconds <= 2 * found.lower_bound_seconds, "Graham's bound for any list"


def record(tokens: tuple[int, ...] = (100, 200)) -> RequestRecord:
    builds = [
        BuildRecord(
            key=str(n), tokens=count, worker="scatter-0", predicted_seconds=0.0, build_seconds=count * 1e-3,
            transfer_seconds=0.05, payload_bytes=10, waited_seconds=0.0,
        )
        for n, count in enumerate(tokens)
    ]  # fmt: skip
    dispatch = sum(tokens) * 1e-3 + len(tokens) * 0.01
    return RequestRecord(
        request_id="r",
        reserve_seconds=0.02,
        dispatch_seconds=dispatch,
        transfer_seconds=0.1,
        combine_seconds=0.3,
        ttft_seconds=0.02 + dispatch + 0.3 + 0.04,
        builds=builds,
    )


def test_costs_are_those_that_made_the_records() -> None:
    costs = fit_stages([record(), record((400, 50))])
    assert costs.build.seconds(1000) == pytest.approx(1.0, rel=1e-3)
    for name in ("hand_over_seconds", "transfer_seconds", "reserve_seconds", "combine_seconds", "rest_seconds"):
        assert getattr(costs, name) == pytest.approx(getattr(COSTS, name), abs=1e-9), name
    with pytest.raises(ValueError, match="found none"):
        fit_stages([RequestRecord()])


def test_mixes_have_the_published_sizes() -> None:
    found = mixes(ScatterConfig(full=True))
    assert found["even"] == (2400,) * 11
    assert abs(sum(found["uneven"]) - 32_768) < 1000
    assert max(found["uneven"]) > 2.5 * sorted(found["uneven"])[16], "some are far longer than most"
    assert sum(mixes(ScatterConfig())["even"]) == 6600
    assert mixes(ScatterConfig(seed=1))["uneven"] != mixes(ScatterConfig())["uneven"]


def completion(token_ids: tuple[int, ...] = (1, 2), fallback: str = "", cached: int = 0) -> Any:
    builds = [replace(build, fallback=fallback) for build in record().builds]
    return SimpleNamespace(
        token_ids=token_ids, record=replace(record(), builds=builds), usage=SimpleNamespace(cached_tokens=cached)
    )


@pytest.mark.parametrize("done", [completion((1, 3)), completion(fallback="late"), completion(cached=8)])
def test_wrong_or_warm_runs_are_red(done: Any) -> None:
    kind = Kind("even", 2, "lpt")
    scatter_bench._check(kind, completion(), (1, 2))
    with pytest.raises(GateError, match="nothing is reported"):
        scatter_bench._check(kind, done, (1, 2))


@pytest.mark.cluster
def test_a_small_run(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter_bench, "mixes", lambda config: {"even": (90,) * 3, "uneven": (60, 200, 100, 40)})
    report = run_scatter(EngineConfig(), tiny_checkpoint, ScatterConfig(simulate=4))
    runs = report.results["runs"]
    real = [(run["mix"], run["workers"], run["policy"]) for run in runs if not run["simulated"]]
    each = [(1, "lpt"), (2, "lpt"), (2, "round_robin")]
    assert real == [(mix, *rest) for mix in ("even", "uneven") for rest in each]
    assert {run["workers"] for run in runs if run["simulated"]} == {1, 2, 4}
    for run in runs:
        assert 0 < run["dispatch_ms"] < run["ttft_ms"], run
        assert 0 < run["combine_ms"] < run["ttft_ms"], run
        assert run["dispatch_ms"] >= run["lower_bound_ms"] * (1 - 1e-9), run
    assert len(report.results["simulated_over_real"]) == 6
