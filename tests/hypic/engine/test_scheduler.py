"""More cached goes first, nobody starves, and the choice is a pure function."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic.engine.scheduler import CachedShareFirst, Candidate, FirstComeFirstServed

CANDIDATES = st.lists(
    st.builds(
        Candidate,
        request_id=st.uuids().map(str),
        prompt_tokens=st.integers(0, 100),
        cached_tokens=st.integers(0, 100),
        arrived_seconds=st.integers(0, 100).map(float),
    ),
    min_size=1,
    max_size=12,
)


def test_of_two_that_came_together_the_more_cached_goes_first() -> None:
    cold, warm = Candidate("cold", 100, 10, 0.0), Candidate("warm", 100, 90, 0.0)
    assert CachedShareFirst().choose([cold, warm]) is warm
    assert FirstComeFirstServed().choose([cold, warm]) is cold


def test_the_share_counts_not_the_tokens() -> None:
    long, short = Candidate("long", 1000, 500, 0.0), Candidate("short", 100, 90, 0.0)
    assert CachedShareFirst().choose([long, short]) is short


def test_of_equals_the_first_goes_first() -> None:
    first, second = Candidate("first", 100, 50, 0.0), Candidate("second", 100, 50, 0.1)
    assert CachedShareFirst(1e9).choose([second, first]) is first


@given(CANDIDATES, st.sampled_from([0.5, 3.0, 50.0]))
@settings(derandomize=True, deadline=None)
def test_nobody_is_overtaken_by_who_came_too_late(candidates: list[Candidate], patience: float) -> None:
    chosen = CachedShareFirst(patience).choose(candidates)
    assert chosen is not None
    assert all(chosen.arrived_seconds - other.arrived_seconds <= patience for other in candidates)


@given(CANDIDATES)
@settings(derandomize=True, deadline=None)
def test_nobody_waits_for_ever(candidates: list[Candidate]) -> None:
    """One runs each second while another, wholly cached, arrives each second: all that are there get their turn."""
    policy, waiting, now = CachedShareFirst(5.0), list(candidates), 100.0
    for _ in range(len(candidates) + 110):
        waiting.append(Candidate(f"new {now}", 10, 10, now))
        chosen = policy.choose(waiting)
        assert chosen is not None
        waiting.remove(chosen)
        now += 1.0
    assert not set(waiting) & set(candidates)


def test_nothing_waits() -> None:
    assert CachedShareFirst().choose([]) is None
    assert FirstComeFirstServed().choose([]) is None
    with pytest.raises(ValueError, match="patience"):
        CachedShareFirst(0)
