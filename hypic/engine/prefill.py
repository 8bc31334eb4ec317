"""The pass over a prompt in chunks, so that nobody's decoding waits for a long one.

A chunk is a sequence like any other: it goes on in the same private memory, where the chunk before has left states,
convolution tails, keys and values. So the result is that of one pass over everything, up to rounding.
"""

import time
from dataclasses import dataclass, field

from torch import Tensor

from hypic.batch import PrefillBatch
from hypic.models.contract import HybridModel
from hypic.sequence import Active, Piece, Reused, Sequence, Trace


@dataclass
class Chunk:
    """Pieces that are run together, the last of them active. opens: active piece of the chunk -> active piece of the
    whole that begins there; what only goes on is not in it."""

    pieces: list[Piece] = field(default_factory=list)
    opens: dict[int, int] = field(default_factory=dict)
    active_pieces: int = 0
    active_tokens: int = 0

    def add(self, before: list[Reused], tokens: int, opens: int | None) -> None:
        """Append active tokens and what is reused right before them."""
        if opens is not None:
            self.opens[self.active_pieces] = opens
        self.pieces += [*before, Active(tokens)]
        self.active_pieces += 1
        self.active_tokens += tokens


def split(pieces: tuple[Piece, ...], max_tokens: int) -> list[Chunk]:
    """Chunks of `max_tokens` active tokens, the last one of what is left. Reused pieces cost no tokens: they open the
    chunk, or stand in it, before the active one that they precede."""
    chunks = [Chunk()]
    before: list[Reused] = []
    number = 0
    for piece in pieces:
        if isinstance(piece, Reused):
            before.append(piece)
            continue
        done = 0
        while done < piece.tokens:
            if chunks[-1].active_tokens == max_tokens:
                chunks.append(Chunk())
            tokens = min(piece.tokens - done, max_tokens - chunks[-1].active_tokens)
            chunks[-1].add(before, tokens, None if done else number)
            before = []
            done += tokens
        number += 1
    return chunks


class Prefill:
    """One sequence's pass, which may be left off between its chunks. Its trace must want entering states alone.
    began: by time.perf_counter."""

    def __init__(self, model: HybridModel, sequence: Sequence, max_tokens: int) -> None:
        assert not sequence.trace.want_kv, "an entry is built in one pass"
        assert not sequence.trace.want_transition, "an entry is built in one pass"
        self.sequence = sequence
        self._model = model
        self._chunks = split(sequence.pieces, max_tokens)
        self._at = 0
        self.began = time.perf_counter()

    @property
    def left_tokens(self) -> int:
        """Active tokens still to be computed."""
        return sum(chunk.active_tokens for chunk in self._chunks)

    def step(self) -> Tensor | None:
        """Compute the next chunk. Returns float32 logits `[vocabulary]` of the last token once all are computed."""
        chunk = self._chunks.pop(0)
        whole, end = self.sequence, self._at + chunk.active_tokens
        wanted = tuple(own for own, opened in chunk.opens.items() if opened in whole.trace.want_entering)
        trace = Trace(want_entering=wanted)
        batch = PrefillBatch([Sequence(whole.cache, tuple(chunk.pieces), whole.token_ids[self._at : end], trace)])
        hidden = self._model.forward(batch)
        batch.finish()
        self._at = end
        for written, kept in ((trace.states, whole.trace.states), (trace.conv_tails, whole.trace.conv_tails)):
            kept.update({chunk.opens[own]: layers for own, layers in written.items()})
        return None if self._chunks else self._model.logits(hidden[batch.last_rows()])[0]
