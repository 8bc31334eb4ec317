"""What became of one request on its way through the cluster: who did what, and how long each part took."""

from dataclasses import asdict, dataclass, field
from typing import Any

from hypic.plan import Plan
from hypic.workers.ports import FallbackCause


@dataclass(frozen=True)
class BuildRecord:
    """One cold segment. worker: who prefilled it. predicted_seconds: by the cost model. waited_seconds: from its
    dispatch until it was usable. fallback: why its worker did not bring it, "" if it did; cause: the same in one word.
    A segment that stayed on the combine worker from the first has no times. pulled: it was not prefilled, `worker` is
    another combine worker that had it."""

    key: str
    tokens: int
    worker: str
    predicted_seconds: float
    build_seconds: float
    transfer_seconds: float
    payload_bytes: int
    waited_seconds: float
    fallback: str = ""
    cause: FallbackCause = ""
    pulled: bool = False


@dataclass
class RequestRecord:
    """Filled in while the request runs; times are 0 for what has not happened.

    began_at: Unix time of the dispatcher's first move.
    reserve_seconds: until the combine worker had planned it. dispatch_seconds: from there until the combine pass could
    start (makespan of the cold segments, transfers included). transfer_seconds: of all segments together.
    combine_seconds: the pass over the active tokens, from its first chunk to the first token. ttft_seconds: from the
    dispatcher's first move to the first token. total_seconds: to the last one. attempts: combine workers tried.
    """

    request_id: str = ""
    combine_worker: str = ""
    attempts: int = 0
    began_at: float = 0.0
    reserve_seconds: float = 0.0
    dispatch_seconds: float = 0.0
    transfer_seconds: float = 0.0
    combine_seconds: float = 0.0
    ttft_seconds: float = 0.0
    total_seconds: float = 0.0
    builds: list[BuildRecord] = field(default_factory=list)
    plan: Plan | None = None

    @property
    def segments_by_worker(self) -> dict[str, int]:
        """How many cold segments each worker prefilled."""
        counts: dict[str, int] = {}
        for build in [build for build in self.builds if not build.pulled]:
            counts[build.worker] = counts.get(build.worker, 0) + 1
        return counts

    def timings(self) -> dict[str, Any]:
        """For JSON: everything but the plan."""
        record = {name: value for name, value in vars(self).items() if name not in ("plan", "builds")}
        builds = [asdict(build) for build in self.builds]
        return {**record, "segments_by_worker": self.segments_by_worker, "builds": builds}
