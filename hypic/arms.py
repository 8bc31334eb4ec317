"""The arms: ways to run the same request, from full recompute to position-independent reuse (DESIGN 2.8)."""

from dataclasses import dataclass
from typing import Literal

from hypic.errors import InvalidRequestError

DEFAULT_SEAM_TOKENS = 8


@dataclass(frozen=True)
class Arm:
    """How a request may reuse what was computed before.

    reuse_prefix: take the longest prefix whose memory is kept. reuse_segments: take documents at any position.
    composition: what a reused segment does to a recurrent state: "transition" T·S + S0, "addition" S + S0,
    "last" S0 alone. seam_tokens: tokens at the head of a reused segment that are computed again. anchored:
    segments are built behind the leading section instead of behind nothing.
    """

    name: str
    summary: str
    reuse_prefix: bool = False
    reuse_segments: bool = False
    composition: Literal["transition", "addition", "last"] = "transition"
    seam_tokens: int = 0
    anchored: bool = False

    @property
    def provenance(self) -> str:
        """Under what name this arm publishes and looks for prefixes that it composed."""
        return f"composed/{self.composition}/{self.seam_tokens}/{'anchored' if self.anchored else 'free'}"


_TABLE = (
    Arm("full", "recompute everything: the reference"),
    Arm("prefix", "exact prefix reuse alone", reuse_prefix=True),
    Arm("addition", "states added, no transition, no seam", True, True, composition="addition"),
    Arm("last_state", "the last segment's state alone, no seam", True, True, composition="last"),
    Arm("transition", "composed by transition operators, no seam", True, True),
    Arm("hypic", "composed, with a recomputed seam", True, True, seam_tokens=DEFAULT_SEAM_TOKENS),
    Arm(
        "anchored",
        "as hypic, segments built behind the leading section",
        True,
        True,
        seam_tokens=DEFAULT_SEAM_TOKENS,
        anchored=True,
    ),
)

ARMS: dict[str, Arm] = {arm.name: arm for arm in _TABLE}


def arm_named(name: str) -> Arm:
    """The arm of that name. Raises InvalidRequestError with the names there are."""
    if name not in ARMS:
        raise InvalidRequestError(f"there is no arm {name!r}; choose one of {', '.join(ARMS)}")
    return ARMS[name]
