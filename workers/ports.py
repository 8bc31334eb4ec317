"""What workers say and can be asked: the messages between router and workers, and one Protocol for each role.

The router sees nothing else of a worker, so it runs unchanged on Ray actors and on objects in its own process.
"""

from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from hypic.cache.books import TierUse
from hypic.cache.changes import Change
from hypic.engine.composer import BuildTask
from hypic.engine.drift import DriftReport
from hypic.engine.inventory import Deletion, StoredSegment
from hypic.errors import HypicError, UnavailableError
from hypic.plan import Plan
from hypic.protocol import EntryPayload
from hypic.request import FinishReason, GenerationRequest, TokenLogprob, Usage
from hypic.segment import Namespace
from hypic.workers.cost import CostModel

Role = Literal["scatter", "combine"]

FallbackCause = Literal["", "lost", "late", "damaged", "failed", "gone", "receiver_lost"]
"""Why a segment is built on the combine worker after all: its builder is gone (lost) or took too long (late), what it
sent does not check out (damaged), its build raised (failed), the peer that held it does no longer (gone), or the
combine worker itself is gone (receiver_lost)."""


class WorkerLostError(UnavailableError):
    """The worker's process is gone, or does not answer."""

    code = "worker_lost"


class SegmentGoneError(HypicError):
    """The worker no longer has the segment: whoever thought so was late."""

    code = "segment_gone"


@dataclass(frozen=True)
class WorkerInfo:
    """A worker that is ready. namespace: must be equal in all workers of a cluster. cost: of a build, on scatter
    workers. max_tokens: longest prompt and answer together. loading_seconds: from its start to here."""

    name: str
    role: Role
    pid: int
    namespace: Namespace
    max_tokens: int
    loading_seconds: float
    cost: CostModel | None = None


@dataclass(frozen=True)
class BuiltSegment:
    """A built entry on its way. finished_at: Unix time when it was ready to be sent."""

    worker: str
    payload: EntryPayload
    build_seconds: float
    finished_at: float


@dataclass(frozen=True)
class Opened:
    """First message of a generation: it is planned, and these cold segments are nobody's task yet.

    Each of them must be delivered or built on the combine worker; one that is not announced in time is built there.
    """

    tasks: tuple[BuildTask, ...]
    reserve_seconds: float


@dataclass(frozen=True)
class Tokens:
    """What one step yields for a choice of a generation, as in `TokenOutput`. plan, combine_seconds (of the pass that
    gave the first token): in the first message of this kind alone."""

    token_id: int | None
    text: str
    usage: Usage
    finish_reason: FinishReason | None
    plan: Plan | None = None
    combine_seconds: float = 0.0
    choice: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    matched: str | int | None = None
    ends_request: bool = False


@dataclass(frozen=True)
class Delivery:
    """How a segment reached its combine worker. transfer_seconds: from ready at the sender to usable here.
    fallback: why it is built on the combine worker instead, "" if it arrived, and its cause in one word. lost: whether
    its sender is gone."""

    key: bytes
    worker: str = ""
    build_seconds: float = 0.0
    transfer_seconds: float = 0.0
    payload_bytes: int = 0
    fallback: str = ""
    cause: FallbackCause = ""
    lost: bool = False


@dataclass(frozen=True)
class Changes:
    """What the cache of a combine worker gained and lost. epoch: of the worker's process, greater in each new one.
    after: number of the change before the first of these."""

    epoch: int
    after: int
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True)
class Holdings:
    """Every segment that a combine worker holds, as of the change of that number."""

    epoch: int
    sequence: int
    held: tuple[Change, ...]


@dataclass(frozen=True)
class WorkerStats:
    """Counts of a worker since its start, and what it holds now. leases: promised entries; 0 at idle. cache: what each
    tier of its memory holds, the fastest first."""

    name: str
    role: Role
    built: int = 0
    built_seconds: float = 0.0
    delivered: int = 0
    fallbacks: int = 0
    requests: int = 0
    open_requests: int = 0
    leases: int = 0
    segments: dict[str, Any] = field(default_factory=dict)
    prefixes: dict[str, Any] = field(default_factory=dict)
    cache: tuple[TierUse, ...] = ()
    last_error: str = ""


class ScatterPort(Protocol):
    """A worker that prefills cold segments."""

    @property
    def name(self) -> str: ...

    def build(self, task: BuildTask) -> Awaitable[BuiltSegment]:
        """Queue a build and return at once; builds run in the order of the calls. The result can be awaited by the
        combine worker, wherever that runs. Raises WorkerLostError there if this worker dies."""
        ...

    async def hello(self) -> WorkerInfo:
        """Answers once the worker is ready and the builds before this call are done."""
        ...

    async def stats(self) -> WorkerStats: ...


class CombinePort(Protocol):
    """A worker that owns a cache, combines and decodes. Every method raises WorkerLostError if it is gone."""

    @property
    def name(self) -> str: ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Opened | Tokens, None]:
        """Run a request: one `Opened`, then `Tokens` up to the one that ends it. Raises InvalidRequestError or
        PromptTooLongError before the first message."""
        ...

    async def deliver(self, key: bytes, result: Sequence[Awaitable[BuiltSegment]], patience_seconds: float) -> Delivery:
        """Wait for a build elsewhere (one, in a list, so that Ray does not wait for it first) and take it in.

        Built here instead if it fails or takes longer than `patience_seconds`.
        """
        ...

    def fetch(self, key: bytes) -> Awaitable[BuiltSegment]:
        """Have a cached segment sent and return at once. The result can be awaited by another combine worker, wherever
        that runs; it raises SegmentGoneError there if the segment is not here any more."""
        ...

    async def changes(self, epoch: int, sequence: int) -> Changes:
        """Changes of the cache after one that is known, as soon as there are any; without any, none after a while.

        A caller that asks again and again also shows that it lives: what it has open is aborted once it no longer does.
        """
        ...

    async def holdings(self) -> Holdings:
        """All that the cache holds, for a caller that knows of no change, or has missed some."""
        ...

    async def build_here(self, keys: Sequence[bytes]) -> None:
        """Have pending segments built by this worker itself."""
        ...

    def abort(self, request_id: str) -> None:
        """Stop a request; its stream ends there. Returns at once. Unknown ids are ignored."""
        ...

    async def plan(self, request: GenerationRequest) -> Plan: ...

    async def segments(self, salt: str, after: bytes, limit: int) -> list[StoredSegment]:
        """A page of a tenant's cached segments, in order of their keys."""
        ...

    async def delete(self, salt: str, key: bytes) -> Deletion:
        """Drop one of a tenant's cached segments."""
        ...

    async def drift(self) -> DriftReport:
        """Compute a piece of a drift probe, unless a request is open; what came of probes since the last call."""
        ...

    async def flush(self) -> int:
        """Drop everything cached that nothing running holds; returns how many segments went."""
        ...

    async def open_session(self, session_id: str, salt: str) -> None: ...

    async def close_session(self, session_id: str, salt: str) -> bool:
        """False where it was not open."""
        ...

    async def hello(self) -> WorkerInfo: ...

    async def stats(self) -> WorkerStats: ...
