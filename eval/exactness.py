"""What must hold exactly, whatever the weights: if one of these checks is red, the arm is broken, not merely lossy.

Composition is an approximation across layers, so a deviation alone does not tell a fault from drift. These places
know no drift: the first layer, whose inputs are the tokens themselves; the seam of the first document, computed behind
what is exact; a document with nothing before it; the keys of the first full-attention layer, under which only
zero-started recurrences lie; and the operator of each linear layer by itself.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hypic.arms import Arm
from hypic.batch import PrefillBatch
from hypic.engine.engine import Engine
from hypic.eval.memory import Apart, deviation, memories
from hypic.eval.probe import CombinedPrompt, build_missing, combine
from hypic.eval.report import Table
from hypic.request import GenerationRequest, SamplingParams
from hypic.segment import Segment
from hypic.sequence import Active, Sequence, SequenceCache, Trace

STORAGE_LIMIT = 0.02
"""Relative error of a state that went through 8-bit entries and operators within 1e-3. A fault is of the size of 1."""

MEANINGS = {
    "first layer": "memory of the first layer before the question, in a prompt of several documents",
    "seam": "keys and values of every layer at the seam of the first document, before which all is exact",
    "alone": "memory of every layer of a document with nothing before it",
    "moved": "keys and values of reused documents in the first full-attention layer",
    "operator": "state of each linear layer after a document, entered with a random state",
}


@dataclass(frozen=True)
class Check:
    """found: the largest relative L2 error, measured by its limit. layer: where it is. limit: what may be there."""

    name: str
    arm: str
    layer: int
    found: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.found <= self.limit

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"passed": self.passed}


def limit(engine: Engine, layer: int) -> float:
    """Relative error that a layer's memory may have: of rounding in the model's dtype, 2e-5 in float32 and 8 roundings
    in a coarser one. Cached states and operators that are stored with loss bring theirs; keys and values are not."""
    rounding = max(2e-5, 8 * torch.finfo(engine.model.cache_spec().dtype).eps)
    stored = engine.model.layer_kinds[layer] == "linear" and not engine.formats.lossless
    return max(rounding, STORAGE_LIMIT) if stored else rounding


def check_arm(
    engine: Engine, arm: Arm, segments: tuple[Segment, ...], found: CombinedPrompt, expected: CombinedPrompt
) -> list[Check]:
    """All checks that an arm must pass on a prompt. found, expected: the prompt in the arm and in `full`. Strawmen that
    do not claim to compose are held to what does not ask for it, arms without a seam to what does not need one."""
    reused = [row for row in found.plan.rows if row.source in ("segment", "build")]
    documents = [segments[row.index] for row in reused if row.kind == "document"]
    checks = []
    if arm.composition == "transition" and arm.seam_tokens >= engine.model.cache_spec().conv_width - 1:
        apart = deviation(memories(engine, found)[0], memories(engine, expected)[0])
        checks.append(("first layer", 0, apart["relative_l2"]))
    if documents and arm.seam_tokens and "full" in engine.model.layer_kinds:
        checks.append(("seam", *_seam(engine, arm, found, expected)))
    if documents:
        shortest = min(documents, key=len)
        checks.append(("alone", *_alone(engine, arm, shortest, segments[-1])))
        if arm.composition == "transition" and "linear" in engine.model.layer_kinds:
            checks.append(("operator", *_operator(engine, arm, shortest, segments[-1])))
    if documents and not arm.anchored and "full" in engine.model.layer_kinds:
        checks.append(("moved", engine.model.layer_kinds.index("full"), _moved(engine, segments, found)))
    return [Check(name, arm.name, layer, value, limit(engine, layer)) for name, layer, value in checks]


def worst(checks: list[Check]) -> list[Check]:
    """Of each check and arm the one with the largest error."""
    places = dict.fromkeys((check.name, check.arm) for check in checks)
    return [max((c for c in checks if (c.name, c.arm) == place), key=lambda c: c.found / c.limit) for place in places]


def checks_table(checks: list[Check]) -> Table:
    """What passed and what did not."""
    rows = tuple(
        (c.name, c.arm, "passed" if c.passed else "FAILED", f"{c.found:.1e}", f"{c.limit:.1e}", str(c.layer))
        for c in checks
    )
    note = "Relative L2 error where there is no drift: " + "; ".join(f"{k}: {v}" for k, v in MEANINGS.items()) + "."
    return Table("Exactness", ("check", "arm", "", "error", "limit", "layer"), rows, note, text_columns=3)


def _seam(engine: Engine, arm: Arm, found: CombinedPrompt, expected: CombinedPrompt) -> tuple[int, float]:
    """(layer, error) where the promised seam of the first reused document deviates most: it is computed behind the
    leading section, so it must be what a full recompute has there."""
    row = next(row for row in found.plan.rows if row.kind == "document" and row.source in ("segment", "build"))
    place = slice(row.position, row.position + arm.seam_tokens)
    errors = {}
    for at, layer in enumerate(index for index, kind in enumerate(engine.model.layer_kinds) if kind == "full"):
        keys, values = Apart(), Apart()
        keys.add(found.keys[at, place], expected.keys[at, place])
        values.add(found.values[at, place], expected.values[at, place])
        errors[layer] = max(keys.relative_l2, values.relative_l2)
    layer = max(errors, key=errors.__getitem__)
    return layer, errors[layer]


def _alone(engine: Engine, arm: Arm, document: Segment, question: Segment) -> tuple[int, float]:
    """(layer, error) where a document that opens the prompt deviates most from its full recompute."""
    both = []
    for run in (arm, replace(arm, name="full", reuse_segments=False, reuse_prefix=False)):
        request = GenerationRequest(
            "alone", (document, question), run, SamplingParams(max_tokens=1), f"alone/{run.name}"
        )
        both.append(memories(engine, combine(engine, request)))
    errors = [deviation(found, expected)["relative_l2"] for found, expected in zip(*both, strict=True)]
    layer = max(range(len(errors)), key=lambda at: errors[at] / limit(engine, at))
    return layer, errors[layer]


@torch.inference_mode()
def _moved(engine: Engine, segments: tuple[Segment, ...], found: CombinedPrompt) -> float:
    """Error of reused keys and values in the first full-attention layer, against a forward pass that starts where the
    document stands: the layers below are recurrences that start from zero, wherever that is."""
    apart = Apart()
    for row in found.plan.rows:
        if row.kind != "document" or row.source not in ("segment", "build"):
            continue
        end = row.position + row.tokens
        cache = SequenceCache.empty(engine.model.cache_spec(), end)
        cache.keys.zero_()
        cache.values.zero_()
        cache.tokens = row.position
        _forward(engine, Sequence(cache, (Active(row.tokens),), _tokens(engine, segments[row.index])))
        place = slice(row.position + row.seam_tokens, end)
        for mine, right in ((found.keys, cache.keys), (found.values, cache.values)):
            scale = right[0, place].double().norm()
            apart.add(mine[0, place] / scale, right[0, place] / scale)
    return apart.relative_l2


@torch.inference_mode()
def _operator(engine: Engine, arm: Arm, document: Segment, question: Segment) -> tuple[int, float]:
    """(layer, error) where a cached operator deviates most from the recurrence that it stands for. One layer at a time
    is entered with a random state: its inputs are then those that the document was built with."""
    request = GenerationRequest("operator", (document, question), arm, SamplingParams(max_tokens=1), "operator")
    reservation = engine.composer.reserve(request)
    try:
        build_missing(engine, engine.composer, reservation)
        kinds = [index for index, kind in enumerate(engine.model.layer_kinds) if kind == "linear"]
        errors = []
        for at in range(len(kinds)):
            composed = engine.composer.sequence(reservation)
            direct = Sequence(
                SequenceCache.empty(engine.model.cache_spec(), len(document) + len(question)),
                (Active(len(document)), Active(len(question))),
                torch.cat([_tokens(engine, document), _tokens(engine, question)]),
            )
            ends = [_end_state(engine, sequence, at) for sequence in (composed, direct)]
            apart = Apart()
            apart.add(*ends)
            errors.append(apart.relative_l2)
    finally:
        reservation.release()
    worst_at = max(range(len(errors)), key=errors.__getitem__)
    return kinds[worst_at], errors[worst_at]


def _end_state(engine: Engine, sequence: Sequence, layer: int) -> Tensor:
    """State `[H, K, V]` of one linear layer before the question, when it is entered with a random state."""
    state = sequence.cache.states[layer]
    random = torch.randn(state.shape, generator=torch.Generator().manual_seed(layer))
    sequence.cache.states[layer] = random.to(state.device)
    last = sum(isinstance(piece, Active) for piece in sequence.pieces) - 1
    sequence.trace = Trace(want_entering=(last,))
    _forward(engine, sequence)
    return sequence.trace.entering(last, sequence.cache)[0][layer]


def _forward(engine: Engine, sequence: Sequence) -> None:
    batch = PrefillBatch([sequence])
    engine.model.forward(batch)
    batch.finish()


def _tokens(engine: Engine, segment: Segment) -> Tensor:
    return torch.from_numpy(segment.token_ids).long().to(engine.config.device)
