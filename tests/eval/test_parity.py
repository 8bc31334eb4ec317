"""Parity: what it finds equal is equal, and what is broken it finds."""

from pathlib import Path

import pytest
from torch import Tensor

from hypic.errors import UnsupportedModelError
from hypic.eval import parity
from hypic.eval.random_model import tiny_shape, write_random_model
from hypic.layers.rotary import RotaryPositions


@pytest.fixture(autouse=True)
def quiet() -> None:
    parity.silence_transformers()


def test_a_checkpoint_agrees_with_transformers(tiny_checkpoint: Path) -> None:
    report = parity.run_parity(tiny_checkpoint, timed_tokens=65, repeats=1, seed=0)
    found = report.results["architectures"]["qwen3_5"]
    assert found["max_abs_logit_diff"] <= parity.LIMIT
    assert found["max_abs_logit"] > 0.1, "logits of nothing would agree as well"
    assert found["greedy_equal"]
    assert found["seconds_ours"] > 0
    assert found["seconds_transformers"] > 0


@pytest.mark.parametrize("name", sorted(parity.text_model_types()))
def test_random_checkpoints_of_an_architecture_load_in_both(name: str, tmp_path: Path) -> None:
    model_type = parity.text_model_types()[name]
    write_random_model(tmp_path, model_type, tiny_shape(model_type), seed=1, gain=4.0)
    assert parity.compare(tmp_path, seed=1)["max_abs_logit_diff"] <= parity.LIMIT


def test_a_wrong_rotation_is_seen(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = RotaryPositions.__call__

    def stretched(self: RotaryPositions, positions: Tensor) -> tuple[Tensor, Tensor]:
        return right(self, positions * 2)

    monkeypatch.setattr(RotaryPositions, "__call__", stretched)
    assert parity.compare(tiny_checkpoint, seed=0)["max_abs_logit_diff"] > 10 * parity.LIMIT


def test_an_architecture_that_transformers_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="no_such_type"):
        write_random_model(tmp_path, "no_such_type", {})
