"""An engine whose caches have tiers below: the same answers, found again after a restart, whatever befalls files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hypic.cache.entry import KvSpan
from hypic.cache.tiers.host import moved

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


def test_what_goes_to_the_host_is_moved_whole() -> None:
    span = KvSpan(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))
    assert moved(span, torch.device("cpu")) is span
    away = moved(span, torch.device("meta"))
    assert {tensor.device.type for tensor in away.tensors} == {"meta"}
    assert away.nbytes == span.nbytes
