"""Search for the highest rate that holds: up until one fails (or down until one holds), then between the two."""

import math
from dataclasses import dataclass, field

GROWTH_FACTOR = 1.5


@dataclass
class RateSearch:
    """One arm's ladder. start: the first rate to try, in requests a second."""

    start: float
    held: list[float] = field(default_factory=list)
    failed: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.start > 0, self.start

    @property
    def sustained(self) -> float:
        """The highest rate below every one that failed that held; 0 where none did."""
        return max((rate for rate in self.held if rate < self.lowest_failed), default=0.0)

    @property
    def lowest_failed(self) -> float:
        """Infinite while none failed."""
        return min(self.failed, default=math.inf)

    def next_rate(self) -> float:
        """What to try next; each step between a held and a failed rate halves their logarithmic distance."""
        if not self.held and not self.failed:
            return self.start
        if not self.failed:
            return self.sustained * GROWTH_FACTOR
        if not self.sustained:
            return self.lowest_failed / GROWTH_FACTOR
        return math.sqrt(self.sustained * self.lowest_failed)

    def record(self, rate: float, held: bool) -> None:
        (self.held if held else self.failed).append(rate)
