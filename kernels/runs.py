"""How packed tokens fall into runs, and runs into sequences.

A run is a stretch of tokens that is computed; a sequence is a chain of runs. Cached operators may be applied
before a run (a reused segment stands there), so a run is the unit at which a state can be read, replaced or
composed. `Schedule` cuts the runs into chunks and orders them so that chunk i of every sequence is one
contiguous batch: sequences advance side by side, however many there are.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True)
class Runs:
    """Offsets of runs in the packed tokens, and of sequences in the runs.

    token_offsets: R+1 ascending ints, run r covers tokens token_offsets[r] to token_offsets[r+1]. Runs may be
    empty. sequence_offsets: N+1 ascending ints, sequence n covers runs sequence_offsets[n] to [n+1].
    """

    token_offsets: tuple[int, ...]
    sequence_offsets: tuple[int, ...]

    def __post_init__(self) -> None:
        named = (("token_offsets", self.token_offsets), ("sequence_offsets", self.sequence_offsets))
        for name, offsets in named:
            if not offsets or offsets[0] != 0 or any(a > b for a, b in pairwise(offsets)):
                raise ValueError(f"{name} must start at 0 and ascend, found {offsets}")
        if self.sequence_offsets[-1] != len(self.token_offsets) - 1:
            raise ValueError(
                f"sequence_offsets end at run {self.sequence_offsets[-1]}, but there are "
                f"{len(self.token_offsets) - 1} runs"
            )

    @classmethod
    def from_lengths(cls, lengths: list[list[int]]) -> "Runs":
        """Runs of the given token counts: one inner list per sequence."""
        tokens, sequences = [0], [0]
        for runs in lengths:
            for length in runs:
                tokens.append(tokens[-1] + length)
            sequences.append(len(tokens) - 1)
        return cls(tuple(tokens), tuple(sequences))

    @property
    def num_tokens(self) -> int:
        return self.token_offsets[-1]

    @property
    def num_runs(self) -> int:
        return len(self.token_offsets) - 1

    @property
    def num_sequences(self) -> int:
        return len(self.sequence_offsets) - 1

    def length(self, run: int) -> int:
        """Tokens in a run."""
        return self.token_offsets[run + 1] - self.token_offsets[run]

    def runs_of(self, sequence: int) -> range:
        """The runs of a sequence, in order."""
        return range(self.sequence_offsets[sequence], self.sequence_offsets[sequence + 1])

    def tokens_of(self, sequence: int) -> tuple[int, int]:
        """First and one-past-last packed token of a sequence."""
        first, last = self.sequence_offsets[sequence], self.sequence_offsets[sequence + 1]
        return self.token_offsets[first], self.token_offsets[last]

    @cached_property
    def schedule(self) -> "Schedule":
        """The chunk schedule at the chunk size that suits these runs."""
        return Schedule.build(self, _chunk_tokens(self))


def _chunk_tokens(runs: Runs) -> int:
    """8, 16 or 32, whichever wastes least on padding: on a CPU a chunk costs about as much as two tokens
    more than it holds (measured at K = V = 128), and chunks of 64 fall out of the cache. Seams are short,
    documents long."""
    lengths = [runs.length(run) for run in range(runs.num_runs)]
    cost = {size: sum(-(-length // size) * (size + 2) for length in lengths) for size in (8, 16, 32)}
    return min(cost, key=lambda size: (cost[size], -size))


@dataclass(frozen=True)
class Schedule:
    """Chunks of a `Runs`, ordered level by level: level i holds the i-th chunk of every sequence that has
    one.

    order: sequence indices by descending number of chunks; row j of the state batch is sequence order[j].
    level_offsets: chunk range of each level; its chunks belong to state rows 0, 1, 2, ...
    gather: [chunks, C] int64, packed token of each chunk slot, or T (one past the end) for padding.
    scatter: [T] int64, flat chunk slot of each packed token.
    first_chunk: (level, state row) of the first chunk at or after the start of each run.
    """

    chunk_tokens: int
    order: tuple[int, ...]
    level_offsets: tuple[int, ...]
    gather: Tensor
    scatter: Tensor
    first_chunk: tuple[tuple[int, int], ...]

    @classmethod
    def build(cls, runs: Runs, chunk_tokens: int) -> "Schedule":
        per_sequence: list[list[tuple[int, int]]] = []  # chunks as (first token, tokens)
        level_of_run: list[int] = []
        for sequence in range(runs.num_sequences):
            chunks: list[tuple[int, int]] = []
            for run in runs.runs_of(sequence):
                level_of_run.append(len(chunks))
                start, end = runs.token_offsets[run], runs.token_offsets[run + 1]
                chunks += [(at, min(chunk_tokens, end - at)) for at in range(start, end, chunk_tokens)]
            per_sequence.append(chunks)
        order = sorted(range(runs.num_sequences), key=lambda n: -len(per_sequence[n]))
        row_of = {sequence: row for row, sequence in enumerate(order)}
        first_chunk = [
            (level_of_run[run], row_of[sequence])
            for sequence in range(runs.num_sequences)
            for run in runs.runs_of(sequence)
        ]
        ordered: list[tuple[int, int]] = []
        level_offsets = [0]
        for level in range(len(per_sequence[order[0]]) if order else 0):
            ordered += [per_sequence[n][level] for n in order if len(per_sequence[n]) > level]
            level_offsets.append(len(ordered))
        gather, scatter = _index(ordered, chunk_tokens, runs.num_tokens)
        return cls(chunk_tokens, tuple(order), tuple(level_offsets), gather, scatter, tuple(first_chunk))


def _index(chunks: list[tuple[int, int]], chunk_tokens: int, num_tokens: int) -> tuple[Tensor, Tensor]:
    start = torch.tensor([at for at, _ in chunks], dtype=torch.int64)[:, None]
    length = torch.tensor([count for _, count in chunks], dtype=torch.int64)[:, None]
    slot = torch.arange(chunk_tokens)[None, :]
    valid = slot < length
    gather = torch.where(valid, start + slot, num_tokens)  # [chunks, C]
    scatter = torch.empty(num_tokens, dtype=torch.int64)
    scatter[gather[valid]] = torch.arange(gather.numel()).view_as(gather)[valid]
    return gather, scatter
