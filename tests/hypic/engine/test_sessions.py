"""Sessions and scheduling in the engine: whose memory goes last, and who runs first."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hypic.engine.scheduler import FirstComeFirstServed


def turn(bench: Any, documents: list[int], session: str = "", salt: str = "") -> Any:
    return replace(bench.request(bench.prompt(documents), salt=salt, max_tokens=1), session_id=session)


def referred(engine: Any) -> int:
    return sum(bool(cell.sessions) for cell in (*engine.segments.cells, *engine.prefixes.tree.cells()))


def test_a_finished_request_refers_to_what_the_next_one_can_reuse(bench: Any) -> None:
    engine = bench.engine
    bench.tokens(turn(bench, [1, 2]))
    assert referred(engine) == 0
    bench.tokens(turn(bench, [1, 2, 3], "chat"))
    assert referred(engine) > 0
    assert engine.close_session("chat")
    assert referred(engine) == 0
    assert not engine.close_session("chat")
    engine.check()


def test_a_late_request_of_a_closed_session_refers_to_nothing(bench: Any) -> None:
    engine, request = bench.engine, turn(bench, [1, 2], "chat")
    engine.build_here(task.key for task in engine.submit(request))
    engine.close_session("chat")
    while not engine.idle:
        engine.step()
    bench.tokens(turn(bench, [1, 3], "chat"))
    assert referred(engine) == 0
    engine.open_session("chat")
    bench.tokens(turn(bench, [1, 3], "chat"))
    assert referred(engine) > 0


def test_tenants_sessions_are_their_own(bench: Any) -> None:
    bench.tokens(turn(bench, [1], "1", salt="a"))
    assert not bench.engine.close_session("a1", salt="")
    assert not bench.engine.close_session("1", salt="b")
    assert bench.engine.close_session("1", salt="a")


@pytest.mark.parametrize("session", ["", "chat"])
def test_what_a_session_uses_outlives_what_nobody_refers_to(make_bench: Callable[..., Any], session: str) -> None:
    bench = make_bench(cache_bytes=500_000)
    bench.tokens(turn(bench, [1], session))
    for other in range(2, 6):
        bench.tokens(turn(bench, [other]))
    assert bench.engine.segments.stats.evicted > 0
    plan = bench.engine.plan(turn(bench, [5, 1]))
    sources = [row.source for row in plan.rows if row.label == "document 1"]
    assert sources == (["segment"] if session else ["build"])


@pytest.mark.parametrize("by_arrival", [False, True])
def test_the_more_cached_request_runs_first(bench: Any, by_arrival: bool) -> None:
    engine = bench.engine
    if by_arrival:
        engine.scheduling = FirstComeFirstServed()
    bench.tokens(turn(bench, [1, 2, 3]))
    cold, warm = bench.request(bench.prompt([1]), "full", max_tokens=1), turn(bench, [1, 2, 3])
    engine.submit(cold)
    engine.submit(warm)
    first = engine.step()[0].request_id
    assert first == (cold if by_arrival else warm).request_id
    while not engine.idle:
        engine.step()
