"""What a seam of w tokens buys: the `hypic` arm and its anchored form over several w, against `full`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypic.arms import ARMS, Arm
from hypic.engine.divergence import kl_nats
from hypic.engine.engine import Engine
from hypic.eval.memory import deviation, memories
from hypic.eval.probe import CombinedPrompt, combine
from hypic.request import GenerationRequest, SamplingParams
from hypic.segment import Segment


def seam_arms(widths: Sequence[int]) -> list[Arm]:
    """Plain and anchored arms of each width."""
    return [
        replace(ARMS[base], name=f"{base}, w = {width}", seam_tokens=width)
        for base in ("hypic", "anchored")
        for width in widths
    ]


class SeamSweep:
    """Gathers, for each arm of the sweep, means over prompts."""

    def __init__(self, engine: Engine, widths: Sequence[int], prompts: int) -> None:
        self.arms = seam_arms(widths)
        self._engine, self._prompts = engine, prompts
        self._sums: dict[str, dict[str, float]] = {arm.name: {} for arm in self.arms}
        self._layers: dict[str, list[dict[str, float]]] = {
            arm.name: [{} for _ in engine.model.layer_kinds] for arm in self.arms
        }

    def add(self, arm: Arm, segments: tuple[Segment, ...], expected: CombinedPrompt) -> None:
        """Run a prompt in one arm of the sweep. expected: the same prompt in `full`."""
        request = GenerationRequest("seam", segments, arm, SamplingParams(max_tokens=1), arm.name)
        found = combine(self._engine, request)
        p, q = expected.question_logits, found.question_logits
        _count(
            self._sums[arm.name],
            self._prompts,
            computed_tokens=found.plan.computed_tokens,
            kl_nats=float(kl_nats(p, q).mean()),
            top_token_agreement=float((p.argmax(-1) == q.argmax(-1)).double().mean()),
            first_token_agreement=float(p[-1].argmax() == q[-1].argmax()),
        )
        pairs = zip(memories(self._engine, found), memories(self._engine, expected), strict=True)
        for sums, (memory, other) in zip(self._layers[arm.name], pairs, strict=True):
            apart = deviation(memory, other)
            _count(sums, self._prompts, relative_l2=apart["relative_l2"], angle_degrees=apart["angle_degrees"])

    def rows(self) -> list[dict[str, Any]]:
        """For JSON: one an arm of the sweep. kl_nats, top_token_agreement: over the question's tokens."""
        kinds = self._engine.model.layer_kinds
        return [
            {"w": arm.seam_tokens, "anchored": arm.anchored}
            | self._sums[arm.name]
            | {
                "layers": [
                    {"index": index, "kind": kind, **sums}
                    for index, (kind, sums) in enumerate(zip(kinds, self._layers[arm.name], strict=True))
                ]
            }
            for arm in self.arms
        ]


def _count(sums: dict[str, float], prompts: int, **values: float) -> None:
    for name, value in values.items():
        sums[name] = sums.get(name, 0.0) + value / prompts
