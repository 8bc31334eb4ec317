"""One combine pass, opened up: the logits, states, keys and values of a request in any arm.

For evaluations that must see more than tokens. Goes through the same composer, builder and batch as the engine, but
publishes no prefix, so that probing changes nothing that a later request would find.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from hypic.batch import PrefillBatch
from hypic.engine.composer import Composer, Reservation
from hypic.engine.engine import Engine
from hypic.plan import Plan
from hypic.request import GenerationRequest
from hypic.segment import TokenIds
from hypic.sequence import Active, Sequence, SequenceCache, Trace


@dataclass(frozen=True)
class CombinedPrompt:
    """What a combine pass leaves. question_logits: float32 `[Q, vocabulary]` after each token of the question. states:
    `[L, H, K, V]`, with which the question was entered. keys (rotated) and values: `[F, T, HK, D]` of the T prompt
    tokens."""

    plan: Plan
    question_logits: Tensor
    states: Tensor
    keys: Tensor
    values: Tensor

    @property
    def logits(self) -> Tensor:
        """float32 `[vocabulary]` of the first new token."""
        return self.question_logits[-1]


@torch.inference_mode()
def combine(engine: Engine, request: GenerationRequest, composer: Composer | None = None) -> CombinedPrompt:
    """Run the combine pass of a request, building what is cold first. composer: another than the engine's."""
    composer = composer or engine.composer
    reservation = composer.reserve(request)
    try:
        build_missing(engine, composer, reservation)
        sequence = composer.sequence(reservation)
        last = sum(isinstance(piece, Active) for piece in sequence.pieces) - 1
        sequence.trace = Trace(want_entering=(last,))
        batch = PrefillBatch([sequence])
        hidden = engine.model.forward(batch)
        batch.finish()
        logits = engine.model.logits(hidden[-len(request.segments[-1]) :])
    finally:
        reservation.release()
    cache, tokens = sequence.cache, request.prompt_tokens
    return CombinedPrompt(
        plan=reservation.plan,
        question_logits=logits,
        states=sequence.trace.entering(last, cache)[0],
        keys=cache.keys[:, :tokens],
        values=cache.values[:, :tokens],
    )


def computing_composer(engine: Engine) -> Composer:
    """A composer for which every segment is too short to be reused: what it runs is a full recompute."""
    return _composer(engine, engine.max_tokens + 1)


def eager_composer(engine: Engine) -> Composer:
    """A composer that reuses segments of any length that its arm can reuse."""
    return _composer(engine, 1)


@torch.inference_mode()
def states_after(engine: Engine, token_ids: TokenIds, ends: tuple[int, ...]) -> Tensor:
    """Recurrent states after so many tokens of a text, by a full recompute: `[E, L, H, K, V]`. ends: rising, each below
    the text's length."""
    tokens = torch.from_numpy(token_ids).long().to(engine.config.device)
    cuts = (0, *ends, len(tokens))
    pieces = tuple(Active(after - before) for before, after in pairwise(cuts))
    cache = SequenceCache.empty(engine.model.cache_spec(), len(tokens))
    trace = Trace(want_entering=tuple(range(1, len(pieces))))
    batch = PrefillBatch([Sequence(cache, pieces, tokens, trace)])
    engine.model.forward(batch)
    return torch.stack([trace.entering(piece, cache)[0] for piece in trace.want_entering])


def _composer(engine: Engine, min_segment_tokens: int) -> Composer:
    caches, lossless = (engine.segments, engine.prefixes), engine.formats.lossless
    return Composer(engine.model, engine.namespace, *caches, min_segment_tokens, lossless, engine.arrivals)


def build_missing(engine: Engine, composer: Composer, reservation: Reservation) -> None:
    """Build what a reservation waits for, here, and hand it over as a delivery would."""
    tasks = {key: composer.task(reservation, index) for index, key in reservation.missing.items()}
    entries = {entry.key: entry for entry in engine.build(list(tasks.values()))} if tasks else {}
    for entry in entries.values():
        engine.deliver(entry)
    for index, key in list(reservation.missing.items()):
        reservation.entries[index] = entries[key]
        del reservation.missing[index]
