"""The plan of a request: for each segment where it comes from, and if it is not reused, why. A plain value."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Source = Literal["prefix", "segment", "build", "active"]
"""prefix: exact or composed memory of a prefix. segment: a cached entry. build: prefilled alone now, then used as an
entry. active: computed in the combine pass."""

MISSES = ("cold", "evicted", "no_room", "damaged", "truncated", "schema", "foreign", "missing", "read")
"""Why an entry is not at hand: never met, or no longer known (cold); met before and evicted; here, but without room to
make it ready beside what is in use (no_room); or the fault of its last copy, in a file: checksums that do not fit
(damaged), cut short (truncated), of another version (schema), not ours (foreign), gone (missing), unreadable (read)."""

Reason = Literal[
    "", "question", "leading", "too_short", "arm", "in_flight", "repeated",
    "cold", "evicted", "no_room", "damaged", "truncated", "schema", "foreign", "missing", "read",
]  # fmt: skip
"""Why a segment is not simply reused: the last section is always computed (question); too short to be worth an entry
(too_short); the opening text, which is kept exactly, as a prefix, where entries are stored with loss (leading); the
arm does not reuse segments (arm); being built for another request, whose result is awaited (in_flight); built for an
earlier place in the same prompt (repeated); or one of `MISSES`."""


@dataclass(frozen=True)
class PlanRow:
    """One segment. position: of its first token. computed_tokens: run in the combine pass, seam included. tier: where
    the fastest copy of what is reused was found, of a prefix that of its slowest part."""

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
    tier: str = ""

    @property
    def builds(self) -> bool:
        """Whether this row has its segment prefilled for this request."""
        return self.source == "build" and self.reason in MISSES


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
