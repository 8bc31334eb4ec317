"""`hypic eval fidelity`: how far each layer's memory of the documents is from that of a full recompute.

A linear layer's memory is the state with which the question is entered; a full-attention layer's is the keys and
values of the tokens before the question. Deviation in the first layer is the arm's own error; what grows with depth is
drift, since a segment prefilled alone never saw what precedes it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hypic.arms import arm_named
from hypic.engine.engine import Engine
from hypic.errors import InvalidRequestError
from hypic.eval.probe import CombinedPrompt, combine
from hypic.eval.report import Report, Table, progress
from hypic.eval.workloads import Question, question_sets
from hypic.request import GenerationRequest, SamplingParams

REFERENCE = "full"


@dataclass(frozen=True)
class LayerMemory:
    """A layer's memory before the question. parts: "state", or "keys" and "values"."""

    index: int
    kind: str
    parts: dict[str, Tensor]


def run_fidelity(engine: Engine, dataset: str, arms: Sequence[str], limit: int, documents: int, seed: int) -> Report:
    """Means over `limit` prompts of each set of a data set. Raises InvalidRequestError for an unknown arm or set."""
    chosen = [name for name in dict.fromkeys(arms) if arm_named(name).name != REFERENCE]
    if not chosen:
        raise InvalidRequestError(f"name at least one arm beside {REFERENCE} to compare with it")
    sets = question_sets(dataset, limit, documents, seed)
    questions = [question for found in sets.values() for question in found]
    sums: dict[tuple[int, str, str], dict[str, float]] = {}
    with progress("comparing memories", len(questions) * len(chosen)) as advance:
        for number, question in enumerate(questions):
            reference = memories(engine, combine(engine, _request(engine, question, REFERENCE, number)))
            for arm in chosen:
                found = memories(engine, combine(engine, _request(engine, question, arm, number)))
                for layer, expected in zip(found, reference, strict=True):
                    place = sums.setdefault((layer.index, layer.kind, arm), {})
                    for name, value in deviation(layer, expected).items():
                        place[name] = place.get(name, 0.0) + value / len(questions)
                advance(arm)
    layers = [{"index": index, "kind": kind, "arm": arm, **values} for (index, kind, arm), values in sums.items()]
    results = {"dataset": dataset, "documents": documents, "prompts": len(questions), "layers": layers}
    return Report(
        "eval fidelity", str(engine.config.model), engine.config.device, results, tuple(_tables(layers, chosen))
    )


def memories(engine: Engine, prompt: CombinedPrompt) -> list[LayerMemory]:
    """The memory of every layer before the question, in the order of the layers."""
    before = prompt.plan.rows[-1].position
    counts = {"linear": 0, "full": 0}
    found = []
    for index, kind in enumerate(engine.model.layer_kinds):
        at = counts[kind]
        counts[kind] += 1
        if kind == "linear":
            parts = {"state": prompt.states[at]}
        else:
            parts = {"keys": prompt.keys[at, :before], "values": prompt.values[at, :before]}
        found.append(LayerMemory(index, kind, parts))
    return found


def deviation(found: LayerMemory, expected: LayerMemory) -> dict[str, float]:
    """relative_l2 and angle_degrees over the layer's whole memory, and keys_… and values_relative_l2 where it has both.

    Keys and values count equally: each is scaled to unit norm by what is expected.
    """
    norms = {name: part.double().norm() for name, part in expected.parts.items()}
    a = torch.cat([(found.parts[name].double() / norm).flatten() for name, norm in norms.items()])
    b = torch.cat([(expected.parts[name].double() / norm).flatten() for name, norm in norms.items()])
    result = {"relative_l2": float((a - b).norm() / b.norm()), "angle_degrees": angle_degrees(a, b)}
    if len(norms) > 1:
        for name, norm in norms.items():
            apart = found.parts[name].double() - expected.parts[name].double()
            result[f"{name}_relative_l2"] = float(apart.norm() / norm)
    return result


def angle_degrees(a: Tensor, b: Tensor) -> float:
    """Angle between two float64 vectors, exact also where it is tiny (Kahan's formula)."""
    a, b = a / a.norm(), b / b.norm()
    return math.degrees(2 * math.atan2(float((a - b).norm()), float((a + b).norm())))


def _request(engine: Engine, question: Question, arm: str, number: int) -> GenerationRequest:
    segments = question.segments(engine.tokenizer)
    return GenerationRequest(f"fidelity-{number}", segments, arm_named(arm), SamplingParams(max_tokens=1), salt=arm)


def _tables(layers: list[dict[str, Any]], arms: Sequence[str]) -> Iterator[Table]:
    by_place = {(row["index"], row["arm"]): row for row in layers}
    kinds = {row["index"]: row["kind"] for row in layers}
    for key, title, unit in (("relative_l2", "Relative L2", ""), ("angle_degrees", "Angle", "°")):
        rows = tuple(
            (str(index), kind, *(f"{by_place[index, arm][key]:.3g}{unit}" for arm in arms))
            for index, kind in sorted(kinds.items())
        )
        note = "Against full: state before the question in linear layers, keys and values in full-attention layers."
        yield Table(f"{title} by layer", ("layer", "kind", *arms), rows, note, text_columns=2)
