"""The plan of a request: for each segment where it comes from, and if it is not reused, why. A plain value."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Source = Literal["prefix", "segment", "build", "active"]
"""prefix: exact or composed memory of a prefix. segment: a cached entry. build: prefilled alone now, then used as an
entry. active: computed in the combine pass."""

Reason = Literal["", "question", "leading", "too_short", "cold", "evicted", "arm", "in_flight", "repeated"]
"""Why a segment is not simply reused: the last section is always computed (question); too short to be worth an entry
(too_short); the opening text, which is kept exactly, as a prefix, where entries are stored with loss (leading); never
met, or no longer known (cold); met before and evicted (evicted); the arm does not reuse segments (arm); being built for
another request, whose result is awaited (in_flight); built for an earlier place in the same prompt (repeated)."""


@dataclass(frozen=True)
class PlanRow:
    """One segment. position: of its first token. computed_tokens: run in the combine pass, seam included."""

    index: int
    kind: str
    label: str
    position: int
    tokens: int
    source: Source
    reason: Reason
    seam_tokens: int
    computed_tokens: int
    key: str = ""

    @property
    def builds(self) -> bool:
        """Whether this row has its segment prefilled for this request."""
        return self.source == "build" and self.reason in ("cold", "evicted")


@dataclass(frozen=True)
class Plan:
    """All rows, in prompt order."""

    arm: str
    rows: tuple[PlanRow, ...]

    @property
    def prompt_tokens(self) -> int:
        return sum(row.tokens for row in self.rows)

    @property
    def computed_tokens(self) -> int:
        return sum(row.computed_tokens for row in self.rows)

    @property
    def built_tokens(self) -> int:
        """Tokens of segments that this request has to have prefilled first."""
        return sum(row.tokens for row in self.rows if row.builds)

    @property
    def cached_tokens(self) -> int:
        """Tokens whose computation is skipped: neither built for this request nor run in its combine pass."""
        return sum(row.tokens - row.computed_tokens for row in self.rows if not row.builds)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "arm": self.arm,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "computed_tokens": self.computed_tokens,
            "built_tokens": self.built_tokens,
            "segments": [asdict(row) for row in self.rows],
        }
