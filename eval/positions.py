"""Deviation from `full` by position in a segment: how long after a seam an arm's memory is off, and where it ends up.

Keys and values stand at their tokens: those of all documents of a prompt are gathered by where they are in theirs.
A state is of a moment: the last document of the prompt, which has the most before it, is cut after so many tokens, and
the state that the arm would have there is composed from the cut document's own operator.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from hypic.arms import Arm
from hypic.engine.engine import Engine
from hypic.eval.memory import Apart
from hypic.eval.probe import CombinedPrompt, combine, eager_composer, states_after
from hypic.plan import PlanRow
from hypic.request import GenerationRequest, SamplingParams
from hypic.segment import Segment

EDGES = (0, 1, *(2**power for power in range(1, 20)))
"""Of the bins, in tokens from the head of a segment."""

Place = tuple[int, str, str, int, int | None]
"""Layer, part ("state", "keys" or "values"), arm, and the bin: its first token and the token after it, None at the end
of a segment. A state is that after the bin's last token."""


class ByPosition:
    """Gathers deviations by place over prompts and arms."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._found = engine, dict[Place, Apart]()
        kinds = list(enumerate(engine.model.layer_kinds))
        self._linear = [index for index, kind in kinds if kind == "linear"]
        self._full = [index for index, kind in kinds if kind == "full"]

    def add_keys_and_values(self, arm: str, found: CombinedPrompt, expected: CombinedPrompt) -> None:
        """Of all documents of a prompt."""
        for row in found.plan.rows:
            if row.kind == "document":
                for first, end in pairwise(EDGES):
                    place = slice(row.position + first, row.position + min(row.tokens, end))
                    if first >= row.tokens:
                        break
                    for at, layer in enumerate(self._full):
                        for part, a, b in (
                            ("keys", found.keys, expected.keys),
                            ("values", found.values, expected.values),
                        ):
                            self._at(layer, part, arm, first, end).add(a[at, place], b[at, place])

    def add_states(self, arms: Sequence[Arm], segments: tuple[Segment, ...], rows: Sequence[PlanRow]) -> None:
        """Within the last document. rows: of the prompt's plan, in any arm."""
        row = next((row for row in reversed(rows) if row.kind == "document"), None)
        if row is None or not self._linear:
            return
        bins: list[tuple[int, int | None]] = [*((a, b) for a, b in pairwise(EDGES) if b < row.tokens), (0, None)]
        lengths = [row.tokens if end is None else end for _, end in bins]
        text = np.concatenate([segment.token_ids for segment in segments])
        expected = states_after(self._engine, text, tuple(row.position + length for length in lengths))
        composer = eager_composer(self._engine)
        for arm in arms:
            for (first, end), length, state in zip(bins, lengths, expected, strict=True):
                if arm.seam_tokens < length < arm.seam_tokens + composer.spec.conv_width:
                    continue  # so short a remainder is never reused: there is no such state
                document = replace(segments[row.index], token_ids=segments[row.index].token_ids[:length])
                question = replace(segments[-1], token_ids=segments[-1].token_ids[:1])
                cut = (*segments[: row.index], document, question)
                request = GenerationRequest("cut", cut, arm, SamplingParams(max_tokens=1), arm.name)
                states = combine(self._engine, request, composer).states
                for at, layer in enumerate(self._linear):
                    self._at(layer, "state", arm.name, first, end).add(states[at], state[at])

    def rows(self) -> list[dict[str, Any]]:
        """For JSON, by layer, part, arm and position. to_token is None for a state at the end of its segment."""
        kinds = self._engine.model.layer_kinds
        return [
            {"index": layer, "kind": kinds[layer], "arm": arm, "part": part, "from_token": first, "to_token": end}
            | apart.as_dict()
            for (layer, part, arm, first, end), apart in sorted(
                self._found.items(), key=lambda item: (*item[0][:3], item[0][4] is None, item[0][3])
            )
        ]

    def _at(self, layer: int, part: str, arm: str, first: int, end: int | None) -> Apart:
        return self._found.setdefault((layer, part, arm, first, end), Apart())
