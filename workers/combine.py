"""The worker that owns a cache: it plans requests, takes built segments in, combines and decodes.

Its asyncio methods only pass messages; the engine works in a thread of its own (`EngineLoop`). Whatever happens to a
promised segment (builder dead, result damaged, router gone), this worker builds it itself within a bounded wait.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from hypic.cache.entry import SegmentEntry
from hypic.config import EngineConfig
from hypic.engine.composer import BuildTask
from hypic.engine.drift import DriftReport
from hypic.engine.engine import Engine
from hypic.engine.inventory import Deletion, StoredSegment
from hypic.errors import InvalidRequestError
from hypic.plan import Plan
from hypic.protocol import ProtocolError, decode_entry
from hypic.request import GenerationRequest, TokenOutput
from hypic.segment import TokenIds
from hypic.workers.engine_loop import EngineLoop, ResultT, store_stats
from hypic.workers.ports import (
    BuiltSegment,
    Changes,
    Delivery,
    FallbackCause,
    Holdings,
    Opened,
    SegmentGoneError,
    Tokens,
    WorkerInfo,
    WorkerStats,
)
from hypic.workers.sharing import FOLLOW_SECONDS, Callers, Sharing

ANNOUNCE_SECONDS = 5.0
"""How long a cold segment may stay nobody's task before it is built here."""

_log = logging.getLogger(__name__)

_Message = TokenOutput | Exception | None


class CombineWorker:
    """One engine with its caches. Plain class with async methods: Ray makes an asyncio actor of it as it is."""

    def __init__(self, name: str, config: EngineConfig) -> None:
        self.name = name
        self._device = config.device
        self._began = time.perf_counter()
        self._loading_seconds = 0.0
        self._engine = EngineLoop(config)
        self._expected: dict[bytes, TokenIds] = {}
        self._announced: set[bytes] = set()
        self._streams: dict[str, asyncio.Queue[_Message]] = {}
        self._requests, self._delivered, self._fallbacks = 0, 0, 0
        self._sharing, self._callers = Sharing(name, self._engine), Callers()
        self._watch: asyncio.Task[None] | None = None

    async def hello(self) -> WorkerInfo:
        """Answers once the model is loaded, however busy the engine is; raises what kept it from loading, or
        UnavailableError if the engine has stopped."""
        engine = await asyncio.shield(asyncio.wrap_future(self._engine.started))
        self._engine.check_running()
        self._loading_seconds = self._loading_seconds or time.perf_counter() - self._began
        return WorkerInfo(
            name=self.name,
            role="combine",
            pid=os.getpid(),
            namespace=engine.namespace,
            max_tokens=engine.max_tokens,
            loading_seconds=self._loading_seconds,
        )

    async def generate(self, request: GenerationRequest, caller: str = "") -> AsyncGenerator[Opened | Tokens, None]:
        """See `CombinePort.generate`. Closing the stream aborts the request. caller: a router in another process; once
        it is no longer heard, its requests are aborted."""
        loop, began = asyncio.get_running_loop(), time.perf_counter()
        inbox: asyncio.Queue[_Message] = asyncio.Queue()

        def hand_on(message: TokenOutput | Exception) -> None:
            loop.call_soon_threadsafe(inbox.put_nowait, message)

        if request.request_id in self._streams:
            raise InvalidRequestError(f"request id {request.request_id!r} is in use")
        self._streams[request.request_id] = inbox  # before it is open, so that an abort that overtakes it is heard
        self._callers.opened(request.request_id, caller)
        if caller and self._watch is None:
            self._watch = asyncio.ensure_future(self._watch_callers())
        try:
            tasks = await asyncio.wrap_future(self._engine.open(request, hand_on))
            self._requests += 1
            self._expect(tasks)
            yield Opened(tasks, time.perf_counter() - began)
            first, finished = True, False
            while not finished:
                message = await inbox.get()
                if isinstance(message, Exception):
                    raise message
                if message is None:  # aborted
                    return
                if message.finish_reason == "error":
                    raise message.fault
                finished = message.ends_request
                yield _tokens(message, first)
                first = False
        finally:
            del self._streams[request.request_id]
            self._callers.closed(request.request_id)
            self._engine.abort(request.request_id)

    async def deliver(self, key: bytes, result: Sequence[Awaitable[BuiltSegment]], patience_seconds: float) -> Delivery:
        """See `CombinePort.deliver`."""
        self._announced.add(key)
        try:
            built = await asyncio.wait_for(_awaited(result[0]), patience_seconds)
            entry = await asyncio.to_thread(decode_entry, built.payload, self._device)
            self._check(key, entry)
            await asyncio.wrap_future(self._engine.call(lambda engine: engine.deliver(entry)))
        except Exception as error:  # whatever kept it from coming, the answer does not depend on it
            return await self._fall_back(key, error)
        finally:
            self._announced.discard(key)
            self._expected.pop(key, None)
        self._delivered += 1
        transfer = max(0.0, time.time() - built.finished_at)
        return Delivery(key, built.worker, built.build_seconds, transfer, built.payload.nbytes)

    async def fetch(self, key: bytes) -> BuiltSegment:
        """See `CombinePort.fetch`."""
        return await self._sharing.fetch(key)

    async def changes(self, epoch: int, sequence: int, caller: str = "") -> Changes:
        """See `CombinePort.changes`. caller: as in `generate`."""
        self._callers.heard(caller)
        return await self._sharing.changes(epoch, sequence)

    async def holdings(self) -> Holdings:
        """See `CombinePort.holdings`."""
        return await self._sharing.holdings()

    async def build_here(self, keys: Sequence[bytes]) -> None:
        """See `CombinePort.build_here`."""
        for key in keys:
            self._expected.pop(key, None)
        await asyncio.wrap_future(self._engine.call(lambda engine: engine.build_here(keys)))

    def abort(self, request_id: str) -> None:
        """See `CombinePort.abort`. To be called in the loop that runs this worker."""
        if request_id in self._streams:
            self._streams[request_id].put_nowait(None)

    async def plan(self, request: GenerationRequest) -> Plan:
        """What would be done for a request now."""
        return await asyncio.wrap_future(self._engine.call(lambda engine: engine.plan(request)))

    async def segments(self, salt: str, after: bytes, limit: int) -> list[StoredSegment]:
        """See `CombinePort.segments`."""
        return await self._ask(lambda engine: engine.inventory.page(salt, after, limit))

    async def delete(self, salt: str, key: bytes) -> Deletion:
        """See `CombinePort.delete`."""
        return await self._ask(lambda engine: engine.inventory.delete(salt, key))

    async def drift(self) -> DriftReport:
        """See `CombinePort.drift`."""
        return await self._ask(lambda engine: engine.probe_drift())

    async def flush(self) -> int:
        """See `CombinePort.flush`."""
        return await self._ask(lambda engine: engine.flush())

    async def open_session(self, session_id: str, salt: str) -> None:
        """See `CombinePort.open_session`."""
        await self._ask(lambda engine: engine.open_session(session_id, salt))

    async def close_session(self, session_id: str, salt: str) -> bool:
        """See `CombinePort.close_session`."""
        return await self._ask(lambda engine: engine.close_session(session_id, salt))

    async def stats(self) -> WorkerStats:
        segments, prefixes, cache = await asyncio.wrap_future(self._engine.call(store_stats))
        return WorkerStats(
            name=self.name,
            role="combine",
            delivered=self._delivered,
            fallbacks=self._fallbacks,
            requests=self._requests,
            open_requests=len(self._streams),
            leases=segments["leases"] + prefixes["leases"],
            segments=segments,
            prefixes=prefixes,
            cache=cache,
            last_error=self._engine.last_error,
        )

    def stop(self) -> None:
        """End the engine's thread."""
        self._engine.stop()

    async def _ask(self, work: Callable[[Engine], ResultT]) -> ResultT:
        return await asyncio.wrap_future(self._engine.call(work))

    async def _watch_callers(self) -> None:
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            for request_id in self._callers.orphans():
                _log.warning("%s: the router of request %s is gone; the request is dropped", self.name, request_id)
                self.abort(request_id)

    def _expect(self, tasks: tuple[BuildTask, ...]) -> None:
        """Remember what was promised to a router, and do it here if it says nothing in time."""
        self._expected.update({task.key: task.token_ids for task in tasks})
        if tasks:
            keys = [task.key for task in tasks]
            asyncio.get_running_loop().call_later(ANNOUNCE_SECONDS, self._build_unannounced, keys)

    def _build_unannounced(self, keys: list[bytes]) -> None:
        left = [key for key in keys if key in self._expected and key not in self._announced]
        for key in left:
            del self._expected[key]
        if left:
            _log.warning("%s: %d cold segments were announced by nobody and are built here", self.name, len(left))
            self._engine.call(lambda engine: engine.build_here(left))

    async def _fall_back(self, key: bytes, error: Exception) -> Delivery:
        self._fallbacks += 1
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        _log.warning("%s: segment %s is built here: %s", self.name, key.hex()[:12], reason)
        await self.build_here([key])
        return Delivery(key, fallback=reason, cause=_cause(error), lost=_lost(error))

    def _check(self, key: bytes, entry: SegmentEntry) -> None:
        expected = self._expected.get(key)
        if entry.key != key or (expected is not None and not entry.matches(expected)):
            raise ProtocolError(f"the entry that arrived for {key.hex()[:12]} is one of another segment")


def _tokens(output: TokenOutput, first: bool) -> Tokens:
    plan = output.plan if first else None
    return Tokens(
        output.token_id,
        output.text,
        output.usage,
        output.finish_reason,
        plan,
        output.combine_seconds if first else 0.0,
        output.choice,
        output.logprobs,
        output.matched,
        output.ends_request,
    )


async def _awaited(result: Awaitable[BuiltSegment]) -> BuiltSegment:
    return await result


def _cause(error: Exception) -> FallbackCause:
    if isinstance(error, ProtocolError):
        return "damaged"
    if isinstance(error, TimeoutError):
        return "late"
    if isinstance(error, SegmentGoneError):
        return "gone"
    return "lost" if _lost(error) else "failed"


def _lost(error: Exception) -> bool:
    """Whether the sender is to be asked again only after it has answered: dead, unreachable or hopelessly late."""
    from ray.exceptions import RayActorError, RaySystemError

    return isinstance(error, RayActorError | RaySystemError | TimeoutError)
