"""Exactness: green on a sound engine, and every planted fault turns the right check red."""

from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_checkpoint
from faults import (
    Plant,
    dropped_seam,
    rotation_off_when_moved,
    stale_keys_and_values,
    swapped_segments,
    wrong_rotation,
    zeroed_transition,
)

from hypic.arms import ARMS, arm_named
from hypic.config import BUNDLED_MODEL, EngineConfig
from hypic.engine.engine import Engine
from hypic.eval.exactness import Check, check_arm, checks_table, worst
from hypic.eval.probe import combine
from hypic.eval.workloads import question_sets
from hypic.request import GenerationRequest, SamplingParams

EXACT: dict[str, Any] = {"threads": 1, "transition_tolerance": 0, "state_format": "fp32"}


def red(engine: Engine, name: str = "hypic") -> set[str]:
    return {check.name for check in checked(engine, name) if not check.passed}


def checked(engine: Engine, name: str) -> list[Check]:
    segments = question_sets("recall", 1, 3, seed=0)["plain"][0].segments(engine.tokenizer)
    full, found = (
        combine(engine, GenerationRequest("check", segments, arm_named(arm), SamplingParams(max_tokens=1), arm))
        for arm in ("full", name)
    )
    return check_arm(engine, arm_named(name), segments, found, full)


@pytest.mark.parametrize("kind", ["falcon_h1", "bailing_moe_linear"])
def test_sound_engines_pass(tmp_path: Path, kind: str) -> None:
    engine = Engine(EngineConfig(model=write_checkpoint(tmp_path / kind, kind), **EXACT))
    for arm in ARMS.values():
        if arm.reuse_segments:
            found = checked(engine, arm.name)
            assert all(check.passed for check in found), found
            assert {check.name for check in found} >= {"alone"}


@pytest.mark.parametrize("name", ["hypic", "anchored", "addition"])
def test_the_bundled_model_passes(name: str) -> None:
    found = checked(Engine(EngineConfig(**EXACT)), name)
    assert all(check.passed for check in found), found
    expected = {"hypic": {"first layer", "seam", "alone", "operator", "moved"}, "addition": {"alone", "moved"}}
    assert {check.name for check in found} == expected.get(name, expected["hypic"] - {"moved"})


@pytest.mark.parametrize(
    ("model", "plant", "told"),
    [
        ("random", wrong_rotation, {"alone", "moved"}),
        ("random", rotation_off_when_moved, {"moved"}),
        ("random", dropped_seam, {"seam", "first layer"}),
        ("random", zeroed_transition, {"operator", "alone", "first layer"}),
        ("random", stale_keys_and_values, {"alone", "moved"}),
        ("bundled", wrong_rotation, {"alone"}),
        ("bundled", dropped_seam, {"seam"}),
        ("bundled", zeroed_transition, {"operator", "alone"}),
        ("bundled", stale_keys_and_values, {"alone", "moved"}),
    ],
    ids=lambda value: value.__name__ if callable(value) else value if isinstance(value, str) else "",
)
def test_planted_faults_are_told(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, model: str, plant: Plant, told: set[str]
) -> None:
    """The bundled model's first layer forgets at once and its lookup of names does not rotate: less shows there."""
    engine = Engine(EngineConfig(model=BUNDLED_MODEL if model == "bundled" else tiny_checkpoint, **EXACT))
    plant(engine, monkeypatch)
    assert red(engine) == told


def test_compact_entries_pass_within_what_storage_loses_and_faults_are_still_told(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(EngineConfig(model=tiny_checkpoint, threads=1))
    found = {check.name: check for check in checked(engine, "hypic")}
    assert all(check.passed for check in found.values()), found
    assert found["operator"].limit > found["operator"].found > 1e-6, "states of 8 bits are not exact"
    assert found["moved"].limit < 1e-4, "keys and values are stored as they are"
    for plant, told in (
        (wrong_rotation, {"moved", "alone"}),
        (zeroed_transition, {"operator", "alone", "first layer"}),
    ):
        engine = Engine(EngineConfig(model=tiny_checkpoint, threads=1))
        plant(engine, monkeypatch)
        assert red(engine) == told


def test_swapped_operators_are_told_where_the_first_layer_remembers(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(EngineConfig(model=tiny_checkpoint, **EXACT))
    swapped_segments(engine, monkeypatch)
    assert red(engine) == {"first layer"}


def test_the_worst_of_each_check_is_shown() -> None:
    found = [Check("alone", "hypic", layer, error, 1e-5) for layer, error in ((0, 1e-6), (2, 1e-3), (1, 1e-7))]
    (shown,) = worst(found)
    assert (shown.layer, shown.passed) == (2, False)
    assert "| alone | hypic | FAILED | 1.0e-03 | 1.0e-05 | 2 |" in checks_table([shown]).markdown()
