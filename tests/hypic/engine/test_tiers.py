"""An engine whose caches have tiers below: the same answers, found again after a restart, whatever befalls files."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hypic.cache.entry import KvSpan
from hypic.cache.tiers.host import moved
from hypic.workers.engine_loop import EngineLoop

MakeBench = Callable[..., Any]
ORDERS = ([1, 2, 3], [3, 2, 1], [4, 1, 5, 2], [1, 2, 3])


@pytest.mark.parametrize(("write", "policy"), [("back", "cost"), ("through", "lru")])
def test_tiers_change_no_answer(make_bench: MakeBench, tmp_path: Path, write: str, policy: str) -> None:
    plain = make_bench()
    tiered = make_bench(
        cache_bytes=600_000,
        host_cache_bytes=600_000,
        cache_url=str(tmp_path),
        disk_cache_bytes=10**7,
        cache_write=write,
        cache_policy=policy,
    )
    for order in ORDERS:
        assert tiered.tokens(tiered.request(tiered.prompt(order))) == plain.tokens(plain.request(plain.prompt(order)))
    sources = [row.source for row in tiered.engine.plan(tiered.request(tiered.prompt([5, 4, 3]))).rows]
    assert sources[1:-1] == ["segment"] * 3, "nothing was lost, though little is ready to use"
    assert tiered.engine.segments.memory.stats.loaded > 0
    tiered.engine.check()


def test_a_restart_finds_segments_and_prefixes(make_bench: MakeBench, tmp_path: Path) -> None:
    settings = {"cache_url": str(tmp_path), "cache_write": "through"}
    first = make_bench(**settings)
    expected = first.tokens(first.request(first.prompt([1, 2])))
    other = first.tokens(first.request(first.prompt([2, 1])))
    second = make_bench(**settings)
    plan = second.engine.plan(second.request(second.prompt([1, 2])))
    assert [row.source for row in plan.rows] == ["prefix", "prefix", "prefix", "active"]
    assert second.tokens(second.request(second.prompt([1, 2]))) == expected
    assert second.tokens(second.request(second.prompt([2, 1]))) == other
    assert second.engine.segments.stats.inserted == 0, "nothing had to be built"
    second.engine.check()


@pytest.mark.parametrize("kind", ["segment", "full", "state"])
def test_damaged_files_cost_time_not_answers(make_bench: MakeBench, tmp_path: Path, kind: str) -> None:
    settings = {"cache_url": str(tmp_path), "cache_write": "through"}
    first = make_bench(**settings)
    expected = first.tokens(first.request(first.prompt([1, 2])))
    for file in tmp_path.rglob(f"{kind}-*"):
        data = bytearray(file.read_bytes())
        data[-1] ^= 255
        file.write_bytes(data)
    second = make_bench(**settings)
    assert second.tokens(second.request(second.prompt([1, 2]))) == expected
    second.engine.check()


def test_another_model_shares_nothing(make_bench: MakeBench, tmp_path: Path) -> None:
    settings = {"cache_url": str(tmp_path), "cache_write": "through"}
    first = make_bench(**settings)
    first.tokens(first.request(first.prompt([1, 2])))
    second = make_bench(dtype="bfloat16", **settings)
    assert second.engine.plan(second.request(second.prompt([1, 2]))).cached_tokens == 0
    second.engine.check()


@pytest.fixture
def restarted(make_bench: MakeBench, tmp_path: Path) -> Iterator[tuple[Any, threading.Event]]:
    """An engine that finds documents 1 and 2 on disk alone, where reading takes until the event is set."""
    settings = {"cache_url": str(tmp_path), "cache_write": "through"}
    first = make_bench(**settings)
    first.tokens(first.request(first.prompt([1, 2])))
    second, go = make_bench(**settings), threading.Event()
    tier = second.engine.memory.tiers[-1]
    read = tier.get
    tier.get = lambda cell: (cell.kind == "segment" and go.wait(20), read(cell))[1]
    yield second, go
    go.set()


def test_reading_from_disk_keeps_nobody_from_decoding(restarted: Any) -> None:
    bench, go = restarted
    engine = bench.engine
    plan = engine.plan(bench.request(bench.prompt([2, 1])))
    assert [row.tier for row in plan.rows] == ["disk"] * 3 + [""]
    assert len(engine.arrivals) == 0, "a plan reads nothing"
    other = bench.request(bench.prompt([7]))
    engine.build_here(task.key for task in engine.submit(other))
    engine.step()
    assert engine.submit(bench.request(bench.prompt([2, 1]))) == ()
    said = [output.request_id for _ in range(4) for output in engine.step()]
    assert said == [other.request_id] * 4
    go.set()
    rows: list[Any] = []
    while not engine.idle:
        rows = [output.plan.rows for output in engine.step() if output.request_id != other.request_id] or rows
    assert [row.source for row in rows[-1][1:3]] == ["segment", "segment"]
    engine.check()


def test_who_leaves_while_it_is_read_leaves_nothing_behind(restarted: Any) -> None:
    bench, go = restarted
    engine = bench.engine
    request = bench.request(bench.prompt([2, 1]))
    engine.submit(request)
    assert len(engine.arrivals) == 2
    engine.abort(request.request_id)
    assert not engine.ready
    go.set()
    while not engine.idle:
        engine.step()
    engine.check()
    assert [row.tier for row in engine.plan(request).rows[1:3]] == ["device", "device"]


def test_a_file_that_is_damaged_is_built_anew_and_the_plan_says_so(make_bench: MakeBench, tmp_path: Path) -> None:
    settings = {"cache_url": str(tmp_path), "cache_write": "through"}
    first = make_bench(**settings)
    expected = first.tokens(first.request(first.prompt([2, 1])))
    first.tokens(first.request(first.prompt([1, 2])))
    second = make_bench(**settings)
    for file in tmp_path.rglob("segment-*"):
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    for file in tmp_path.rglob("full-*"):
        file.unlink()
    outputs = list(second.engine.generate(second.request(second.prompt([2, 1]))))
    assert [output.token_id for output in outputs] == expected
    assert [(row.source, row.reason) for row in outputs[-1].plan.rows[1:3]] == [("build", "damaged")] * 2
    assert outputs[-1].plan.built_tokens == sum(row.tokens for row in outputs[-1].plan.rows[:3])
    second.engine.check()


def test_a_sleeping_loop_wakes_when_a_read_is_over(make_bench: MakeBench, tmp_path: Path) -> None:
    settings = {"cache_url": str(tmp_path), "cache_write": "through"}
    first = make_bench(**settings)
    expected = first.tokens(first.request(first.prompt([1, 2])))
    loop, said, over = EngineLoop(replace(first.engine.config, **settings)), [], threading.Event()

    def listen(message: Any) -> None:
        said.append(message.token_id)
        if message.ends_request:
            over.set()

    assert loop.open(first.request(first.prompt([1, 2])), listen).result(20) == ()
    assert over.wait(20)
    assert said == expected
    loop.stop()


def test_what_goes_to_the_host_is_moved_whole() -> None:
    span = KvSpan(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))
    assert moved(span, torch.device("cpu")) is span
    away = moved(span, torch.device("meta"))
    assert {tensor.device.type for tensor in away.tensors} == {"meta"}
    assert away.nbytes == span.nbytes
