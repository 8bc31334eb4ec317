"""Fidelity: exact where the mathematics says so, and every planted fault is seen in the layer where it sits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_checkpoint
from torch import Tensor

from hypic.arms import ARMS
from hypic.cache.entry import SegmentEntry
from hypic.config import EngineConfig
from hypic.engine.engine import Engine
from hypic.errors import InvalidRequestError
from hypic.eval.fidelity import angle_degrees, run_fidelity

REUSING = [arm.name for arm in ARMS.values() if arm.reuse_segments]


@pytest.fixture(scope="module")
def make_engine(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Engine]:
    """Fresh engines, so that no cache outlives a planted fault, on models whose first layer is of the given kind."""
    paths: dict[str, Path] = {}

    def make(kind: str) -> Engine:
        if kind not in paths:
            path = tmp_path_factory.mktemp("fidelity") / kind
            layers = [f"{kind}_attention", "linear_attention", "full_attention"]
            paths[kind] = write_checkpoint(path, num_hidden_layers=3, layer_types=layers)
        return Engine(EngineConfig(model=paths[kind], threads=1, transition_tolerance=0, state_format="fp32"))

    return make


def measured(engine: Engine, *arms: str) -> dict[tuple[int, str], dict[str, Any]]:
    report = run_fidelity(engine, "recall", arms, limit=1, documents=3, seed=0)
    return {(row["index"], row["arm"]): row for row in report.results["layers"]}


def test_first_layer_is_exact_under_composition_and_not_under_the_strawmen(
    make_engine: Callable[[str], Engine],
) -> None:
    rows = measured(make_engine("linear"), *REUSING, "prefix")
    assert {index for index, _ in rows} == {0, 1, 2}
    assert [rows[index, "hypic"]["kind"] for index in range(3)] == ["linear", "linear", "full"]
    for arm in ("hypic", "anchored", "prefix"):
        assert rows[0, arm]["relative_l2"] < 2e-6, arm
    assert rows[0, "transition"]["relative_l2"] > 1e-4, "without a seam the convolution starts each segment on zeros"
    for arm in ("addition", "last_state"):
        assert rows[0, arm]["relative_l2"] > 0.01, arm
    assert all(rows[index, "prefix"]["relative_l2"] < 1e-4 for index in range(3)), (
        "prefix reuse is exact in every layer"
    )
    assert rows[2, "hypic"]["keys_relative_l2"] > 1e-4, "deeper layers drift"


def test_keys_of_a_first_full_layer_are_exact(make_engine: Callable[[str], Engine]) -> None:
    rows = measured(make_engine("full"), *REUSING)
    assert all(rows[0, arm]["relative_l2"] < 1e-6 for arm in REUSING)


def test_a_wrong_rotation_is_seen_in_keys_alone(
    make_engine: Callable[[str], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine("full")
    model: Any = engine.model
    right = model.rotate_keys

    def off_by_one(keys: Tensor, positions: Tensor, out: Tensor) -> None:
        right(keys, positions + 1, out)

    monkeypatch.setattr(model, "rotate_keys", off_by_one, raising=False)
    row = measured(engine, "hypic")[0, "hypic"]
    assert row["keys_relative_l2"] > 0.01
    assert row["angle_degrees"] > 0.5
    assert row["values_relative_l2"] < 1e-6


def test_a_zeroed_transition_is_seen(make_engine: Callable[[str], Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine("linear")
    deliver = engine.deliver

    def forgetful(entry: SegmentEntry) -> None:
        entry.operators.tensors["transitions.wholes"].zero_()
        deliver(entry)

    monkeypatch.setattr(engine, "deliver", forgetful)
    assert measured(engine, "hypic")[0, "hypic"]["relative_l2"] > 0.01


def test_angle_is_exact_where_it_is_tiny() -> None:
    a = torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert angle_degrees(a, 3 * a) == 0.0
    assert angle_degrees(a, torch.tensor([0.0, 2.0], dtype=torch.float64)) == pytest.approx(90.0)
    assert angle_degrees(a, torch.tensor([1.0, 1e-9], dtype=torch.float64)) == pytest.approx(5.7296e-8, rel=1e-4)


def test_there_must_be_an_arm_to_compare(make_engine: Callable[[str], Engine]) -> None:
    with pytest.raises(InvalidRequestError, match="at least one arm"):
        run_fidelity(make_engine("linear"), "recall", ["full"], limit=1, documents=2, seed=0)
