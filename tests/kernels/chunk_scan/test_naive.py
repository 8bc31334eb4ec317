"""The shared loop: runs, sequences, cached pairs and operators, with the delta rule and a scalar decay on
top."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from hypic.kernels.chunk_scan.naive import ScanResult
from hypic.kernels.compose.naive import compose, merge
from hypic.kernels.diagonal_decay.naive import diagonal_decay
from hypic.kernels.gated_delta.naive import gated_delta
from hypic.kernels.runs import Runs
from hypic.kernels.scalar_decay.naive import scalar_decay

H, HV, K, V = 2, 4, 8, 12
Inputs = tuple[Tensor, ...]
Scan = Callable[..., ScanResult]


def delta(x: Inputs, *args: Any, **options: Any) -> ScanResult:
    return gated_delta(*x, *args, **options)


def diagonal(x: Inputs, *args: Any, **options: Any) -> ScanResult:
    return diagonal_decay(*x[:3], x[3].unsqueeze(-1) * torch.linspace(0.5, 1, K), *args, **options)


def scalar(x: Inputs, *args: Any, **options: Any) -> ScanResult:
    return scalar_decay(*x[:4], *args, **options)


forms = pytest.mark.parametrize("scan", [delta, diagonal, scalar])


def inputs(tokens: int, seed: int = 0) -> Inputs:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    q, k = normal(tokens, H, K), normalize(normal(tokens, H, K), dim=-1)
    return q, k, normal(tokens, HV, V), -0.1 * normal(tokens, HV).abs(), normal(tokens, HV).sigmoid()


def cut(x: Inputs, start: int, end: int) -> Inputs:
    return tuple(part[start:end] for part in x)


def states(count: int) -> Tensor:
    return torch.randn(count, HV, K, V, generator=torch.Generator().manual_seed(9))


def close(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@forms
def test_each_sequence_of_a_batch_is_its_run_alone(scan: Scan) -> None:
    lengths = [[5, 0, 60], [], [130], [0], [1, 1, 1, 40], [64], [63, 65]]
    runs, before = Runs.from_lengths(lengths), states(len(lengths))
    x = inputs(runs.num_tokens)
    every = range(runs.num_runs)
    batch = scan(x, runs, before, want_entering=every, want_transition=every)
    for n, own in enumerate(lengths):
        start, end = runs.tokens_of(n)
        alone = Runs.from_lengths([own])
        expected = scan(
            cut(x, start, end),
            alone,
            before[n : n + 1],
            want_entering=range(len(own)),
            want_transition=range(len(own)),
        )
        close(batch.output[start:end], expected.output)
        close(batch.final_states[n], expected.final_states[0])
        for own_run, run in enumerate(runs.runs_of(n)):
            close(batch.entering[run], expected.entering[own_run])
            close(batch.transitions[run], expected.transitions[own_run])


@forms
def test_a_nan_in_one_sequence_stays_there(scan: Scan) -> None:
    runs = Runs.from_lengths([[30], [50], [20]])
    before = states(3)
    before[1] = float("nan")
    found = scan(inputs(100), runs, before, want_transition=[0, 2])
    assert found.output[:30].isfinite().all()
    assert found.output[80:].isfinite().all()
    assert found.final_states[[0, 2]].isfinite().all()
    assert found.final_states[1].isnan().all()


@forms
def test_pairs_stand_where_the_tokens_stood(scan: Scan) -> None:
    """Segments at tokens 20-50, 50-70 and 78-100 replaced by their pairs: the rest computes as if they were
    there."""
    x, before = inputs(120), states(1)
    whole = scan(x, Runs.from_lengths([[20, 30, 20, 8, 22, 20]]), before, want_entering=[3, 5])
    pair = {}
    for start, end in ((20, 50), (50, 70), (78, 100)):
        built = scan(
            cut(x, start, end),
            Runs.from_lengths([[end - start]]),
            torch.zeros_like(before),
            want_transition=[0],
        )
        pair[start] = (built.transitions[0], built.final_states[0])
    rest = torch.cat([torch.arange(20), torch.arange(70, 78), torch.arange(100, 120)])
    found = scan(
        tuple(part[rest] for part in x),
        Runs.from_lengths([[20, 8, 20]]),
        before,
        pairs={1: [pair[20], pair[50]], 2: [pair[78]]},
        want_entering=[1, 2],
        want_transition=[2],
    )
    close(found.output, whole.output[rest])
    close(found.final_states, whole.final_states)
    close(found.entering[1], whole.entering[3])
    close(found.entering[2], whole.entering[5])
    alone = scan(cut(x, 100, 120), Runs.from_lengths([[20]]), before, want_transition=[0])
    close(found.transitions[2], alone.transitions[0])  # of the run's own tokens, without the pair before it


@forms
def test_half_precision_pairs_are_widened(scan: Scan) -> None:
    x, before = inputs(40), states(1)
    built = scan(x, Runs.from_lengths([[40]]), before, want_transition=[0])
    pair = (built.transitions[0].bfloat16(), built.final_states[0].bfloat16())
    found = scan(cut(x, 0, 0), Runs.from_lengths([[0]]), before, pairs={0: [pair]})
    assert found.final_states.dtype == torch.float32
    close(found.final_states[0], compose(pair[0].float(), pair[1].float(), before[0]))


@forms
def test_no_tokens_at_all(scan: Scan) -> None:
    for lengths in ([[0]], [[0, 0], []], [[]], []):
        runs = Runs.from_lengths(lengths)
        before = states(len(lengths))
        every = range(runs.num_runs)
        found = scan(inputs(0), runs, before, want_entering=every, want_transition=every)
        assert found.output.shape == (0, HV, V)
        assert torch.equal(found.final_states, before)
        for run in every:
            unchanged = compose(found.transitions[run], torch.zeros_like(before[0]), before[0])
            assert torch.equal(unchanged, before[0])


@forms
@settings(max_examples=15, deadline=None, derandomize=True)
@given(cuts=st.lists(st.integers(0, 90), max_size=5), seed=st.integers(0, 100))
def test_split_anywhere_is_whole(scan: Scan, cuts: list[int], seed: int) -> None:
    """As runs of one sequence, and as segments built apart and composed or merged."""
    x, before = inputs(90, seed), states(1)
    edges = [0, *sorted(cuts), 90]
    lengths = [end - start for start, end in pairwise(edges)]
    whole = scan(x, Runs.from_lengths([[90]]), before, want_transition=[0])
    every = range(len(lengths))
    chained = scan(x, Runs.from_lengths([lengths]), before, want_entering=every, want_transition=every)
    close(chained.output, whole.output)
    close(chained.final_states, whole.final_states)

    apart = Runs.from_lengths([[length] for length in lengths])
    built = scan(x, apart, torch.zeros(len(lengths), HV, K, V), want_transition=every)
    for run in every:
        close(chained.transitions[run], built.transitions[run])
        prefix = scan(cut(x, 0, edges[run]), Runs.from_lengths([[edges[run]]]), before)
        close(chained.entering[run], prefix.final_states[0])
    pairs = [(built.transitions[run], built.final_states[run]) for run in range(len(lengths))]
    merged = pairs[0]
    for pair in pairs[1:]:
        merged = merge(pair, merged)
    close(merged[0], whole.transitions[0])
    close(compose(*merged, before[0]), whole.final_states[0])


@forms
def test_results_own_their_memory(scan: Scan) -> None:
    found = scan(inputs(60), Runs.from_lengths([[20, 40]]), states(1), want_entering=[1], want_transition=[0, 1])
    for tensor in (found.entering[1], *found.transitions.values()):
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


@forms
def test_states_may_be_strided(scan: Scan) -> None:
    """A pool may hand out a view; it is read, never written."""
    x, before = inputs(40), states(2)
    strided = before.mT.contiguous().mT
    runs = Runs.from_lengths([[10], [30]])
    found, expected = scan(x, runs, strided), scan(x, runs, before)
    assert torch.equal(found.output, expected.output)
    assert torch.equal(found.final_states, expected.final_states)
    assert torch.equal(strided, before)
