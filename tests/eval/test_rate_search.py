"""The search finds the capacity of a simulated server from below and from above, and tells bounds from results."""

import math

import pytest

from hypic.eval.load_metrics import why_not_held
from hypic.eval.open_loop import Sample
from hypic.eval.rate_search import RateSearch


def queue(qps: float, service_seconds: float, count: int = 200) -> list[Sample]:
    """A server that takes requests one at a time, evenly spaced arrivals."""
    free, samples = 0.0, []
    for number in range(count):
        due = number / qps
        free = max(free, due) + service_seconds
        samples.append(Sample(due, due, [free], free, "text"))
    return samples


@pytest.mark.parametrize("start", [0.3, 5.0, 40.0, 900.0])
def test_capacity_is_found_from_anywhere(start: float) -> None:
    search = RateSearch(start)
    for _ in range(20):
        rate = search.next_rate()
        search.record(rate, not why_not_held(queue(rate, service_seconds=0.05), limit_seconds=0.5))
    assert search.sustained <= 20 * 1.12, "growing queues are seen before they break the limit"
    assert search.sustained >= 20 * 0.98
    assert search.lowest_failed / search.sustained < 1.01


def test_each_step_between_halves_the_bracket() -> None:
    search = RateSearch(1.0)
    search.record(1.0, True)
    assert search.next_rate() == 1.5
    search.record(1.5, False)
    assert search.next_rate() == pytest.approx(math.sqrt(1.5))


def test_bounds_are_told_apart_from_results() -> None:
    search = RateSearch(2.0)
    assert (search.sustained, search.lowest_failed) == (0.0, math.inf)
    search.record(2.0, False)
    assert search.next_rate() == pytest.approx(2.0 / 1.5)
    assert search.sustained == 0.0
    search.record(3.0, True)
    assert search.sustained == 0.0, "what held above a rate that failed was luck"
