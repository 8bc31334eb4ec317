"""The Triton scans against their references, in every family: in the interpreter, or compiled where there is a GPU.

Outputs are made by torch.empty, which is NaN here: what a kernel leaves out shows. In float64 both compute the same up
to the order of their sums, and agree to 1e-12; in float32 the bound is that of the references against the recurrence,
2e-6 of the norm. Rounding half-precision inputs is no error of the kernel: both widen them first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from hypic.kernels.chunk_scan.naive import ScanResult
from hypic.kernels.compose.naive import LiveHeads
from hypic.kernels.diagonal_decay import naive as diagonal_decay_naive
from hypic.kernels.diagonal_decay import triton as diagonal_decay_triton
from hypic.kernels.gated_delta import naive as gated_delta_naive
from hypic.kernels.gated_delta import triton as gated_delta_triton
from hypic.kernels.runs import Runs
from hypic.kernels.scalar_decay import naive as scalar_decay_naive
from hypic.kernels.scalar_decay import triton as scalar_decay_triton

H, HV, K, V = 1, 2, 12, 20
SHAPES = [[1, 63], [], [64, 0, 65], [130, 0], [0]]
Inputs = dict[str, Any]


@dataclass(frozen=True)
class Operation:
    """An operation in both forms, and the shape of its gate: none, head, token or channel."""

    naive: Callable[..., Any]
    triton: Callable[..., Any]
    gate: str
    erases: bool = False


SCANS = {
    "gdn": Operation(gated_delta_naive.gated_delta, gated_delta_triton.gated_delta, "token", True),
    "delta_net": Operation(gated_delta_naive.gated_delta, gated_delta_triton.gated_delta, "none", True),
    "kda": Operation(gated_delta_naive.gated_delta, gated_delta_triton.gated_delta, "channel", True),
    "gla": Operation(diagonal_decay_naive.diagonal_decay, diagonal_decay_triton.diagonal_decay, "channel"),
    "mamba2": Operation(scalar_decay_naive.scalar_decay, scalar_decay_triton.scalar_decay, "token"),
    "lightning": Operation(scalar_decay_naive.scalar_decay, scalar_decay_triton.scalar_decay, "head"),
}
STEPS = {
    "gdn": Operation(gated_delta_naive.gated_delta_step, gated_delta_triton.gated_delta_step, "token", True),
    "delta_net": Operation(gated_delta_naive.gated_delta_step, gated_delta_triton.gated_delta_step, "none", True),
    "kda": Operation(gated_delta_naive.gated_delta_step, gated_delta_triton.gated_delta_step, "channel", True),
    "gla": Operation(diagonal_decay_naive.diagonal_decay_step, diagonal_decay_triton.diagonal_decay_step, "channel"),
    "mamba2": Operation(scalar_decay_naive.scalar_decay_step, scalar_decay_triton.scalar_decay_step, "token"),
    "lightning": Operation(scalar_decay_naive.scalar_decay_step, scalar_decay_triton.scalar_decay_step, "head"),
}
scans = pytest.mark.parametrize("name", SCANS)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(operation: Operation, tokens: int, dtype: torch.dtype, device: torch.device) -> Inputs:
    gates = {"none": None, "head": (HV,), "token": (tokens, HV), "channel": (tokens, HV, K)}
    gate = gates[operation.gate]
    x: Inputs = {
        "q": normal(tokens, H, K, seed=1) * K**-0.5,
        "k": normalize(normal(tokens, H, K, seed=2), dim=-1),
        "v": normal(tokens, HV, V, seed=3),
        "g": None if gate is None else -0.2 * normal(*gate, seed=4).abs(),
    }
    if operation.erases:
        x["beta"] = normal(tokens, HV, seed=5).sigmoid()
    return {name: None if part is None else part.to(device, dtype) for name, part in x.items()}


def states(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return normal(count, HV, K, V, seed=6).to(device, dtype)


def same(found: Tensor, expected: Tensor, bound: float) -> None:
    """Equal in shape and dtype and, to a share of the norm or of one where a decay has left nothing, in value."""
    assert (found.shape, found.dtype, found.device) == (expected.shape, expected.dtype, expected.device)
    if expected.numel():
        assert float((found - expected).norm()) <= bound * max(1.0, float(expected.norm()))


def check(
    operation: Operation, x: Inputs, lengths: list[list[int]], before: Tensor, bound: float, **options: Any
) -> None:
    runs = Runs.from_lengths(lengths)
    expected: ScanResult = operation.naive(**x, runs=runs, initial_states=before, **options)
    found: ScanResult = operation.triton(**x, runs=runs, initial_states=before, **options)
    same(found.output, expected.output, bound)
    same(found.final_states, expected.final_states, bound)
    for own, reference in ((found.entering, expected.entering), (found.transitions, expected.transitions)):
        assert own.keys() == reference.keys()
        for run in reference:
            same(own[run], reference[run], bound)
            assert own[run].untyped_storage().nbytes() == own[run].nbytes, "what is kept must not keep more alive"


@pytest.mark.parametrize("name", ["gdn", "kda", "lightning"])  # the others take the same path, with another gate
def test_runs_of_every_length(name: str, device: torch.device) -> None:
    tokens = sum(map(sum, SHAPES))
    x = inputs(SCANS[name], tokens, torch.float64, device)
    before = states(len(SHAPES), torch.float64, device)
    check(SCANS[name], x, SHAPES, before, 1e-12, want_entering=[1, 2, 3], want_transition=[0, 1, 3, 4])


@scans
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_inputs_of_every_dtype(name: str, dtype: torch.dtype, device: torch.device) -> None:
    x = inputs(SCANS[name], 35, dtype, device)
    check(SCANS[name], x, [[33, 2]], states(1, torch.float32, device), 2e-6, want_transition=[0])


@pytest.mark.parametrize("name", [name for name in SCANS if SCANS[name].gate != "none"])
@pytest.mark.parametrize("decay", [0.0, -1e4, (-1e4, 0.0), (-50.0, -1e-3)], ids=["keep", "forget", "either", "late"])
def test_extreme_gates(name: str, decay: float | tuple[float, float], device: torch.device) -> None:
    x = inputs(SCANS[name], 20, torch.float32, device)
    first, later = decay if isinstance(decay, tuple) else (decay, decay)
    x["g"] = torch.full_like(x["g"], later)
    x["g"][:3] = first
    if "beta" in x:
        x["beta"] = torch.ones_like(x["beta"])
        x["beta"][::3] = 0
    check(SCANS[name], x, [[20]], states(1, torch.float32, device), 4e-6, want_transition=[0])


@pytest.mark.parametrize("name", [name for name in SCANS if SCANS[name].erases])
def test_keys_at_the_edge_of_growth(name: str, device: torch.device) -> None:
    """β|k|² of 2, and one key again and again: powers of L grow without end, its inverse does not."""
    x = inputs(SCANS[name], 32, torch.float32, device)
    x["k"] = x["k"][:1].expand_as(x["k"]) * 1.4
    x["beta"] = torch.ones_like(x["beta"])
    check(SCANS[name], x, [[32]], states(1, torch.float32, device), 2e-5, want_transition=[0])


@scans
def test_pairs_stand_where_the_tokens_stood(name: str, device: torch.device) -> None:
    """Before seams, before an empty run, several in a row; whole, with dead heads, and a factor in the place of T."""
    erases, gate = SCANS[name].erases, SCANS[name].gate
    forms: list[Any] = [normal(HV, seed=10).to(device), normal(HV, seed=11).to(device)]
    if gate == "channel" and not erases:
        forms.append(normal(HV, K, seed=12).to(device))
    if erases:
        dense = normal(HV, K, K, seed=13).to(device) * K**-0.5
        one, none = (torch.tensor(heads, dtype=torch.int64, device=device) for heads in ([1], []))
        forms += [dense, LiveHeads(one, dense[1:]), LiveHeads(none, dense[:0])]
    pairs = [(form, normal(HV, K, V, seed=20 + n).to(device)) for n, form in enumerate(forms)]
    x = inputs(SCANS[name], 20, torch.float64, device)
    lengths, at = [[8, 1], [0, 8, 3, 0]], {1: pairs[:1], 2: pairs[1:3], 4: pairs[3:], 5: pairs[1:2]}
    before = states(2, torch.float64, device)
    check(SCANS[name], x, lengths, before, 1e-12, pairs=at, want_entering=[1, 4, 5], want_transition=[4])


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.bfloat16, 2e-6)])
def test_steps(name: str, dtype: torch.dtype, bound: float, device: torch.device) -> None:
    """Three sequences, whose values lie apart as a projection leaves them, and states a pool may hand out as a view."""
    x = inputs(STEPS[name], 3, dtype, device)
    x["v"] = torch.cat([x["v"], x["v"]], dim=2)[:, :, :V]
    before = states(3, torch.float64 if dtype == torch.float64 else torch.float32, device).mT.contiguous().mT
    kept = before.clone()
    expected = STEPS[name].naive(**x, states=before)
    for found, reference in zip(STEPS[name].triton(**x, states=before), expected, strict=True):
        same(found, reference, bound)
    assert torch.equal(before, kept)
