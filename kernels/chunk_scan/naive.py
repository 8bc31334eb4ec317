"""The state-passing loop that every linear family shares (DESIGN 2.2).

A family turns its tokens into chunks of one form; this loop carries the state through them:

    R = write - erase·S           what is new in the chunk's values
    O = query·S + attention·R     what its queries read
    S <- decay·S + keyᵀ·R

The transition operator of a wanted run goes through the same loop, entered as I with `write` 0, so the chunk
form is built once for both. Scalar and diagonal families have no `erase`, and their transitions are products
of decays: never a matrix. The cached pairs of reused segments are applied where they stand, S <- T·S + S0.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypedDict

import torch
from torch import Tensor

from hypic.kernels.compose.naive import Transition, compose
from hypic.kernels.runs import Runs, Schedule

Pair = tuple[Transition, Tensor]
"""A cached segment at one layer: transition `[H]`, `[H, K]`, `[H, K, K]` or `LiveHeads`, and state `[H, K, V]`."""


@dataclass(frozen=True)
class Chunks:
    """The chunk form of a family's tokens. M chunks of C tokens in schedule order, contiguous, padding zero.

    query: `[M, H, C, K]`, decayed from the chunk's start. write: `[M, H, C, V]`, overwritten by the scan.
    erase: `[M, H, C, K]`, keys decayed from the chunk's start, or None for families that never erase. key:
    `[M, H, C, K]`, decayed to the chunk's end. attention: `[M, H, C, C]`, lower triangular. log_decay:
    float64 `[M, H]` or `[M, H, K]`, over the whole chunk (summed over a run, and exponentiated once:
    products of decays would lose digits over long segments).
    """

    query: Tensor
    write: Tensor
    erase: Tensor | None
    key: Tensor
    attention: Tensor
    log_decay: Tensor


@dataclass
class ScanResult:
    """What a scan yields.

    output: `[T, H, V]`. final_states: `[N, H, K, V]` after the last token of each sequence. entering: run ->
    `[H, K, V]`, the state with which the run was entered. transitions: run -> the transition of its tokens,
    in the family's form. Entering states and transitions own their memory: no view of something larger.
    """

    output: Tensor
    final_states: Tensor
    entering: dict[int, Tensor] = field(default_factory=dict)
    transitions: dict[int, Tensor] = field(default_factory=dict)


class ScanOptions(TypedDict, total=False):
    """Keyword arguments of a scan, as `chunk_scan` describes them."""

    pairs: Mapping[int, Sequence[Pair]] | None
    want_entering: Collection[int]
    want_transition: Collection[int]


@torch.no_grad()
def chunk_scan(
    chunks: Chunks,
    runs: Runs,
    initial_states: Tensor,
    *,
    pairs: Mapping[int, Sequence[Pair]] | None = None,
    want_entering: Collection[int] = (),
    want_transition: Collection[int] = (),
) -> ScanResult:
    """Carry the states of N sequences through their chunks.

    chunks: see `Chunks`, from `runs.schedule`; consumed. initial_states: `[N, H, K, V]`. pairs: run ->
    pairs applied, in order, before that run. want_entering, want_transition: runs whose entering state or
    transition is wanted. Computes in the dtype of `initial_states` (float32, or float64 in tests).
    """
    loop = _Loop(chunks, runs.schedule, initial_states, pairs or {}, want_entering, want_transition)
    for level in range(len(runs.schedule.level_offsets) - 1):
        loop.arrive(level)
        loop.advance(level)
    loop.arrive(len(runs.schedule.level_offsets) - 1)
    return loop.result(runs)


class _Loop:
    """One pass over the levels of a schedule; row j of the state batch is sequence order[j]."""

    def __init__(
        self,
        chunks: Chunks,
        schedule: Schedule,
        initial_states: Tensor,
        pairs: Mapping[int, Sequence[Pair]],
        want_entering: Collection[int],
        want_transition: Collection[int],
    ) -> None:
        self.chunks, self.schedule, self.pairs = chunks, schedule, pairs
        self.want_entering, self.want_transition = set(want_entering), set(want_transition)
        rows = torch.tensor(schedule.order, dtype=torch.int64, device=initial_states.device)
        self.state = initial_states.index_select(0, rows).contiguous()  # a copy: advanced in place
        self.operator: Tensor | None = None  # [N, H, K, K], of the runs that are open
        if chunks.erase is not None and self.want_transition:
            self.operator = self.state.new_zeros(*self.state.shape[:-1], self.state.shape[-2])
        self.reads = torch.empty_like(chunks.write)  # [M, H, C, V]
        self.levels = self._split_levels()
        self.entering: dict[int, Tensor] = {}
        self.transitions: dict[int, Tensor] = {}
        self.open: dict[int, int] = {}  # state row -> run whose operator is being built there
        self.starts: dict[int, list[tuple[int, int]]] = {}
        for run, (level, row) in enumerate(schedule.first_chunk):
            self.starts.setdefault(level, []).append((run, row))

    def _split_levels(self) -> list[tuple[Tensor, ...]]:
        """Per level: query, write, key, decay, reads and erase, chunks and heads flattened to one axis."""
        offsets, heads = self.schedule.level_offsets, self.state.shape[1]
        sizes = [(end - start) * heads for start, end in pairwise(offsets)]
        c = self.chunks
        decay = c.log_decay.exp().to(self.state.dtype).unsqueeze(-1)
        decay = decay if decay.ndim == 4 else decay.unsqueeze(-1)  # [M, H, K, 1] or [M, H, 1, 1]
        parts = [c.query, c.write, c.key.mT, decay, self.reads]
        if c.erase is not None:
            parts.append(c.erase)
        split = [part.flatten(0, 1).split_with_sizes(sizes) for part in parts]
        return list(zip(*split, strict=True)) if sizes else []

    def arrive(self, level: int) -> None:
        """Everything that happens between two chunks: close operators, apply pairs, start runs."""
        for run, row in self.starts.get(level, ()):
            self._close(row)
            state = self.state[row]
            for transition, end_state in self.pairs.get(run, ()):
                state.copy_(compose(transition.to(state.dtype), end_state.to(state.dtype), state))
            if run in self.want_entering:
                self.entering[run] = state.clone()
            if run in self.want_transition and self.operator is not None:
                self.open[row] = run
                self.operator[row] = torch.eye(state.shape[-2], dtype=state.dtype, device=state.device)

    def advance(self, level: int) -> None:
        """One chunk of every sequence that has one at this level."""
        query, write, key, decay, reads, *erase = self.levels[level]
        state = self.state.flatten(0, 1)[: len(query)]  # [n * H, K, V]
        torch.bmm(query, state, out=reads)
        if erase:
            write.baddbmm_(erase[0], state, alpha=-1)
            self._advance_operators(erase[0], key, decay)
        state.mul_(decay).baddbmm_(key, write)

    def _advance_operators(self, erase: Tensor, key: Tensor, decay: Tensor) -> None:
        heads = self.state.shape[1]
        rows = [row for row in self.open if (row + 1) * heads <= len(erase)]
        if self.operator is None or not rows:
            return
        span = slice(min(rows) * heads, (max(rows) + 1) * heads)  # rows between that are not open are ignored
        operator = self.operator.flatten(0, 1)[span]
        erased = torch.bmm(erase[span], operator)  # [n * H, C, K]
        operator.mul_(decay[span]).baddbmm_(key[span], erased, alpha=-1)

    def _close(self, row: int) -> None:
        run = self.open.pop(row, None)
        if run is not None and self.operator is not None:
            self.transitions[run] = self.operator[row].clone()

    def _product_of_decays(self, runs: Runs, run: int) -> Tensor:
        """The transition `[H]` or `[H, K]` of a run in a family that never erases."""
        level, row = self.schedule.first_chunk[run]
        count = -(-runs.length(run) // self.schedule.chunk_tokens)
        chunks = [start + row for start in self.schedule.level_offsets[level : level + count]]
        return self.chunks.log_decay[chunks].sum(0).exp().to(self.state.dtype)

    def result(self, runs: Runs) -> ScanResult:
        for row in list(self.open):
            self._close(row)
        if self.chunks.erase is None:
            wanted = sorted(self.want_transition)
            self.transitions = {run: self._product_of_decays(runs, run) for run in wanted}
        chunks = self.chunks
        output = self.reads.flatten(0, 1).baddbmm_(chunks.attention.flatten(0, 1), chunks.write.flatten(0, 1))
        output = output.view_as(self.reads).transpose(1, 2).flatten(0, 1)  # [M*C, H, V]
        final = torch.empty_like(self.state)
        final[list(self.schedule.order)] = self.state
        scatter = self.schedule.scatter.to(output.device)
        return ScanResult(output.index_select(0, scatter), final, self.entering, self.transitions)
