"""Prefilling cold segments alone: from a zero state, at positions from 0, in packed batches, whoever asks."""

from dataclasses import replace

import torch
from torch import Tensor

from hypic.batch import PrefillBatch
from hypic.cache.entry import SegmentEntry
from hypic.cache.prefix_cache import EXACT, PrefixCache
from hypic.engine.composer import BuildTask
from hypic.kernels.compose.naive import apply_transition
from hypic.linear.operators import OperatorFormats, Operators
from hypic.models.contract import HybridModel
from hypic.segment import Namespace, Segment, TokenIds
from hypic.sequence import Active, Sequence, SequenceCache, Trace


def build_segments(
    model: HybridModel,
    tasks: list[BuildTask],
    formats: OperatorFormats,
    anchors: dict[bytes, SequenceCache] | None = None,
) -> list[SegmentEntry]:
    """Prefill segments together, block-diagonal: none sees another.

    formats: of the operators. anchors: token bytes of an anchor -> the memory after it, for tasks that name one.
    Returns entries in the order of the tasks. A segment's entry is the same, up to rounding, in whatever company it is
    built. Raises OperatorError where one holds NaN or infinity.
    """
    sequences = [_sequence(model, task, anchors or {}) for task in tasks]
    batch = PrefillBatch(sequences)
    model.forward(batch)
    batch.finish()
    return [_entry(model, task, sequence, formats) for task, sequence in zip(tasks, sequences, strict=True)]


def anchor_memory(
    model: HybridModel, prefixes: PrefixCache, namespace: Namespace, anchor: TokenIds, salt: str
) -> SequenceCache:
    """The memory after the leading section that a segment is built behind: from the prefix tree, or computed."""
    cache = SequenceCache.empty(model.cache_spec(), len(anchor))
    section = Segment("leading", anchor)
    match = prefixes.match(replace(namespace, salt=salt), (section, section), (EXACT,))
    if match.sections:
        match.load(cache)
        match.release()
        return cache
    tokens = torch.from_numpy(anchor).long().to(model.cache_spec().device)
    batch = PrefillBatch([Sequence(cache, (Active(len(tokens)),), tokens)])
    model.forward(batch)
    batch.finish()
    return cache


def packed(tasks: list[BuildTask], max_tokens: int) -> list[list[BuildTask]]:
    """Batches of consecutive tasks of at most `max_tokens` together; a longer task is a batch of its own."""
    batches: list[list[BuildTask]] = []
    room = 0
    for task in tasks:
        if len(task) > room or not batches:
            batches.append([])
            room = max_tokens
        batches[-1].append(task)
        room -= len(task)
    return batches


def _sequence(model: HybridModel, task: BuildTask, anchors: dict[bytes, SequenceCache]) -> Sequence:
    anchor = None if task.anchor is None else anchors[task.anchor.tobytes()]
    cache = SequenceCache.empty(model.cache_spec(), len(task) + (anchor.tokens if anchor else 0))
    if anchor is not None:
        cache.keys[:, : anchor.tokens] = anchor.keys[:, : anchor.tokens]
        cache.values[:, : anchor.tokens] = anchor.values[:, : anchor.tokens]
        cache.states.copy_(anchor.states)
        cache.conv_tails.copy_(anchor.conv_tails)
        cache.tokens = anchor.tokens
    seam = task.seam_tokens
    pieces = (Active(seam), Active(len(task) - seam)) if seam else (Active(len(task)),)
    remainder = len(pieces) - 1
    trace = Trace(want_kv=True, want_entering=(remainder,), want_transition=(remainder,))
    tokens = torch.from_numpy(task.token_ids).long().to(cache.keys.device)
    return Sequence(cache, pieces, tokens, trace)


def _entry(model: HybridModel, task: BuildTask, sequence: Sequence, formats: OperatorFormats) -> SegmentEntry:
    """The pair of the remainder. Its zero-start state is what is left of the end state once what the seam brought
    is taken out: S = S_end - T·S_seam, the composition law read backwards. It is kept as if the segment began at
    position 0, also where it was built behind an anchor."""
    trace, remainder = sequence.trace, len(sequence.pieces) - 1
    entering, _ = trace.entering(remainder, sequence.cache)
    written = trace.transitions.get(remainder, [])
    transitions = torch.stack(written) if written else entering.new_zeros(entering.shape[:2])
    states = sequence.cache.states - apply_transition(transitions, entering)
    begins = sequence.cache.tokens - len(task)
    states = model.move_states(states, -begins) if begins else states
    return SegmentEntry(
        key=task.key,
        token_ids=task.token_ids,
        seam_tokens=task.seam_tokens,
        operators=Operators.of(transitions, states, formats),
        conv_tails=sequence.cache.conv_tails,
        keys=_remainder(trace.keys, task, sequence.cache.keys),
        values=_remainder(trace.values, task, sequence.cache.values),
    )


def _remainder(layers: list[Tensor], task: BuildTask, like: Tensor) -> Tensor:
    """Keys or values of the remainder, `[F, n-w, HK, D]`; F is 0 for a model without full attention."""
    remainder = like.new_empty(len(layers), len(task) - task.seam_tokens, *like.shape[2:])
    for layer, tensor in enumerate(layers):
        remainder[layer] = tensor[task.seam_tokens :]
    return remainder
