"""The arm is chosen by what is measured: the nearest within the tolerance, else exact prefixes alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_checkpoint

from hypic.config import EngineConfig
from hypic.engine.engine import Engine
from hypic.eval import auto_arm
from hypic.eval.auto_arm import CANDIDATES, FALLBACK, choose_arm, measure


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Path) -> Engine:
    return Engine(EngineConfig(model=tiny_checkpoint, threads=1))


def test_choice_follows_the_tolerance(engine: Engine) -> None:
    generous = choose_arm(engine, tolerance=1e9, prompts=1, documents=2)
    nearest = min(generous.measured, key=lambda found: found.kl_nats)
    assert generous.arm == nearest.arm
    assert [found.arm for found in generous.measured] == list(CANDIDATES)
    strict = choose_arm(engine, tolerance=nearest.kl_nats / 2, prompts=1, documents=2)
    assert strict.arm == FALLBACK
    assert "only exact prefixes" in strict.reason
    assert nearest.arm in strict.table().markdown()


def test_an_exact_arm_measures_as_exact(tmp_path: Path) -> None:
    """In a model of one linear layer composition is exact: no divergence, full agreement."""
    path = write_checkpoint(tmp_path / "one", num_hidden_layers=1, layer_types=["linear_attention"])
    (found,) = measure(
        Engine(EngineConfig(model=path, threads=1, transition_tolerance=0, state_format="fp32")), ["hypic"], 1, 2, 0
    )
    assert found.kl_nats < 1e-6
    assert found.agreement == 1.0
    assert found.deepest_l2 < 1e-4


def test_a_broken_arm_measures_worse(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(EngineConfig(model=tiny_checkpoint, threads=1))
    (whole,) = measure(engine, ["hypic"], 1, 3, 0)
    original = auto_arm.combine

    @torch.inference_mode()
    def combine(engine: Engine, request: Any) -> Any:
        for entry in engine.segments:
            entry.operators.tensors["states.rows"].mul_(5.0)
        return original(engine, request)

    monkeypatch.setattr(auto_arm, "combine", combine)
    (broken,) = measure(engine, ["hypic"], 1, 3, 0)
    assert broken.kl_nats > whole.kl_nats
    assert broken.deepest_l2 > whole.deepest_l2
