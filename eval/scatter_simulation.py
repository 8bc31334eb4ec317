"""The cold path as a discrete-event simulation: the real placement code, times measured on real workers, no clock.

It answers what more workers would bring than this machine has cores for; `bench scatter` checks it against real runs.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hypic.router.placement import Policy, place
from hypic.router.record import RequestRecord
from hypic.workers.cost import CostModel, fit_cost


@dataclass(frozen=True)
class StageCosts:
    """What each stage of a cold request costs on its own, in seconds.

    build: of a segment by its tokens, encoding included. hand_over_seconds: between two builds of a worker.
    transfer_seconds: of one segment, from ready at its worker to usable; the combine worker takes in one at a time.
    reserve_seconds, combine_seconds, rest_seconds: of the request, before, after and beside the dispatch.
    """

    build: CostModel
    hand_over_seconds: float
    transfer_seconds: float
    reserve_seconds: float
    combine_seconds: float
    rest_seconds: float = 0.0


@dataclass(frozen=True)
class Simulated:
    """A simulated cold request, in seconds. transfer_seconds: of all segments together, waiting for their turn
    included."""

    dispatch_seconds: float
    transfer_seconds: float
    ttft_seconds: float
    lower_bound_seconds: float


def fit_stages(records: Sequence[RequestRecord]) -> StageCosts:
    """Costs from cold requests that ran on one scatter worker, all segments built there.

    Raises ValueError without a record of a request that had something built elsewhere.
    """
    builds = [build for record in records for build in record.builds if not build.fallback]
    if not builds:
        raise ValueError("stage costs need cold requests whose segments a scatter worker built; found none")
    gaps = [
        (record.dispatch_seconds - sum(build.build_seconds for build in record.builds)) / len(record.builds)
        for record in records
    ]
    rest = [
        record.ttft_seconds - record.reserve_seconds - record.dispatch_seconds - record.combine_seconds
        for record in records
    ]
    return StageCosts(
        build=fit_cost([build.tokens for build in builds], [build.build_seconds for build in builds]),
        hand_over_seconds=max(0.0, float(np.median(gaps))),
        transfer_seconds=float(np.median([build.transfer_seconds for build in builds])),
        reserve_seconds=float(np.median([record.reserve_seconds for record in records])),
        combine_seconds=float(np.median([record.combine_seconds for record in records])),
        rest_seconds=max(0.0, float(np.median(rest))),
    )


def lower_bound_seconds(seconds: Sequence[float], workers: int) -> float:
    """No placement of these builds on so many equal workers can end earlier."""
    return max(sum(seconds) / workers, max(seconds, default=0.0))


def simulate(tokens: Sequence[int], workers: int, policy: Policy, costs: StageCosts) -> Simulated:
    """One cold request with segments of so many tokens, on idle workers.

    Each worker builds its own one after another, and what it has built travels while it builds the next; the combine
    worker takes segments in as they arrive, and starts its pass after the last.
    """
    seconds = [costs.build.seconds(count) for count in tokens]
    placement = place(policy, seconds, [0.0] * workers)
    left = [list(own)[::-1] for own in placement.assignments]
    events: list[tuple[float, int]] = []  # when a worker has built its next segment, and which worker

    def begin(worker: int, now: float) -> None:
        if left[worker]:
            built = now + seconds[left[worker].pop()] + costs.hand_over_seconds
            heapq.heappush(events, (built, worker))

    for worker in range(workers):
        begin(worker, 0.0)
    taken_in, travelled = sum(seconds[index] for index in placement.here), 0.0
    while events:
        built, worker = heapq.heappop(events)
        begin(worker, built)
        taken_in = max(built, taken_in) + costs.transfer_seconds
        travelled += taken_in - built
    return Simulated(
        dispatch_seconds=taken_in,
        transfer_seconds=travelled,
        ttft_seconds=costs.reserve_seconds + taken_in + costs.combine_seconds + costs.rest_seconds,
        lower_bound_seconds=lower_bound_seconds(seconds, workers),
    )
