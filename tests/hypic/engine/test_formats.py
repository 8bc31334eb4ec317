"""Segments in compact formats: keys that separate them, what stays exact all the same, and how far answers move."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hypic.config import EngineConfig
from hypic.errors import GenerationError

MakeBench = Callable[..., Any]
COMPACT = {"transition_tolerance": 1e-3, "state_format": "int8"}


def gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def test_engines_of_other_formats_share_nothing(make_bench: MakeBench, tmp_path: Path) -> None:
    """Neither segments nor what was composed of them, though they share a directory."""
    disk = {"cache_url": str(tmp_path), "cache_write": "through"}
    settings = [{}, COMPACT, COMPACT | {"state_format": "bf16"}, COMPACT | {"transition_tolerance": 1e-2}]
    keys = set()
    for number, formats in enumerate(settings):
        bench = make_bench(**disk, **formats)
        request = bench.request(bench.prompt([1, 2]))
        assert bench.engine.plan(request).cached_tokens == 0, "nothing of the engines before"
        bench.tokens(request)
        keys |= {entry.key for entry in bench.engine.segments}
        bench.engine.check()
        assert len(keys) == 2 * number + 3, "the leading section has an entry only where that is exact"


def test_compact_entries_are_smaller_and_accounted_for(make_bench: MakeBench) -> None:
    whole, compact = make_bench(), make_bench(**COMPACT)
    held = []
    for bench in (whole, compact):
        bench.tokens(bench.request(bench.prompt([1, 2], leading=0)))
        entries = list(bench.engine.segments)
        held.append(sum(entry.operators.nbytes for entry in entries))
        assert bench.engine.segments.stats.used_bytes == sum(entry.nbytes for entry in entries)
        assert bench.engine.memory.use()[0].nbytes["segment"] == bench.engine.segments.stats.used_bytes
        bench.engine.check()
    assert held[1] < 0.6 * held[0], "K = 16 in the tiny model: scales and diagonals weigh more than at 128"


def test_answers_move_little_and_hits_are_misses(make_bench: MakeBench) -> None:
    whole, compact = make_bench(), make_bench(**COMPACT)
    segments = whole.prompt([1, 2, 3])
    exact = whole.logits(whole.request(segments))
    cold = compact.logits(compact.request(segments))
    assert 0 < gap(cold, exact) < 0.05 * float(exact.abs().max())
    compact.logits(compact.request(compact.prompt([3, 1, 2])))
    warm = compact.request(segments)
    assert [row.source for row in compact.engine.plan(warm).rows[1:-1]] == ["segment"] * 3
    assert gap(compact.logits(warm), cold) <= 1e-4


def test_the_leading_section_stays_exact(make_bench: MakeBench) -> None:
    """It is computed once and then found as an exact prefix, by other arms too."""
    bench = make_bench(**COMPACT)
    segments = bench.prompt([], leading=130)
    full = bench.logits(bench.request(segments, "full"))
    request = bench.request(segments, "hypic")
    row = bench.engine.plan(request).rows[0]
    assert (row.source, row.reason) == ("active", "leading")
    assert gap(bench.logits(request), full) <= 1e-4
    bench.tokens(bench.request(segments, "hypic"))
    for arm in ("hypic", "anchored", "prefix"):
        again = bench.request(segments, arm)
        assert [row.source for row in bench.engine.plan(again).rows] == ["prefix", "active"]
        assert gap(bench.logits(again), full) <= 1e-4


def test_what_was_composed_of_compact_entries_is_never_called_exact(make_bench: MakeBench) -> None:
    """A document at position 0 takes its stored state, so even the first boundary is not exact."""
    bench = make_bench(**COMPACT)
    segments = bench.prompt([1, 2], leading=0)
    bench.tokens(bench.request(segments, "hypic"))
    assert [row.source for row in bench.engine.plan(bench.request(segments, "hypic")).rows] == ["prefix"] * 2 + [
        "active"
    ]
    assert [row.source for row in bench.engine.plan(bench.request(segments, "prefix")).rows] == ["active"] * 3
    lossless = make_bench()
    lossless.tokens(lossless.request(segments, "hypic"))
    plan = lossless.engine.plan(lossless.request(segments, "prefix"))
    assert [row.source for row in plan.rows] == ["prefix", "active", "active"]


def test_an_operator_that_is_not_finite_fails_its_request_alone(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(**COMPACT)
    monkeypatch.setattr(
        "hypic.engine.builder.apply_transition", lambda transition, state: torch.full_like(state, float("nan"))
    )
    with pytest.raises(GenerationError, match="S of linear layer 0, head 0 holds NaN"):
        bench.tokens(bench.request(bench.prompt([1])))
    monkeypatch.undo()
    assert len(bench.engine.segments) == 0
    assert len(bench.tokens(bench.request(bench.prompt([1])))) == 8
    bench.engine.check()


def test_settings_are_checked() -> None:
    for wrong in (-1.0, 1.0, 1e-12, float("nan")):
        with pytest.raises(ValueError, match="transition_tolerance must be"):
            EngineConfig(transition_tolerance=wrong)
    with pytest.raises(ValueError, match="state_format must be fp32, bf16 or int8, found 'fp8'"):
        EngineConfig(state_format="fp8")
