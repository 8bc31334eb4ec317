"""What the Triton scan walks through: host tables of runs, and the cached pairs of a batch, stacked.

Nothing here depends on the tokens' values, so one table serves every layer of a model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from hypic.kernels.chunk_scan.naive import Pair
from hypic.kernels.compose.naive import LiveHeads
from hypic.kernels.runs import Runs

CHUNK_TOKENS = 16
"""The least that a matrix product of Triton takes. The work within a chunk grows with its square, and with 32 the tiles
of float32 no longer fit in the registers of sm_90; not measured on a GPU yet."""

STEP_FIELDS = 7


class Tables(NamedTuple):
    """int64 tables of one batch.

    steps: `[S, 7]`, a row for each run in which anything happens: first token, one past its last, first chunk, first
    pair, one past its last, row of the entering state or -1, row of the transition or -1. walks: `[N + 1]`, the steps
    of sequence n are walks[n] to walks[n+1]. operators: `[W]`, the step of each wanted transition.
    """

    steps: Tensor
    walks: Tensor
    operators: Tensor


@dataclass(frozen=True)
class Want:
    """What of each run is asked for. pairs: how many stand before each run, `R` counts. entering, transitions: runs, in
    ascending order, without repeats."""

    pairs: tuple[int, ...]
    entering: tuple[int, ...]
    transitions: tuple[int, ...]


@lru_cache(maxsize=16)
def chunk_bounds(runs: Runs, device: torch.device) -> Tensor:
    """First token, and one past the last token that its run has, of each chunk: int64 `[M, 2]`."""
    ends = runs.token_offsets[1:]
    spans = zip(runs.token_offsets, ends, strict=False)
    bounds = [(at, end) for start, end in spans for at in range(start, end, CHUNK_TOKENS)]
    return torch.tensor(bounds, dtype=torch.int64).view(-1, 2).to(device)


@lru_cache(maxsize=16)
def tables(runs: Runs, want: Want, device: torch.device) -> Tables:
    """The tables of a batch on a device. Runs without tokens in which nothing else
    happens have no step."""
    steps: list[tuple[int, ...]] = []
    walks = [0]
    chunk = pair = 0
    entering, transition = ({run: row for row, run in enumerate(rows)} for rows in (want.entering, want.transitions))
    for sequence in range(runs.num_sequences):
        for run in runs.runs_of(sequence):
            start, end = runs.token_offsets[run], runs.token_offsets[run + 1]
            step = (start, end, chunk, pair, pair + want.pairs[run], entering.get(run, -1), transition.get(run, -1))
            if end > start or want.pairs[run] or max(step[5:]) >= 0:
                steps.append(step)
            chunk += -(-(end - start) // CHUNK_TOKENS)
            pair += want.pairs[run]
        walks.append(len(steps))
    operators = [number for number, step in enumerate(steps) if step[6] >= 0]
    return Tables(
        torch.tensor(steps, dtype=torch.int64).view(-1, STEP_FIELDS).to(device),
        torch.tensor(walks, dtype=torch.int64).to(device),
        torch.tensor(operators, dtype=torch.int64).to(device),
    )


class Pairs(NamedTuple):
    """P cached pairs, in the order in which they are applied: S <- M·S + state, where M of a head is its matrix if it
    has one and its scale otherwise.

    scales: `[P, H]` or `[P, H, K]`. rows: int64 `[P, H]`, the head's matrix in `matrices` or -1. matrices: `[m, K, K]`.
    states: `[P, H, K, V]`.
    """

    scales: Tensor
    rows: Tensor
    matrices: Tensor
    states: Tensor


def stack_pairs(pairs: Sequence[Pair], heads: int, key_dim: int, dtype: torch.dtype) -> Pairs:
    """At least one pair, each transition `[H]`, `[H, K]`, `[H, K, K]` or `LiveHeads`, as tensors of `dtype`. The number
    of launches does not depend on the number of pairs."""
    states = torch.stack([state for _, state in pairs]).to(dtype)
    plain: dict[int, Tensor] = {}
    dense: dict[int, LiveHeads] = {}
    every = torch.arange(heads, device=states.device)
    for number, (transition, _) in enumerate(pairs):
        if isinstance(transition, LiveHeads):
            dense[number] = transition
        elif transition.ndim == 3:
            dense[number] = LiveHeads(every, transition)
        else:
            plain[number] = transition

    channels = any(scale.ndim == 2 for scale in plain.values())
    scales = states.new_zeros(len(pairs), heads, *([key_dim] if channels else []))
    if plain:
        wide = [scale if scale.ndim == scales.ndim - 1 else scale.unsqueeze(-1) for scale in plain.values()]
        scales[list(plain)] = torch.stack([scale.expand(scales.shape[1:]) for scale in wide]).to(dtype)
    rows = states.new_full((len(pairs) * heads,), -1, dtype=torch.int64)
    matrices = states.new_zeros(0, key_dim, key_dim)
    if dense:
        matrices = torch.cat([live.matrices for live in dense.values()]).to(dtype)
        first = torch.tensor([number * heads for number, live in dense.items() for _ in range(len(live.heads))])
        place = torch.cat([live.heads for live in dense.values()]) + first.to(states.device)
        rows[place] = torch.arange(len(place), device=states.device)
    return Pairs(scales, rows.view(len(pairs), heads), matrices, states)
