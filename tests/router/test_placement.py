"""Placement keeps Graham's bound, loses nothing, and repeats itself."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic.router.placement import Policy, local, lpt, place, round_robin

SECONDS = st.floats(0.001, 100.0)
POLICIES: list[Policy] = ["lpt", "round_robin", "local"]


def best_makespan(seconds: list[float], workers: int) -> float:
    """Of all placements, by trying them."""
    makespans = []
    for choice in product(range(workers), repeat=len(seconds)):
        loads = [sum(s for s, worker in zip(seconds, choice, strict=True) if worker == w) for w in range(workers)]
        makespans.append(max(loads))
    return min(makespans)


@given(st.lists(SECONDS, min_size=1, max_size=7), st.integers(1, 3))
@settings(deadline=None)
def test_lpt_is_within_four_thirds_of_the_optimum(seconds: list[float], workers: int) -> None:
    placement = lpt(seconds, [0.0] * workers)
    bound = 4 / 3 - 1 / (3 * workers)
    assert placement.makespan_seconds <= bound * best_makespan(seconds, workers) * (1 + 1e-9)


@given(st.lists(SECONDS, min_size=1, max_size=60), st.lists(st.floats(0, 50.0), min_size=1, max_size=12))
def test_lpt_with_queues_is_within_the_bound_of_list_scheduling(seconds: list[float], queued: list[float]) -> None:
    placement = lpt(seconds, queued)
    average = (sum(seconds) + sum(queued)) / len(queued)
    assert placement.makespan_seconds <= average + max(seconds) + 1e-6


@given(st.lists(SECONDS, max_size=40), st.lists(st.floats(0, 50.0), max_size=8), st.sampled_from(POLICIES))
def test_every_segment_is_placed_once_and_always_alike(
    seconds: list[float], queued: list[float], policy: Policy
) -> None:
    placement = place(policy, seconds, queued)
    placed = [index for own in (*placement.assignments, placement.here) for index in own]
    assert sorted(placed) == list(range(len(seconds)))
    assert placement == place(policy, seconds, queued)
    for own, finish, before in zip(placement.assignments, placement.finish_seconds, queued, strict=True):
        assert finish == pytest.approx(before + sum(seconds[index] for index in own))


def test_without_workers_everything_stays_here() -> None:
    assert place("lpt", [1.0, 2.0], []).here == (0, 1)
    assert place("round_robin", [1.0, 2.0], []).here == (0, 1)


def test_the_longest_goes_first_to_the_worker_that_is_free_first() -> None:
    placement = lpt([1.0, 5.0, 2.0], [3.0, 0.0])
    assert placement.assignments == ((2, 0), (1,))
    assert placement.finish_seconds == (6.0, 5.0)


def test_lpt_beats_round_robin_on_an_uneven_mix() -> None:
    seconds = [8.0, 1.0, 7.0, 1.0, 6.0, 1.0]
    assert lpt(seconds, [0.0, 0.0]).makespan_seconds < round_robin(seconds, [0.0, 0.0]).makespan_seconds


def test_on_realistic_mixes_lpt_is_within_five_percent_of_the_lower_bound() -> None:
    for workers in (2, 4, 8):
        seconds = [0.01 * (1 + (37 * index) % 11) for index in range(8 * workers)]
        lower = max(sum(seconds) / workers, max(seconds))
        assert lpt(seconds, [0.0] * workers).makespan_seconds <= 1.05 * lower


def test_local_uses_no_worker() -> None:
    placement = local([1.0, 2.0], [0.5, 0.0])
    assert placement.assignments == ((), ())
    assert placement.makespan_seconds == 0.0
