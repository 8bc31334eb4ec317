"""`hypic serve --pic auto`: the arm that strays least from a full recompute on this checkpoint, or none.

Composition is exact in a layer, whatever the model; whether what is lost across layers matters is a property of the
checkpoint (stacks of Mamba2 layers, for one, are reported to do better with the last state alone). So it is measured:
real questions over real documents, each arm against `full`, by how far the next-token distributions of the question's
tokens are apart. An arm is good enough within a tolerance; where none is, exact prefix reuse is what remains.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hypic.arms import arm_named
from hypic.engine.divergence import kl_nats
from hypic.engine.engine import Engine
from hypic.eval.memory import deviation, memories
from hypic.eval.probe import CombinedPrompt, combine
from hypic.eval.report import Table, progress
from hypic.eval.workloads import question_sets
from hypic.request import GenerationRequest, SamplingParams

CANDIDATES = ("hypic", "anchored", "transition", "last_state")
FALLBACK = "prefix"
REFERENCE = "full"


@dataclass(frozen=True)
class Measured:
    """An arm against `full`, means over prompts. kl_nats: of the next-token distributions of the question's tokens.
    agreement: share of those tokens with the same most likely successor. deepest_l2, deepest_degrees: deviation of the
    memory of the deepest layer."""

    arm: str
    kl_nats: float
    agreement: float
    deepest_l2: float
    deepest_degrees: float


@dataclass(frozen=True)
class Choice:
    """The arm to serve with, why, and what was measured."""

    arm: str
    reason: str
    measured: tuple[Measured, ...]

    def table(self) -> Table:
        rows = tuple(
            (
                m.arm,
                f"{m.kl_nats:.4f}",
                f"{100 * m.agreement:.1f} %",
                f"{m.deepest_l2:.3f}",
                f"{m.deepest_degrees:.1f}°",
            )
            for m in self.measured
        )
        columns = ("arm", "KL (nats)", "same top token", "deepest layer L2", "angle")
        return Table("Arms against a full recompute", columns, rows, self.reason)


def choose_arm(engine: Engine, tolerance: float, prompts: int = 4, documents: int = 6, seed: int = 0) -> Choice:
    """Measure the candidates on shipped questions and take the one nearest to `full`, if within `tolerance` nats."""
    measured = measure(engine, CANDIDATES, prompts, documents, seed)
    best = min(measured, key=lambda found: found.kl_nats)
    if best.kl_nats <= tolerance:
        reason = f"{best.arm} strays least, {best.kl_nats:.4f} nats a token, within the tolerance of {tolerance:g}"
        return Choice(best.arm, reason, measured)
    reason = (
        f"no arm stays within {tolerance:g} nats a token (the nearest, {best.arm}, strays {best.kl_nats:.4f}), "
        f"so only exact prefixes are reused: {FALLBACK}"
    )
    return Choice(FALLBACK, reason, measured)


def measure(engine: Engine, arms: Sequence[str], prompts: int, documents: int, seed: int) -> tuple[Measured, ...]:
    """Each arm against `full` over HotpotQA prompts of the shipped sample."""
    questions = [q for found in question_sets("hotpotqa", prompts, documents, seed).values() for q in found]
    totals = {arm: torch.zeros(4, dtype=torch.float64) for arm in arms}
    with progress("measuring arms on this model", len(questions) * len(arms)) as advance:
        for number, question in enumerate(questions):
            segments = question.segments(engine.tokenizer)
            runs = {}
            for arm in (REFERENCE, *arms):
                request = GenerationRequest(
                    f"auto-{number}", segments, arm_named(arm), SamplingParams(max_tokens=1), salt=f"auto/{arm}"
                )
                runs[arm] = combine(engine, request)
                if arm != REFERENCE:
                    totals[arm] += _compare(engine, runs[arm], runs[REFERENCE])
                    advance(arm)
    return tuple(Measured(arm, *(total / len(questions)).tolist()) for arm, total in totals.items())


def _compare(engine: Engine, found: CombinedPrompt, expected: CombinedPrompt) -> Tensor:
    """kl_nats, agreement, deepest_l2, deepest_degrees of one prompt, float64 `[4]`."""
    p, q = expected.question_logits, found.question_logits
    kl = kl_nats(p, q).mean()
    agreement = (p.argmax(-1) == q.argmax(-1)).double().mean()
    apart = deviation(memories(engine, found)[-1], memories(engine, expected)[-1])
    return torch.tensor(
        [float(kl), float(agreement), apart["relative_l2"], apart["angle_degrees"]], dtype=torch.float64
    )
