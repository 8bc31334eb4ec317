"""Parity: what it finds equal is equal, and what is broken it finds."""

from pathlib import Path

import pytest
from torch import Tensor

from hypic.errors import UnsupportedModelError
from hypic.eval import parity
from hypic.eval.random_model import silence_transformers, write_random_model
from hypic.layers.rotary import RotaryPositions


@pytest.fixture(autouse=True)
def quiet() -> None:
    silence_transformers()


def test_a_checkpoint_agrees_with_transformers(tiny_checkpoint: Path) -> None:
    report = parity.run_parity(tiny_checkpoint, timed_tokens=65, repeats=1, seed=0)
    found = report.results["architectures"]["qwen3_5"]
    assert found["max_abs_logit_diff"] <= parity.LIMIT
    assert found["max_abs_logit"] > 0.1, "logits of nothing would agree as well"
    assert found["greedy_equal"]
    assert found["seconds_ours"] > 0
    assert found["seconds_transformers"] > 0


def test_random_checkpoints_of_every_architecture_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = parity.text_model_types()
    assert kinds["qwen3_5"] == "qwen3_5_text"
    chosen = {name: kinds[name] for name in ("qwen3_5", "qwen3_5_moe", "qwen3_next")}
    monkeypatch.setattr(parity, "text_model_types", lambda: chosen | {"new": "no_such_type"})
    results = parity.run_parity(None, timed_tokens=0, repeats=1, seed=1).results
    assert set(results["architectures"]) == set(chosen)
    assert all(row["max_abs_logit_diff"] <= parity.LIMIT for row in results["architectures"].values())
    assert "no_such_type" in results["skipped"]["new"]


def test_a_wrong_rotation_is_seen(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = RotaryPositions.__call__

    def stretched(self: RotaryPositions, positions: Tensor) -> tuple[Tensor, Tensor]:
        return right(self, positions * 2)

    monkeypatch.setattr(RotaryPositions, "__call__", stretched)
    assert parity.compare(tiny_checkpoint, seed=0)["max_abs_logit_diff"] > 10 * parity.LIMIT


def test_an_architecture_that_transformers_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="no_such_type"):
        write_random_model(tmp_path, "no_such_type", {})
