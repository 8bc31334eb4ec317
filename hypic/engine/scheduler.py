"""Which waiting request runs next: the one with more of its prompt cached, weighed against how long it has waited.

A cached share is worth more while it lasts (what is cached may be evicted before a late request uses it) and frees the
engine sooner. The weight is a patience: a request is overtaken only by those that came at most that much later, however
much of theirs is cached, so none starves. Policies are pure: what they see is all they know.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Candidate:
    """A request that could run now. arrived_seconds: by any clock, the same for all."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    arrived_seconds: float

    @property
    def cached_share(self) -> float:
        """0 to 1."""
        return min(1.0, self.cached_tokens / self.prompt_tokens) if self.prompt_tokens else 1.0


class SchedulingPolicy(Protocol):
    """Chooses among candidates in order of arrival; None only where there are none."""

    def choose(self, candidates: Sequence[Candidate]) -> Candidate | None: ...


class FirstComeFirstServed:
    """In order of arrival."""

    def choose(self, candidates: Sequence[Candidate]) -> Candidate | None:
        return min(candidates, key=lambda candidate: candidate.arrived_seconds, default=None)


@dataclass(frozen=True)
class CachedShareFirst:
    """The greatest cached share plus waiting time in units of `patience_seconds`; of equals the one that came first.

    Whoever comes more than patience_seconds after a request has a lower score at every time: that is the bound on how
    many can overtake it, and it does not depend on load.
    """

    patience_seconds: float = 1.0

    def __post_init__(self) -> None:
        if self.patience_seconds <= 0:
            raise ValueError(f"patience_seconds must be above 0, found {self.patience_seconds}")

    def choose(self, candidates: Sequence[Candidate]) -> Candidate | None:
        return max(candidates, key=self._score, default=None)

    def _score(self, candidate: Candidate) -> tuple[float, float]:
        """Waiting times differ by as much as arrivals do, so the time of asking does not matter."""
        score = candidate.cached_share - candidate.arrived_seconds / self.patience_seconds
        return score, -candidate.arrived_seconds
