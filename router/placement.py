"""Which worker prefills which cold segment. Pure functions of predicted seconds: no clock, no Ray, no randomness."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Policy = Literal["lpt", "round_robin", "local"]


@dataclass(frozen=True)
class Placement:
    """Segments by worker. assignments: for each worker the indices of its segments, in the order to run them.

    finish_seconds: predicted, for each worker, from now, what it had queued before included. here: indices of segments
    that stay on the combine worker."""

    assignments: tuple[tuple[int, ...], ...]
    finish_seconds: tuple[float, ...]
    here: tuple[int, ...] = ()

    @property
    def makespan_seconds(self) -> float:
        """When the last worker that was given something is done."""
        busy = [finish for own, finish in zip(self.assignments, self.finish_seconds, strict=True) if own]
        return max(busy, default=0.0)


def place(policy: Policy, seconds: Sequence[float], queued_seconds: Sequence[float]) -> Placement:
    """Place segments of those predicted seconds on workers that have so much queued; without workers, all stay here."""
    if policy == "local" or not queued_seconds:
        return local(seconds, queued_seconds)
    return lpt(seconds, queued_seconds) if policy == "lpt" else round_robin(seconds, queued_seconds)


def lpt(seconds: Sequence[float], queued_seconds: Sequence[float]) -> Placement:
    """Longest predicted time first, each to the worker that would finish earliest (Graham 1969).

    From empty queues the makespan is at most 4/3 - 1/(3m) of the optimum on m workers. Ties go to the segment and the
    worker that come first, so equal input gives equal placement.
    """
    free = [(queued, worker) for worker, queued in enumerate(queued_seconds)]
    heapq.heapify(free)
    assignments: list[list[int]] = [[] for _ in queued_seconds]
    for index in sorted(range(len(seconds)), key=lambda index: (-seconds[index], index)):
        queued, worker = heapq.heappop(free)
        assignments[worker].append(index)
        heapq.heappush(free, (queued + seconds[index], worker))
    return _placement(assignments, seconds, queued_seconds)


def round_robin(seconds: Sequence[float], queued_seconds: Sequence[float]) -> Placement:
    """In turn, whatever it costs: for comparison."""
    assignments: list[list[int]] = [[] for _ in queued_seconds]
    for index in range(len(seconds)):
        assignments[index % len(assignments)].append(index)
    return _placement(assignments, seconds, queued_seconds)


def local(seconds: Sequence[float], queued_seconds: Sequence[float]) -> Placement:
    """Everything stays on the combine worker."""
    empty: tuple[tuple[int, ...], ...] = ((),) * len(queued_seconds)
    return Placement(empty, tuple(queued_seconds), tuple(range(len(seconds))))


def _placement(assignments: list[list[int]], seconds: Sequence[float], queued_seconds: Sequence[float]) -> Placement:
    finish = [
        queued + sum(seconds[index] for index in own) for own, queued in zip(assignments, queued_seconds, strict=True)
    ]
    return Placement(tuple(tuple(own) for own in assignments), tuple(finish))
