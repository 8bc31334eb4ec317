"""Fidelity: exact where the mathematics says so, and every planted fault is seen in the layer where it sits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_checkpoint
from faults import wrong_rotation, zeroed_transition

from hypic.arms import ARMS
from hypic.config import EngineConfig
from hypic.engine.engine import Engine
from hypic.errors import InvalidRequestError
from hypic.eval.fidelity import run_fidelity
from hypic.eval.memory import Apart, angle_degrees
from hypic.eval.settings import FidelityConfig

ONE = FidelityConfig(limit=1, documents=3, seams="")
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
    report = run_fidelity(engine, FidelityConfig(limit=1, documents=3, seams=""), arms)
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


def test_a_wrong_rotation_is_seen_in_keys_alone_and_fails_the_run(
    make_engine: Callable[[str], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine("full")
    assert run_fidelity(engine, ONE, ["hypic"]).results["passed"]
    engine = make_engine("full")
    wrong_rotation(engine, monkeypatch)
    results = run_fidelity(engine, ONE, ["hypic"]).results
    assert not results["passed"]
    (row,) = (row for row in results["layers"] if row["index"] == 0)
    assert row["keys_relative_l2"] > 0.01
    assert row["angle_degrees"] > 0.5
    assert row["values_relative_l2"] < 1e-6


def test_a_zeroed_transition_is_seen(make_engine: Callable[[str], Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine("linear")
    zeroed_transition(engine, monkeypatch)
    assert measured(engine, "hypic")[0, "hypic"]["relative_l2"] > 0.01


def test_positions_show_the_seam(make_engine: Callable[[str], Engine]) -> None:
    """Exact in the first layer wherever one looks; in the keys of the last, the seam is near, what follows is not."""
    rows = run_fidelity(make_engine("linear"), ONE, ["hypic", "transition"]).results["positions"]
    assert {"index", "kind", "arm", "part", "from_token", "to_token", "relative_l2", "angle_degrees"} <= set(rows[0])

    def at(index: int, part: str, arm: str) -> dict[tuple[int, int | None], float]:
        return {
            (row["from_token"], row["to_token"]): row["relative_l2"]
            for row in rows
            if (row["index"], row["part"], row["arm"]) == (index, part, arm)
        }

    first = at(0, "state", "hypic")
    assert {(0, 1), (1, 2), (2, 4), (4, 8), (16, 32), (0, None)} <= set(first)
    assert (8, 16) in first, "a cut document of 16 tokens is a seam of 8 and a remainder of 8"
    assert max(first.values()) < 2e-6
    assert max(at(0, "state", "transition").values()) > 1e-4
    keys = at(2, "keys", "hypic")
    seam, behind = (max(keys[bin] for bin in bins) for bins in (((0, 1), (4, 8)), ((8, 16), (16, 32))))
    assert seam < behind
    assert at(2, "keys", "transition")[0, 1] > 2 * keys[0, 1], "without a seam the head of a document is off most"


def test_states_by_position_end_at_the_state_before_the_question(make_engine: Callable[[str], Engine]) -> None:
    """Cutting the last document at its end gives what the whole prompt gives, in every layer."""
    results = run_fidelity(make_engine("linear"), ONE, ["hypic", "addition"]).results
    ends: dict[tuple[int, str], float] = {
        (row["index"], row["arm"]): row["relative_l2"] for row in results["positions"] if row["to_token"] is None
    }
    layers = {(row["index"], row["arm"]): row["relative_l2"] for row in results["layers"] if row["kind"] == "linear"}
    assert set(ends) == set(layers)
    single = {place: value for place, value in layers.items() if place[1] == "addition"}
    for place in single:
        assert ends[place] == pytest.approx(layers[place], rel=0.5), "pooled over prompts here, a mean there"


def test_a_wider_seam_brings_the_arm_nearer(make_engine: Callable[[str], Engine]) -> None:
    config = FidelityConfig(limit=1, documents=3, seams="64,0,16,16")
    seams = run_fidelity(make_engine("linear"), config, ["hypic"]).results["seams"]
    assert [(row["w"], row["anchored"]) for row in seams] == [(w, a) for a in (False, True) for w in (0, 16, 64)]
    for anchored in (False, True):
        rows = [row for row in seams if row["anchored"] == anchored]
        assert [row["computed_tokens"] for row in rows] == sorted({row["computed_tokens"] for row in rows})
        assert rows[0]["kl_nats"] > rows[2]["kl_nats"]
        deepest = [row["layers"][2]["relative_l2"] for row in rows]
        assert deepest == sorted(deepest, reverse=True)
        assert rows[0]["layers"][0]["relative_l2"] > 1e-4 > rows[1]["layers"][0]["relative_l2"]


def test_seams_are_numbers() -> None:
    assert FidelityConfig(seams="").widths == ()
    assert FidelityConfig(seams="8, 0,8").widths == (0, 8)
    with pytest.raises(ValueError, match="seams must be numbers"):
        FidelityConfig(seams="8,-1")


def test_gathered_parts_are_the_whole() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 50, dtype=torch.float64)
    apart = Apart()
    for part in (slice(0, 7), slice(7, 50)):
        apart.add(a[part], b[part])
    assert apart.relative_l2 == pytest.approx(float((a - b).norm() / b.norm()))
    assert apart.angle_degrees == pytest.approx(angle_degrees(a, b))
    near = Apart()
    near.add(b + 1e-9 * a, b)
    assert near.angle_degrees == pytest.approx(angle_degrees(b + 1e-9 * a, b), rel=1e-2)
    assert Apart().as_dict() == {"relative_l2": 0.0, "angle_degrees": 0.0}


def test_angle_is_exact_where_it_is_tiny() -> None:
    a = torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert angle_degrees(a, 3 * a) == 0.0
    assert angle_degrees(a, torch.tensor([0.0, 2.0], dtype=torch.float64)) == pytest.approx(90.0)
    assert angle_degrees(a, torch.tensor([1.0, 1e-9], dtype=torch.float64)) == pytest.approx(5.7296e-8, rel=1e-4)


def test_there_must_be_an_arm_to_compare(make_engine: Callable[[str], Engine]) -> None:
    with pytest.raises(InvalidRequestError, match="at least one arm"):
        run_fidelity(make_engine("linear"), FidelityConfig(limit=1, documents=2), ["full"])
