"""The algebra evaluation: passes on what is right, fails on what is planted wrong."""

from dataclasses import replace
from typing import Unpack

import pytest
import torch
from torch import Tensor

from hypic.eval.algebra import MAX_SEGMENTS, measure_family, random_split, run_algebra, token_loop
from hypic.kernels.chunk_scan.naive import ScanResult
from hypic.kernels.runs import Runs
from hypic.linear.family import LinearFamily, LinearInputs, ScanOptions, families
from hypic.linear.transition import identity_transition

every = pytest.mark.parametrize("family", families().values(), ids=lambda family: str(family.name))
SMALL = {"tokens": 300, "heads": 2, "key_dim": 32, "value_dim": 24}


def test_every_family_is_exact() -> None:
    seen: list[tuple[str, int, int]] = []
    result = run_algebra(splits=3, **SMALL, progress=lambda *done: seen.append(done))
    assert set(result["families"]) == set(families())
    for errors in result["families"].values():
        assert 0 < errors["max_relative_error"] <= 2e-6
        assert errors["merged_relative_error"] <= 2e-6
        assert errors["output_relative_error"] <= 2e-6
        assert errors["addition_relative_error"] > 0.05
    assert seen[:3] == [(next(iter(families())), done, 3) for done in (1, 2, 3)]


def test_same_seed_same_figures() -> None:
    first, second = (run_algebra(splits=2, **SMALL, seed=4, families=["gla"]) for _ in range(2))
    assert first == second


@every
def test_detects_a_dropped_transition(family: LinearFamily) -> None:
    def forgetful(inputs: LinearInputs, runs: Runs, states: Tensor, **options: Unpack[ScanOptions]) -> ScanResult:
        result = family.scan(inputs, runs, states, **options)
        heads, key_dim = inputs.v.shape[1], inputs.k.shape[2]
        result.transitions = {run: identity_transition(family.form, heads, key_dim) for run in result.transitions}
        return result

    generator = torch.Generator().manual_seed(0)
    inputs = family.sample(generator, 300, (2, 2), 32, 24)
    errors = measure_family(replace(family, scan=forgetful), inputs, 2, generator)
    assert errors["max_relative_error"] > 0.05
    assert errors["output_relative_error"] > 0.01


@every
def test_token_loop_is_the_steps(family: LinearFamily) -> None:
    inputs = family.sample(torch.Generator().manual_seed(0), 20, (1, 2), 8, 6, torch.float64)
    outputs, end = token_loop(inputs)
    state = torch.zeros(1, 2, 8, 6, dtype=torch.float64)
    for t in range(20):
        output, state = family.step(inputs.tokens(t, t + 1), state)
        torch.testing.assert_close(output[0], outputs[t])
    torch.testing.assert_close(state[0], end)


def test_splits_are_2_to_64_segments() -> None:
    generator = torch.Generator().manual_seed(0)
    counts = {random_split(generator, 2048).num_sequences for _ in range(300)}
    assert min(counts) >= 2
    assert max(counts) <= MAX_SEGMENTS
    assert len(counts) > 50
    whole = random_split(generator, 2048, MAX_SEGMENTS)
    assert (whole.num_sequences, whole.num_tokens) == (MAX_SEGMENTS, 2048)
    assert all(whole.length(run) for run in range(MAX_SEGMENTS))
    assert random_split(generator, 5, MAX_SEGMENTS).num_sequences == 5


def test_refuses_an_unknown_family() -> None:
    with pytest.raises(ValueError, match=r"unknown families \['rwkv'\]"):
        run_algebra(families=["rwkv"])
