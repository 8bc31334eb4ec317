"""In which order cached things go: a lazy heap whose cost does not depend on how much is cached, and two policies.

What may go at all (leases, what others build on) and what going means are left to hypic.cache.memory.
"""

import heapq
from typing import Generic, Protocol, TypeVar

Rank = tuple[bool, float, int]
"""(whether a session refers to it, what the policy thinks of it, its last use): the smallest goes first. The last use
makes ranks differ, so that two replicas that see the same requests choose the same victims."""


class Ranked(Protocol):
    """What a policy looks at. last_use_ticks: of the memory's clock. seconds: to recompute it. uses: since it came."""

    nbytes: int
    last_use_ticks: int
    seconds: float
    uses: int


RankedT = TypeVar("RankedT", bound=Ranked)


class Policy(Protocol):
    """How much something is worth. Called when it comes, when it is used, and when it has to go."""

    def worth(self, item: Ranked) -> float: ...

    def gone(self, worth: float) -> None: ...


class LeastRecentlyUsed:
    """The one whose last use is longest ago goes first."""

    def worth(self, item: Ranked) -> float:
        return float(item.last_use_ticks)

    def gone(self, worth: float) -> None:
        """Nothing to learn."""


class CostAware:
    """Greedy-dual-size-frequency (Cherkasova, HPL-98-69): recompute seconds that a byte has saved so far, plus the
    worth of the last victim at the time of the last use, so that what is no longer used goes whatever its cost."""

    def __init__(self) -> None:
        self.inflation = 0.0

    def worth(self, item: Ranked) -> float:
        return self.inflation + item.uses * item.seconds / max(1, item.nbytes)

    def gone(self, worth: float) -> None:
        self.inflation = max(self.inflation, worth)


def prefill_seconds(start: int, end: int) -> float:
    """About what computing those tokens again takes, up to a factor that is the same for all: linear in their number,
    and in how far each looks back. Only for weighing one cached thing against another."""
    return 1e-4 * (end - start) + 1e-9 * (end * end - start * start)


class EvictionQueue(Generic[RankedT]):
    """Candidates by rank. Every operation is O(log n) amortised: a change leaves its old place in the heap as it is,
    to be skipped when it comes up, and the heap is rebuilt once more than half of it is such."""

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, int, RankedT]] = []
        self._current: dict[RankedT, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._current)

    def __contains__(self, item: RankedT) -> bool:
        return item in self._current

    def push(self, item: RankedT, rank: Rank) -> None:
        """Make it a candidate, or give it a new rank. Of equal ranks the one pushed first goes first."""
        self._count += 1
        self._current[item] = self._count
        heapq.heappush(self._heap, (rank, self._count, item))
        if len(self._heap) > 2 * len(self._current) + 64:
            self._heap = [place for place in self._heap if self._current.get(place[2]) == place[1]]
            heapq.heapify(self._heap)

    def remove(self, item: RankedT) -> None:
        """It is no candidate any more; nothing happens if it is none."""
        self._current.pop(item, None)

    def head(self) -> tuple[Rank, RankedT] | None:
        """The candidate that would go next, with its rank, or None."""
        while self._heap:
            rank, count, item = self._heap[0]
            if self._current.get(item) == count:
                return rank, item
            heapq.heappop(self._heap)
        return None
