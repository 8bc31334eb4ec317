"""A full queue refuses, time that is over ends a request in any phase, and who waits longest is served in time."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hypic.errors import DeadlineError, OverloadedError
from hypic.request import GenerationRequest, TokenOutput

MakeBench = Callable[..., Any]


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(bench: Any) -> Clock:
    bench.engine.clock = Clock()
    return bench.engine.clock  # type: ignore[no-any-return]


def submit(engine: Any, request: GenerationRequest) -> None:
    engine.build_here(task.key for task in engine.submit(request))


def run(engine: Any) -> dict[str, list[TokenOutput]]:
    outputs: dict[str, list[TokenOutput]] = {}
    for _ in range(1000):
        if engine.idle:
            engine.check()
            return outputs
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    raise AssertionError("the engine did not become idle")


@pytest.mark.parametrize("steps", range(5))
def test_time_that_is_over_ends_a_request_in_any_phase(bench: Any, clock: Clock, steps: int) -> None:
    """Waiting for builds, for its pass, decoding: dropped at the next step, and nobody else notices."""
    expected = bench.tokens(bench.request(bench.prompt([2, 3]), salt="alone"))
    hurried = replace(bench.request(bench.prompt([1, 2])), timeout_seconds=10.0)
    other = bench.request(bench.prompt([2, 3]))
    submit(bench.engine, hurried)
    submit(bench.engine, other)
    said = [output for _ in range(steps) for output in bench.engine.step()]
    clock.seconds += 10.0
    assert bench.engine.seconds_left == 0.0
    late = bench.engine.step()
    (last,) = [output for output in late if output.request_id == hurried.request_id]
    assert (last.finish_reason, last.error_code, last.ends_request) == ("error", "deadline_exceeded", True)
    assert last.usage.completion_tokens == sum(output.request_id == hurried.request_id for output in said)
    said += [output for output in late if output.request_id == other.request_id]
    said += run(bench.engine)[other.request_id]
    assert [output.token_id for output in said if output.request_id == other.request_id] == expected


def test_a_request_within_its_time_is_not_touched(bench: Any, clock: Clock) -> None:
    request = bench.request(bench.prompt([1]), max_tokens=4)
    submit(bench.engine, replace(request, timeout_seconds=10.0))
    clock.seconds += 9.9
    assert bench.engine.seconds_left == pytest.approx(0.1)
    assert run(bench.engine)[request.request_id][-1].finish_reason == "length"
    assert bench.engine.seconds_left is None


def test_who_waits_for_a_delivery_that_never_comes_is_dropped_in_time(bench: Any, clock: Clock) -> None:
    """Nothing is to be done meanwhile, so the engine must say by itself when to look again."""
    hurried = replace(bench.request(bench.prompt([1])), timeout_seconds=10.0)
    tasks = bench.engine.submit(hurried)
    patient = bench.request(bench.prompt([1]))
    bench.engine.submit(patient)
    assert not bench.engine.ready
    assert bench.engine.seconds_left == 10.0
    clock.seconds += 11.0
    assert bench.engine.ready
    (last,) = bench.engine.step()
    assert last.request_id == hurried.request_id
    assert not bench.engine.ready
    bench.engine.build_here(task.key for task in tasks)
    assert run(bench.engine)[patient.request_id][-1].finish_reason == "length"


def test_generate_raises_what_the_api_answers_with_408(bench: Any) -> None:
    with pytest.raises(DeadlineError, match="timeout is over"):
        bench.tokens(replace(bench.request(bench.prompt([1])), timeout_seconds=0.0))
    assert bench.engine.idle
    bench.engine.check()


def test_a_full_queue_refuses_and_keeps_nothing(make_bench: MakeBench) -> None:
    bench = make_bench(max_waiting=2)
    bench.engine.clock = clock = Clock()
    for name in range(2):
        submit(bench.engine, bench.request(bench.prompt([name])))
    clock.seconds += 3.2
    leases = bench.engine.segments.stats.leases
    with pytest.raises(OverloadedError, match="full, 2 are waiting: try again in 4 s") as refused:
        bench.engine.submit(bench.request(bench.prompt([5])))
    assert (refused.value.status, refused.value.retry_after_seconds) == (429, 4)
    assert bench.engine.segments.stats.leases == leases
    assert len(bench.engine._pending) == 3  # of the two that wait, who share the leading section
    while len(bench.engine._waiting) == 2:
        bench.engine.step()
    submit(bench.engine, bench.request(bench.prompt([5])))
    assert len(run(bench.engine)) >= 2


def test_a_stream_of_better_cached_requests_overtakes_for_a_patience_and_no_longer(bench: Any, clock: Clock) -> None:
    """Through the engine: each step a wholly cached request arrives, 0.25 s after the one before."""
    bench.tokens(bench.request(bench.prompt([1, 2])))
    cold = bench.request(bench.prompt([7], leading=0), "full", max_tokens=1)
    bench.engine.submit(cold)
    arrivals: dict[str, float] = {cold.request_id: clock.seconds}
    first: list[str] = []
    while cold.request_id not in first:
        for _ in range(2):  # more than one can be served each step, so that there is always one to prefer
            clock.seconds += 0.125
            warm = bench.request(bench.prompt([1, 2]), max_tokens=1)
            bench.engine.submit(warm)
            arrivals[warm.request_id] = clock.seconds
        first += [output.request_id for output in bench.engine.step() if output.ends_request]
    overtook = first[: first.index(cold.request_id)]
    assert len(overtook) >= 3, "nobody was preferred, so nothing was tested"
    patience = bench.engine.scheduling.patience_seconds
    assert max(arrivals[name] for name in overtook) <= arrivals[cold.request_id] + patience
    run(bench.engine)


def test_two_builds_of_one_request_that_fail_fail_nobody_else(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one finds nobody waiting any more."""
    expected = bench.tokens(bench.request(bench.prompt([4]), "full"))
    bad, good = bench.request(bench.prompt([1, 2])), bench.request(bench.prompt([4]), "full")

    def build(tasks: list[Any]) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr(bench.engine, "build", build)
    submit(bench.engine, bad)
    submit(bench.engine, good)
    outputs = run(bench.engine)
    assert [output.error for output in outputs[bad.request_id]] == ["MemoryError: no room"]
    assert [output.token_id for output in outputs[good.request_id]] == expected
