"""Which worker prefills which cold segment. Pure functions of predicted seconds: no clock, no Ray, no randomness."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Policy = Literal["auto", "lpt", "round_robin", "local"]
"""lpt: always on the workers, longest first. auto: so where that is predicted to be done sooner than on the combine
worker alone. round_robin, local: for comparison."""


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


def place(
    policy: Policy,
    seconds: Sequence[float],
    queued_seconds: Sequence[float],
    transfer_seconds: Sequence[float] = (),
    here_seconds: float = 0.0,
) -> Placement:
    """Place segments of those predicted seconds on workers that have so much queued; without workers, all stay here.

    transfer_seconds: of each segment once it is built, while its worker goes on; () for none. here_seconds: queued on
    the combine worker, which builds one after another too and has nothing to transfer.
    """
    if policy == "local" or not queued_seconds:
        return local(seconds, queued_seconds)
    if policy == "round_robin":
        return round_robin(seconds, queued_seconds)
    scattered = lpt(seconds, queued_seconds)
    if policy == "lpt":
        return scattered
    sooner = arrival_seconds(scattered, seconds, queued_seconds, transfer_seconds) < here_seconds + sum(seconds)
    return scattered if sooner else local(seconds, queued_seconds)


def arrival_seconds(
    placement: Placement, seconds: Sequence[float], queued_seconds: Sequence[float], transfer_seconds: Sequence[float]
) -> float:
    """When the last segment that was given to a worker has arrived: each travels while the next is built."""
    last = 0.0
    for own, built in zip(placement.assignments, queued_seconds, strict=True):
        for index in own:
            built += seconds[index]
            last = max(last, built + (transfer_seconds[index] if transfer_seconds else 0.0))
    return last


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
