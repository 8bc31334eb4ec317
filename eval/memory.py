"""What a layer remembers of the documents when the question comes, and how far one memory is from another.

A linear layer's memory is the state with which the question is entered; a full-attention layer's is the keys and
values of the tokens before the question.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hypic.engine.engine import Engine
from hypic.eval.probe import CombinedPrompt


@dataclass(frozen=True)
class LayerMemory:
    """A layer's memory before the question. parts: "state", or "keys" and "values"."""

    index: int
    kind: str
    parts: dict[str, Tensor]


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


class Apart:
    """How far two things are apart, gathered part by part: sums of squares, float64."""

    def __init__(self) -> None:
        self._apart = self._found = self._expected = 0.0

    def add(self, found: Tensor, expected: Tensor) -> None:
        """Take in a part of both, of the same shape."""
        a, b = found.double(), expected.double()
        self._apart += float((a - b).square().sum())
        self._found += float(a.square().sum())
        self._expected += float(b.square().sum())

    @property
    def relative_l2(self) -> float:
        return math.sqrt(self._apart / self._expected) if self._expected else 0.0

    @property
    def angle_degrees(self) -> float:
        """From the chord between the unit vectors, which is exact also where it is tiny."""
        a, b = math.sqrt(self._found), math.sqrt(self._expected)
        if not a or not b:
            return 0.0 if a == b else 90.0
        chord = math.sqrt(max(0.0, self._apart - (a - b) ** 2) / (a * b))
        return math.degrees(2 * math.asin(min(1.0, chord / 2)))

    def as_dict(self) -> dict[str, float]:
        return {"relative_l2": self.relative_l2, "angle_degrees": self.angle_degrees}
