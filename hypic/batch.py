"""What one forward pass works on: packed tokens, and the memory that layers read and write through it.

A layer projects its tokens and calls `convolve`, `recur` or `attend`; the batch knows which sequence each token
belongs to, what precedes it, and what is to be written down. `PrefillBatch` serves prefill, segment builds and
the combine pass; `DecodeBatch` one token for each of many sequences. Models see only the `Batch` protocol.
"""

from bisect import bisect_right
from collections.abc import Sequence as Sequenced
from dataclasses import dataclass
from typing import Protocol, overload

import torch
from torch import Tensor

from hypic.kernels.attention.naive import Span
from hypic.kernels.chunk_scan.naive import Pair
from hypic.kernels.registry import ATTENTION, CAUSAL_CONV, CAUSAL_CONV_STEP, ROTATE
from hypic.kernels.runs import Runs
from hypic.linear.family import LinearFamily, LinearInputs
from hypic.sequence import Active, Reused, Sequence, SequenceCache

Rotary = tuple[Tensor, Tensor] | None
"""cos and sin, float32 `[T, R/2]`, or None for a layer without rotary positions."""


@dataclass(frozen=True, eq=False)
class Reach:
    """What a layer's queries see: so many keys, the query's own included, or all; sinks: `[H]` scores without value."""

    window: int | None = None
    sinks: Tensor | None = None


EVERYTHING = Reach()


class Batch(Protocol):
    """What the layers of a model may ask of a forward pass. Layer indices count within their kind."""

    @property
    def token_ids(self) -> Tensor:
        """int64 `[T]`."""

    @property
    def positions(self) -> Tensor:
        """int64 `[T]`, the position of each token in its sequence."""

    def convolve(self, layer: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Depthwise causal convolution: x `[T, C]`, weight `[C, c]`, bias `[C]`. Returns `[T, C]`."""

    def recur(self, layer: int, family: LinearFamily, inputs: LinearInputs) -> Tensor:
        """Run the linear recurrence; returns its outputs float32 `[T, HV, V]`."""

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, rotary: Rotary, scale: float, reach: Reach = EVERYTHING
    ) -> Tensor:
        """Rotate and attend: q `[T, H, K]`, k `[T, HK, K]`, v `[T, HK, V]`. Returns `[T, H, V]`."""


@dataclass(frozen=True)
class _Run:
    """An active piece in the packed order: where it is, and what stands right before it."""

    sequence: int
    index: int  # among the active pieces of its sequence
    position: int
    tokens: int
    before: tuple[Reused, ...]


@dataclass(frozen=True)
class _Pairs(Sequenced[Pair]):
    """The pairs of the pieces before a run, in one layer. Each is made when the scan comes to it, so that one is there
    at a time and not one of each piece."""

    layer: int
    pieces: tuple[Reused, ...]

    def __len__(self) -> int:
        return len(self.pieces)

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> Sequenced[Pair]: ...
    def __getitem__(self, index: int | slice) -> Pair | Sequenced[Pair]:
        if isinstance(index, slice):
            return _Pairs(self.layer, self.pieces[index])
        return self.pieces[index].operators.pair(self.layer)


class PrefillBatch:
    """Whole sequences of pieces, packed. After the pass, each sequence's cache holds its new states and KV."""

    def __init__(self, sequences: list[Sequence]) -> None:
        self.sequences = sequences
        self.token_ids = torch.cat([sequence.token_ids for sequence in sequences])
        self._runs = [_runs_of(number, sequence) for number, sequence in enumerate(sequences)]
        self._flat = [run for runs in self._runs for run in runs]
        self.runs = Runs.from_lengths([[run.tokens for run in runs] for runs in self._runs])
        self.positions = torch.cat([torch.arange(run.position, run.position + run.tokens) for run in self._flat]).to(
            self.token_ids.device
        )
        # Runs at which the packed inputs do not continue those of the run before: a sequence or a gap begins.
        self._spans = [n for n, run in enumerate(self._flat) if run.index == 0 or run.before]
        self._span_of = [bisect_right(self._spans, n) - 1 for n in range(len(self._flat))]
        self._entering = [
            number for number, run in enumerate(self._flat) if run.index in sequences[run.sequence].trace.want_entering
        ]
        self._transitions = [
            number
            for number, run in enumerate(self._flat)
            if run.index in sequences[run.sequence].trace.want_transition
        ]

    def convolve(self, layer: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        lead = weight.shape[-1] - 1
        tails = torch.stack([self._tail_before(self._flat[span], layer) for span in self._spans])
        offsets = (*(self.runs.token_offsets[span] for span in self._spans), self.runs.num_tokens)
        output, extended = CAUSAL_CONV.on(x.device)(x, weight, bias, offsets, tails)
        for number, at in self._tail_rows(self._entering, lead):
            run = self._flat[number]
            trace = self.sequences[run.sequence].trace
            trace.conv_tails.setdefault(run.index, []).append(extended[at : at + lead].clone())
        last_runs = [last - 1 for last in self.runs.sequence_offsets[1:]]
        for number, at in self._tail_rows(last_runs, lead):
            run = self._flat[number]
            end = at + run.tokens
            self.sequences[run.sequence].cache.conv_tails[layer] = extended[end : end + lead]
        return output

    def recur(self, layer: int, family: LinearFamily, inputs: LinearInputs) -> Tensor:
        pairs = {number: _Pairs(layer, run.before) for number, run in enumerate(self._flat) if run.before}
        result = family.scan(
            inputs,
            self.runs,
            torch.stack([sequence.cache.states[layer] for sequence in self.sequences]),
            pairs=pairs,
            want_entering=self._entering,
            want_transition=self._transitions,
        )
        for sequence, final in zip(self.sequences, result.final_states, strict=True):
            sequence.cache.states[layer] = final
        for number, state in result.entering.items():
            run = self._flat[number]
            self.sequences[run.sequence].trace.states.setdefault(run.index, []).append(state)
        for number, transition in result.transitions.items():
            run = self._flat[number]
            self.sequences[run.sequence].trace.transitions.setdefault(run.index, []).append(transition)
        return result.output

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, rotary: Rotary, scale: float, reach: Reach = EVERYTHING
    ) -> Tensor:
        rotate = ROTATE.on(q.device)
        rotated = k if rotary is None else rotate(k, *rotary)
        q = q if rotary is None else rotate(q, *rotary)
        keys, values, spans = [], [], []
        for number, sequence in enumerate(self.sequences):
            start, end = self.runs.tokens_of(number)
            cache = sequence.cache
            at = start
            for run in self._runs[number]:
                place = slice(run.position, run.position + run.tokens)
                cache.keys[layer, place] = rotated[at : at + run.tokens]
                cache.values[layer, place] = v[at : at + run.tokens]
                at += run.tokens
            if sequence.trace.want_kv:
                sequence.trace.keys.append(k[start:end])
                sequence.trace.values.append(v[start:end])
            filled = cache.tokens + sequence.total_tokens
            keys.append(cache.keys[layer, :filled])
            values.append(cache.values[layer, :filled])
            spans.append(_query_spans(self._runs[number]))
        return ATTENTION.on(q.device)(q, keys, values, spans, scale, reach.window, reach.sinks)

    def finish(self) -> None:
        """Account for the tokens read; call once, after the last layer."""
        for sequence in self.sequences:
            sequence.cache.tokens += sequence.total_tokens

    def last_rows(self) -> Tensor:
        """Packed row of the last token of each sequence, int64 `[N]`."""
        return torch.tensor([self.runs.tokens_of(n)[1] - 1 for n in range(len(self.sequences))])

    def _tail_before(self, run: _Run, layer: int) -> Tensor:
        if run.before:
            return run.before[-1].conv_tails[layer]
        return self.sequences[run.sequence].cache.conv_tails[layer]

    def _tail_rows(self, numbers: list[int], lead: int) -> list[tuple[int, int]]:
        """(run, row of the first of the c-1 inputs before it) in the convolution's extended inputs."""
        return [(number, self.runs.token_offsets[number] + self._span_of[number] * lead) for number in numbers]


class DecodeBatch:
    """One new token for each of N sequences.

    New states and tails are kept aside until `finish`, and new keys and values stand behind what counts, so a pass that
    raises has changed nothing. The price is room for the states of the batch once more.
    """

    def __init__(self, token_ids: Tensor, caches: list[SequenceCache]) -> None:
        self.token_ids, self.caches = token_ids, caches
        self._states: dict[int, Tensor] = {}
        self._tails: dict[int, Tensor] = {}
        self.positions = torch.tensor([cache.tokens for cache in caches], device=token_ids.device)

    def convolve(self, layer: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        tails = torch.stack([cache.conv_tails[layer] for cache in self.caches])
        output, self._tails[layer] = CAUSAL_CONV_STEP.on(x.device)(x, weight, bias, tails)
        return output

    def recur(self, layer: int, family: LinearFamily, inputs: LinearInputs) -> Tensor:
        states = torch.stack([cache.states[layer] for cache in self.caches])
        output, self._states[layer] = family.step(inputs, states)
        return output

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, rotary: Rotary, scale: float, reach: Reach = EVERYTHING
    ) -> Tensor:
        if rotary is not None:
            rotate = ROTATE.on(q.device)
            q, k = rotate(q, *rotary), rotate(k, *rotary)
        for row, cache in enumerate(self.caches):
            cache.keys[layer, cache.tokens], cache.values[layer, cache.tokens] = k[row], v[row]
        keys = [cache.keys[layer, : cache.tokens + 1] for cache in self.caches]
        values = [cache.values[layer, : cache.tokens + 1] for cache in self.caches]
        spans = [((cache.tokens, 1),) for cache in self.caches]
        return ATTENTION.on(q.device)(q, keys, values, spans, scale, reach.window, reach.sinks)

    def finish(self) -> None:
        """Account for the tokens read; call once, after the last layer."""
        for row, cache in enumerate(self.caches):
            for layer, tails in self._tails.items():
                cache.conv_tails[layer] = tails[row]
            for layer, states in self._states.items():
                cache.states[layer] = states[row]
            cache.tokens += 1


def _runs_of(number: int, sequence: Sequence) -> list[_Run]:
    runs: list[_Run] = []
    before: list[Reused] = []
    position = sequence.cache.tokens
    for piece in sequence.pieces:
        if isinstance(piece, Active):
            runs.append(_Run(number, len(runs), position, piece.tokens, tuple(before)))
            before = []
        else:
            before.append(piece)
        position += piece.tokens
    return runs


def _query_spans(runs: list[_Run]) -> tuple[Span, ...]:
    """Neighbouring runs merged, since attention only cares for positions."""
    spans: list[Span] = []
    for run in runs:
        if spans and sum(spans[-1]) == run.position:
            spans[-1] = (spans[-1][0], spans[-1][1] + run.tokens)
        else:
            spans.append((run.position, run.tokens))
    return tuple(spans)
