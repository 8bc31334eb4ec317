"""What a combine worker does for others than its own requests: it tells routers what its cache holds, sends segments to
other combine workers, and notices when a router is gone."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from hypic.cache.entry import SegmentEntry
from hypic.cache.store import Lease
from hypic.engine.engine import Engine
from hypic.protocol import encode_entry
from hypic.workers.engine_loop import EngineLoop
from hypic.workers.ports import BuiltSegment, Changes, Holdings, SegmentGoneError

ResultT = TypeVar("ResultT")

FOLLOW_SECONDS = 1.0
"""How long a question for changes waits for some."""

CALLER_SECONDS = 8.0
"""A router that has asked nothing for so long is gone: it asks every `FOLLOW_SECONDS`."""


class Sharing:
    """The cache of one engine, as others see it. For the event loop of its worker."""

    def __init__(self, name: str, engine: EngineLoop) -> None:
        self._name, self._engine = name, engine
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    async def changes(self, epoch: int, sequence: int) -> Changes:
        """See `CombinePort.changes`."""
        log = (await asyncio.shield(asyncio.wrap_future(self._engine.started))).segments.changes
        log.listener = self._wake
        changed = asyncio.Event()
        self._waiting[changed] = asyncio.get_running_loop()  # before the look at the log, so that nothing is missed
        try:
            if epoch == log.epoch and sequence == log.sequence:
                async with asyncio.timeout(FOLLOW_SECONDS):
                    await changed.wait()
        except TimeoutError:
            return Changes(log.epoch, sequence)
        finally:
            del self._waiting[changed]
        after, changes = log.since(sequence if epoch == log.epoch else log.sequence)
        return Changes(log.epoch, after, changes)

    async def holdings(self) -> Holdings:
        """See `CombinePort.holdings`."""

        def held(engine: Engine) -> Holdings:
            return Holdings(engine.segments.changes.epoch, *engine.segments.held())

        return await self._ask(held)

    async def fetch(self, key: bytes) -> BuiltSegment:
        """See `CombinePort.fetch`. The segment is leased while it is encoded; nothing is built for it."""
        lease: Lease[SegmentEntry] | None = await self._ask(lambda engine: engine.segments.lease(key))
        if lease is None:
            raise SegmentGoneError(f"segment {key.hex()[:12]} is not on {self._name} any more")
        try:
            payload = await asyncio.to_thread(encode_entry, lease.entry)
        finally:
            self._engine.call(lambda engine: lease.release())
        return BuiltSegment(self._name, payload, 0.0, time.time())

    def _wake(self) -> None:
        """In the engine's thread: tell whoever waits for a change."""
        for changed, loop in list(self._waiting.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(changed.set)

    async def _ask(self, work: Callable[[Engine], ResultT]) -> ResultT:
        return await asyncio.wrap_future(self._engine.call(work))


class Callers:
    """Routers that have requests open here, and when each was last heard."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard_seconds: dict[str, float] = {}
        self._requests: dict[str, str] = {}

    def heard(self, caller: str) -> None:
        """A router has asked for something."""
        self._heard_seconds[caller] = self._clock()

    def opened(self, request_id: str, caller: str) -> None:
        """A router has given a request; "" stands for a caller in this process, which need not be watched."""
        if caller:
            self._requests[request_id] = caller
            self.heard(caller)

    def closed(self, request_id: str) -> None:
        """A request is over."""
        self._requests.pop(request_id, None)

    def orphans(self) -> list[str]:
        """Requests of routers that have been silent for too long."""
        now = self._clock()
        silent = {caller for caller, heard in self._heard_seconds.items() if now - heard > CALLER_SECONDS}
        for caller in silent:
            del self._heard_seconds[caller]
        return [request_id for request_id, caller in self._requests.items() if caller not in self._heard_seconds]
