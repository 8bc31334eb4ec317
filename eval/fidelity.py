"""`hypic eval fidelity`: how far each layer's memory of the documents is from that of a full recompute.

Deviation in the first layer is the arm's own error; what grows with depth is drift, since a segment prefilled alone
never saw what precedes it. By layer, by position in a segment, over widths of the seam; and what must be exact is
checked to be.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from hypic.arms import arm_named
from hypic.engine.engine import Engine
from hypic.errors import InvalidRequestError
from hypic.eval.exactness import Check, check_arm, checks_table, worst
from hypic.eval.memory import deviation, memories
from hypic.eval.positions import ByPosition
from hypic.eval.probe import CombinedPrompt, combine
from hypic.eval.report import Advance, Report, Table, progress
from hypic.eval.seam_sweep import SeamSweep
from hypic.eval.settings import FidelityConfig
from hypic.eval.workloads import Question, question_sets
from hypic.request import GenerationRequest, SamplingParams

REFERENCE = "full"

_POSITION_NOTES = (
    "Relative L2 by token of all documents, counted from the head of each.",
    "Relative L2 of the state after so many tokens of the last document; - where the arm never has such a state.",
)


class _Measurement:
    """Everything that is measured, gathered prompt by prompt."""

    def __init__(self, engine: Engine, arms: Sequence[str], widths: Sequence[int], prompts: int) -> None:
        self.engine, self.prompts = engine, prompts
        self.arms = [arm_named(name) for name in arms]
        self.positions = ByPosition(engine)
        self.sweep = SeamSweep(engine, widths, prompts)
        self.checks: list[Check] = []
        self._sums: dict[tuple[int, str, str], dict[str, float]] = {}

    def add(self, question: Question, check: bool, advance: Advance) -> None:
        """Run one prompt through every arm. check: whether to check exactness on it."""
        segments = question.segments(self.engine.tokenizer)
        expected = self._combine(question, REFERENCE)
        for arm in self.arms:
            found = self._combine(question, arm.name)
            self._add_layers(arm.name, found, expected)
            self.positions.add_keys_and_values(arm.name, found, expected)
            if check and arm.reuse_segments:
                self.checks += check_arm(self.engine, arm, segments, found, expected)
            advance(arm.name)
        self.positions.add_states([arm for arm in self.arms if arm.reuse_segments], segments, expected.plan.rows)
        for arm in self.sweep.arms:
            self.sweep.add(arm, segments, expected)
            advance(arm.name)

    def layers(self) -> list[dict[str, Any]]:
        """For JSON: means over prompts."""
        return [
            {"index": index, "kind": kind, "arm": arm, **values} for (index, kind, arm), values in self._sums.items()
        ]

    def _combine(self, question: Question, arm: str) -> CombinedPrompt:
        segments = question.segments(self.engine.tokenizer)
        return combine(
            self.engine, GenerationRequest("fidelity", segments, arm_named(arm), SamplingParams(max_tokens=1), arm)
        )

    def _add_layers(self, arm: str, found: CombinedPrompt, expected: CombinedPrompt) -> None:
        pairs = zip(memories(self.engine, found), memories(self.engine, expected), strict=True)
        for memory, other in pairs:
            sums = self._sums.setdefault((memory.index, memory.kind, arm), {})
            for name, value in deviation(memory, other).items():
                sums[name] = sums.get(name, 0.0) + value / self.prompts


def run_fidelity(engine: Engine, config: FidelityConfig, arms: Sequence[str]) -> Report:
    """Means over `limit` prompts of each set of a data set. Raises InvalidRequestError for an unknown arm or set."""
    chosen = [name for name in dict.fromkeys(arms) if arm_named(name).name != REFERENCE]
    if not chosen:
        raise InvalidRequestError(f"name at least one arm beside {REFERENCE} to compare with it")
    sets = question_sets(config.dataset, config.limit, config.documents or None, config.seed)
    questions = [question for found in sets.values() for question in found]
    measured = _Measurement(engine, chosen, config.widths, len(questions))
    with progress("comparing memories", len(questions) * (len(chosen) + len(measured.sweep.arms))) as advance:
        for found in sets.values():
            for number, question in enumerate(found):
                measured.add(question, number == 0, advance)
    checks = worst(measured.checks)
    layers, positions, seams = measured.layers(), measured.positions.rows(), measured.sweep.rows()
    results = {
        **asdict(config),
        "documents": config.documents or None,
        "prompts": len(questions),
        "passed": all(check.passed for check in checks),
        "checks": [check.as_dict() for check in checks],
        "layers": layers,
        "positions": positions,
        "seams": seams,
    }
    shown = [*_layer_tables(layers, chosen), *_position_tables(positions, engine), *_seam_tables(seams)]
    tables = (*([checks_table(checks)] if checks else ()), *shown)
    return Report("eval fidelity", str(engine.config.model), engine.config.device, results, tables)


def _layer_tables(layers: list[dict[str, Any]], arms: Sequence[str]) -> Iterator[Table]:
    by_place = {(row["index"], row["arm"]): row for row in layers}
    kinds = {row["index"]: row["kind"] for row in layers}
    for key, title, unit in (("relative_l2", "Relative L2", ""), ("angle_degrees", "Angle", "°")):
        rows = tuple(
            (str(index), kind, *(f"{by_place[index, arm][key]:.3g}{unit}" for arm in arms))
            for index, kind in sorted(kinds.items())
        )
        note = "Against full: state before the question in linear layers, keys and values in full-attention layers."
        yield Table(f"{title} by layer", ("layer", "kind", *arms), rows, note, text_columns=2)


def _position_tables(positions: list[dict[str, Any]], engine: Engine) -> Iterator[Table]:
    """The deepest layer of each kind; the other layers are in the JSON."""
    kinds = engine.model.layer_kinds
    for part, kind in (("state", "linear"), ("keys", "full"), ("values", "full")):
        deepest = max((index for index, found in enumerate(kinds) if found == kind), default=None)
        found = [row for row in positions if row["part"] == part and row["index"] == deepest]
        arms = list(dict.fromkeys(row["arm"] for row in found))
        bins = sorted({(row["from_token"], row["to_token"]) for row in found}, key=lambda b: (b[1] is None, b[0]))
        cells = {(row["from_token"], row["to_token"], row["arm"]): f"{row['relative_l2']:.3g}" for row in found}
        rows = tuple((_bin_name(part, *at), *(cells.get((*at, arm), "-") for arm in arms)) for at in bins)
        note = _POSITION_NOTES[part == "state"]
        if rows:
            yield Table(f"{part.capitalize()} of layer {deepest} by position", ("token", *arms), rows, note)


def _bin_name(part: str, first: int, end: int | None) -> str:
    if end is None:
        return "at the end"
    if part == "state":
        return f"after {end}"
    return f"{first}" if end == first + 1 else f"{first} to {end - 1}"


def _seam_tables(seams: list[dict[str, Any]]) -> Iterator[Table]:
    rows = tuple(
        (
            str(row["w"]),
            "anchored" if row["anchored"] else "plain",
            f"{row['computed_tokens']:.0f}",
            f"{row['kl_nats']:.4f}",
            f"{100 * row['top_token_agreement']:.1f} %",
            *(f"{layer['relative_l2']:.3g}" for layer in (row["layers"][0], row["layers"][-1])),
        )
        for row in seams
    )
    columns = ("w", "built", "computed", "KL", "same top token", "first layer", "last layer")
    note = (
        "Seams of w tokens. computed: tokens a prompt; KL(full || arm) in nats and the likeliest token, over the "
        "question's tokens; relative L2 of the first and the last layer. anchored: built behind the system text."
    )
    if rows:
        yield Table("Width of the seam", columns, rows, note, text_columns=2)
