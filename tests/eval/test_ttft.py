"""TTFT: the gate stops what is wrong, the counts are those of the plan, and what is timed ends at the first token."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from hypic.arms import ARMS
from hypic.config import EngineConfig
from hypic.engine.engine import Engine
from hypic.errors import InvalidRequestError, PromptTooLongError
from hypic.eval import random_model, ttft
from hypic.eval.ttft import GateError, Prompts, Timings, Workload, check_gate, run_ttft, time_request

PROMPTS = Prompts(documents=4, document_tokens=120)


@pytest.fixture
def engine(tiny_checkpoint: Path) -> Engine:
    return Engine(EngineConfig(model=tiny_checkpoint, threads=1))


def test_report_of_a_small_run(tiny_checkpoint: Path) -> None:
    config = EngineConfig(threads=1)
    arms = ["full", "prefix", "hypic"]
    results = run_ttft(config, tiny_checkpoint, arms, PROMPTS, rounds=2, warm_repeats=3).results
    assert list(results["arms"]) == arms
    assert [row["requests"] for row in results["arms"].values()] == [1, 2, 6]
    full, prefix, hypic = (results["arms"][name] for name in arms)
    assert full["tokens_computed"] == results["prompt_tokens"]
    assert hypic["tokens_computed"] < prefix["tokens_computed"] < full["tokens_computed"], "the system prompt is shared"
    assert 0 < hypic["p50_ms"] <= hypic["p99_ms"]
    assert results["token_ratio"] == pytest.approx(prefix["tokens_computed"] / hypic["tokens_computed"])
    assert results["share_of_token_ratio"] == pytest.approx(results["speedup"] / results["token_ratio"])


def test_default_model_is_made_with_the_bundled_tokenizer(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_model, "BUNDLED_MODEL", tiny_checkpoint)
    report = run_ttft(EngineConfig(threads=1), None, ["hypic"], PROMPTS, rounds=1, warm_repeats=1)
    assert report.model.startswith("random qwen3_5")
    assert report.results["model_parameters"] > 3e6
    assert "speedup" not in report.results


def test_gate_is_green_on_a_sound_engine(engine: Engine) -> None:
    gate = check_gate(Workload(engine, PROMPTS))
    assert set(gate) == {"prefix_full", "active_full", "hit_miss"}
    assert max(gate.values()) <= ttft.GATE


def test_gate_is_red_where_cached_keys_are_placed_wrongly(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = engine.model
    right, calls = model.rotate_keys, []

    def second_time_wrong(keys: Tensor, positions: Tensor, out: Tensor) -> None:
        calls.append(positions)
        right(keys, positions + 40 * (len(calls) > PROMPTS.documents + 1), out)

    monkeypatch.setattr(model, "rotate_keys", second_time_wrong, raising=False)
    with pytest.raises(GateError, match="hit_miss"):
        check_gate(Workload(engine, PROMPTS))


def test_a_request_leaves_nothing_to_do_for_the_next(engine: Engine) -> None:
    workload, timings = Workload(engine, PROMPTS), Timings()
    output = time_request(engine, workload.request(ARMS["prefix"], workload.documents), timings)
    assert engine.idle, "remembering the prefix is done, and was not timed"
    assert timings.tokens_computed == [output.usage.prompt_tokens]
    again = time_request(engine, workload.request(ARMS["prefix"], workload.documents), timings)
    assert again.usage.cached_tokens > 0


def test_coarser_dtypes_are_held_to_their_own_rounding(tiny_checkpoint: Path) -> None:
    config = EngineConfig(threads=1, dtype="bfloat16")
    results = run_ttft(config, tiny_checkpoint, ["prefix"], PROMPTS, rounds=1, warm_repeats=1).results
    assert results["gate"]["hit_miss"] <= ttft.GATE


def test_a_prompt_that_is_too_long_is_refused_before_anything_is_run(tiny_checkpoint: Path) -> None:
    with pytest.raises(PromptTooLongError, match="at most 4096"):
        run_ttft(EngineConfig(threads=1), tiny_checkpoint, ["full"], Prompts(8, 700), rounds=1, warm_repeats=1)


def test_a_cache_that_cannot_hold_the_documents_is_refused(tiny_checkpoint: Path) -> None:
    config = EngineConfig(threads=1, cache_bytes=300_000)
    with pytest.raises(InvalidRequestError, match="raise --cache-bytes"):
        run_ttft(config, tiny_checkpoint, ["hypic"], PROMPTS, rounds=1, warm_repeats=1)
