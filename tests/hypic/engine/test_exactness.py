"""Where PIC is exact, it must equal a full recompute; where it is approximate, the arms must differ as they should."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_checkpoint
from torch import Tensor

from hypic.arms import ARMS

MakeBench = Callable[..., Any]
LINEAR_ARMS = ["addition", "last_state", "transition", "hypic"]


def gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


@pytest.fixture(scope="module")
def one_linear_layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Composition is exact within a layer, so a model whose first layer is its only linear one shows it: layer 0 sees
    embeddings alone, and the full-attention layer behind it is there because a hybrid has one."""
    path = tmp_path_factory.mktemp("one-linear")
    return write_checkpoint(path, num_hidden_layers=1, layer_types=["linear_attention"])


@pytest.fixture(scope="module")
def attention_first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("attention-first")
    return write_checkpoint(path, num_hidden_layers=2, layer_types=["full_attention", "linear_attention"])


def test_full_is_transformers(bench: Any, tiny_checkpoint: Path) -> None:
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(tiny_checkpoint, dtype=torch.float32).eval()
    segments = bench.prompt([1, 2, 3])
    ids = torch.cat([torch.from_numpy(segment.token_ids) for segment in segments]).long()[None]
    with torch.inference_mode():
        expected = reference(ids).logits[0, -9:]
        generated = reference.generate(ids, max_new_tokens=8, min_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
    assert gap(bench.logits(bench.request(segments, "full")), expected) <= 1e-4
    assert bench.tokens(bench.request(segments, "full")) == generated.tolist()


def test_prefix_hit_equals_miss(bench: Any) -> None:
    segments = bench.prompt([1, 2, 3])
    full = bench.logits(bench.request(segments, "full"))
    bench.tokens(bench.request(segments, "prefix"))
    request = bench.request(segments, "prefix")
    assert [row.source for row in bench.engine.plan(request).rows] == ["prefix"] * 4 + ["active"]
    assert gap(bench.logits(request), full) <= 1e-4


@pytest.mark.parametrize("leading", [0, 30])
def test_composition_is_exact_in_one_layer(make_bench: MakeBench, one_linear_layer: Path, leading: int) -> None:
    bench = make_bench(model=one_linear_layer)
    segments = bench.prompt([1, 2, 3, 2], leading=leading)
    full = bench.logits(bench.request(segments, "full"))
    gaps = {arm: gap(bench.logits(bench.request(segments, arm)), full) for arm in LINEAR_ARMS}
    assert gaps["hypic"] <= 1e-4, gaps
    assert min(gaps["addition"], gaps["last_state"]) > 100 * gaps["hypic"], gaps
    assert gaps["transition"] > 10 * gaps["hypic"], "without a seam the convolution of each segment starts wrong"


def test_attention_moves_exactly(make_bench: MakeBench, attention_first: Path) -> None:
    """The first layer's keys and values depend on tokens and positions alone: moved ones equal recomputed ones."""
    from hypic.batch import PrefillBatch

    bench = make_bench(model=attention_first)
    memories = []
    for arm in ("full", "hypic"):
        bench.logits(bench.request(bench.prompt([3, 1, 2], leading=0), arm))  # elsewhere first, so that 1 and 2 move
        request = bench.request(bench.prompt([1, 2, 3]), arm)
        tasks = bench.engine.submit(request)
        for entry in bench.engine.build(list(tasks)):
            bench.engine.deliver(entry)
        sequence = bench.engine.composer.sequence(bench.engine._waiting[request.request_id])
        with torch.inference_mode():
            bench.engine.model.forward(PrefillBatch([sequence]))
        memories.append(
            (sequence.cache.keys[0, : request.prompt_tokens], sequence.cache.values[0, : request.prompt_tokens])
        )
        bench.engine.abort(request.request_id)
    assert gap(memories[0][0], memories[1][0]) <= 1e-5
    assert gap(memories[0][1], memories[1][1]) <= 1e-5


@pytest.mark.parametrize("arm", ["hypic", "anchored"])
def test_leading_section_is_exact(bench: Any, arm: str) -> None:
    segments = bench.prompt([], leading=130)
    full = bench.logits(bench.request(segments, "full"))
    request = bench.request(segments, arm)
    assert [row.source for row in bench.engine.plan(request).rows] == ["build", "active"]
    assert gap(bench.logits(request), full) <= 1e-4
    bench.tokens(bench.request(segments, arm))
    again = bench.request(segments, arm)
    assert [row.source for row in bench.engine.plan(again).rows] == ["prefix", "active"]
    assert gap(bench.logits(again), full) <= 1e-4


def test_anchored_is_exact_behind_its_anchor(bench: Any) -> None:
    """One document behind the leading section was built exactly where it stands."""
    segments = bench.prompt([1])
    full = bench.logits(bench.request(segments, "full"))
    assert gap(bench.logits(bench.request(segments, "anchored")), full) <= 1e-4
    assert gap(bench.logits(bench.request(segments, "hypic")), full) > 1e-3, "built behind nothing: approximate"


def test_all_short_is_a_full_recompute(make_bench: MakeBench) -> None:
    bench = make_bench(min_segment_tokens=500)
    segments = bench.prompt([1, 2, 3])
    request = bench.request(segments, "hypic")
    assert {row.reason for row in bench.engine.plan(request).rows[:-1]} == {"too_short"}
    assert gap(bench.logits(request), bench.logits(bench.request(segments, "full"))) <= 1e-5


@pytest.mark.parametrize("arm", [name for name in ARMS if ARMS[name].reuse_segments])
def test_hit_equals_miss(bench: Any, arm: str) -> None:
    """Warm, cold and found in another order: the same numbers, to rounding."""
    segments = bench.prompt([1, 2, 3])
    cold = bench.logits(bench.request(segments, arm, salt="a"))
    bench.logits(bench.request(bench.prompt([3, 1, 4, 2]), arm, salt="b"))
    warm_request = bench.request(segments, arm, salt="b")
    assert all(row.source != "build" for row in bench.engine.plan(warm_request).rows)
    assert gap(bench.logits(warm_request), cold) <= 1e-4


@pytest.mark.parametrize("lengths", [[1, 63, 65], [13, 12, 11], [64, 64, 64], [25, 24, 23], [200, 1, 2]])
def test_odd_lengths_stay_close_to_full(make_bench: MakeBench, one_linear_layer: Path, lengths: list[int]) -> None:
    bench = make_bench(model=one_linear_layer, min_segment_tokens=1)
    segments = bench.prompt([1, 2, 3], lengths)
    full = bench.logits(bench.request(segments, "full"))
    assert gap(bench.logits(bench.request(segments, "hypic")), full) <= 1e-4


def test_wider_seam_is_closer(bench: Any) -> None:
    """More recomputed tokens, less drift: the seam does what it is for."""
    from dataclasses import replace

    segments = bench.prompt([1, 2, 3])
    full = bench.logits(bench.request(segments, "full"))
    drift = [
        gap(bench.logits(bench.request(segments, replace(ARMS["hypic"], seam_tokens=width))), full)
        for width in (0, 8, 50)
    ]
    assert drift[2] < drift[0], drift


def test_bfloat16_runs_close_to_float32(make_bench: MakeBench) -> None:
    rough, fine = make_bench(dtype="bfloat16"), make_bench()
    segments = fine.prompt([1, 2, 3])
    a, b = (bench.logits(bench.request(segments, "hypic")) for bench in (rough, fine))
    assert rough.engine.composer.spec.dtype == torch.bfloat16
    assert 0 < gap(a, b) < 0.25 * float(b.abs().max())
