"""The way of a request through the cluster: reserve at a combine worker, place and build what is cold, stream tokens.

Nothing here knows Ray or HTTP. What another combine worker has is sent from there where that is quicker than a build.
Cold segments are handed to the combine worker as soon as their builds are queued; it takes them in as they arrive. A
worker that fails is not asked again until it has answered, and what it was to bring is built on the combine worker, so
the answer is the same.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from hypic.engine.composer import BuildTask
from hypic.errors import HypicError, UnavailableError
from hypic.plan import Plan
from hypic.request import GenerationRequest, TokenOutput
from hypic.router.fleet import RETRY_SECONDS, CombineState, Fleet, Health, ScatterState
from hypic.router.placement import Policy, place
from hypic.router.record import BuildRecord, RequestRecord
from hypic.router.transfer import TransferEstimate
from hypic.workers.ports import (
    BuiltSegment,
    CombinePort,
    Delivery,
    Opened,
    Role,
    ScatterPort,
    Tokens,
    WorkerInfo,
    WorkerLostError,
    WorkerStats,
)

LEAST_PATIENCE_SECONDS = 5.0
"""How long a build may take at least before the combine worker does it itself."""

PATIENCE_FACTOR = 4.0
"""How many times its predicted time a build may take."""

PULL_PATIENCE_SECONDS = 5.0
"""How long a peer may take at least to send what it has; it is done between two steps of its engine."""


@dataclass
class _Coming:
    """A segment that is queued, being built, or sent by a peer, for whoever wants it. seconds: predicted."""

    result: Awaitable[BuiltSegment]
    worker: ScatterState | CombineState
    seconds: float
    users: int = 0

    @property
    def pulled(self) -> bool:
        """Whether a peer has it, so that nobody builds it."""
        return isinstance(self.worker, CombineState)

    @property
    def patience_seconds(self) -> float:
        """How long to wait for it."""
        if isinstance(self.worker, CombineState):
            return max(PULL_PATIENCE_SECONDS, PATIENCE_FACTOR * self.seconds)
        return max(LEAST_PATIENCE_SECONDS, PATIENCE_FACTOR * self.worker.queued_seconds)


class Dispatcher:
    """Runs requests on scatter and combine workers. For one event loop."""

    def __init__(self, scatter: Sequence[ScatterPort], combine: Sequence[CombinePort], policy: Policy = "lpt") -> None:
        self.policy = policy
        self.fleet = Fleet(scatter, combine)
        self.transfers = TransferEstimate()
        self._coming: dict[bytes, _Coming] = {}

    async def connect(self) -> WorkerInfo:
        """See `Fleet.connect`."""
        return await self.fleet.connect()

    async def generate(
        self, request: GenerationRequest, record: RequestRecord | None = None
    ) -> AsyncGenerator[TokenOutput, None]:
        """Outputs of a request up to the one that ends it. record: filled in along the way.

        Closing the iterator stops the work. Raises InvalidRequestError or PromptTooLongError before anything is done,
        UnavailableError where no combine worker is left. Before the first token a lost combine worker is replaced by
        another; after it, WorkerLostError is raised, and what was said so far stands.
        """
        record = record if record is not None else RequestRecord()
        began, record.began_at = time.perf_counter(), time.time()
        while True:
            worker = self.fleet.choose(request)
            record.request_id, record.combine_worker = request.request_id, worker.port.name
            record.attempts += 1
            try:
                async with aclosing(self._attempt(worker, request, record, began)) as outputs:
                    async for output in outputs:
                        yield output
                return
            except WorkerLostError:
                self.fleet.lose(worker)
                if record.ttft_seconds:
                    raise
                record.builds.clear()

    @property
    def alive(self) -> dict[str, tuple[Role, bool]]:
        """See `Fleet.alive`."""
        return self.fleet.alive

    async def plan(self, request: GenerationRequest) -> Plan:
        """What would be done for a request now, where it would run."""
        return await self.fleet.choose(request).port.plan(request)

    @property
    def combine_ports(self) -> list[CombinePort]:
        """The combine workers that are there, for what concerns all of them. Raises UnavailableError without any."""
        ports = [worker.port for worker in self.fleet.combine if worker.alive]
        if not ports:
            raise UnavailableError("no combine worker is there; it is started again, try again soon", RETRY_SECONDS)
        return ports

    async def stats(self) -> list[WorkerStats]:
        """Of every worker that answers."""
        return await self.fleet.stats()

    async def health(self) -> Health:
        """See `Fleet.health`."""
        return await self.fleet.health()

    async def close(self) -> None:
        """Stop what runs in the background."""
        await self.fleet.close()

    async def _attempt(
        self, worker: CombineState, request: GenerationRequest, record: RequestRecord, began: float
    ) -> AsyncGenerator[TokenOutput, None]:
        worker.open_requests += 1
        worker.given_requests += 1
        finished = False
        deliveries: list[asyncio.Task[None]] = []
        here_seconds = 0.0
        try:
            async with aclosing(self.fleet.heard(worker, worker.port.generate(request))) as messages:
                async for message in messages:
                    if isinstance(message, Opened):
                        record.reserve_seconds = time.perf_counter() - began
                        before = worker.here_seconds
                        deliveries = self._dispatch(worker, message.tasks, record)
                        here_seconds = worker.here_seconds - before
                        continue
                    worker.here_seconds = max(0.0, worker.here_seconds - here_seconds)
                    here_seconds = 0.0
                    finished = message.ends_request
                    output = self._output(request, message, record, began)
                    if finished and deliveries:  # all are in by now, but word of it may be on its way
                        await asyncio.wait(deliveries, timeout=1.0)
                    yield output
            if not finished:
                raise WorkerLostError(f"worker {worker.port.name} ended request {request.request_id} without a word")
            self.fleet.directory.read(request, worker.port.name)
        finally:
            worker.open_requests -= 1
            worker.here_seconds = max(0.0, worker.here_seconds - here_seconds)
            if not finished:
                worker.port.abort(request.request_id)

    def _output(self, request: GenerationRequest, message: Tokens, record: RequestRecord, began: float) -> TokenOutput:
        if message.plan is not None:
            record.plan, record.combine_seconds = message.plan, message.combine_seconds
            record.ttft_seconds = time.perf_counter() - began
            if message.plan.built_tokens:
                record.dispatch_seconds = record.ttft_seconds - record.reserve_seconds - record.combine_seconds
        if message.ends_request:
            record.total_seconds = time.perf_counter() - began
        assert record.plan is not None, "the first message of a generation brings its plan"
        return TokenOutput(
            request.request_id,
            message.token_id,
            message.text,
            message.usage,
            record.plan,
            message.finish_reason,
            choice=message.choice,
            logprobs=message.logprobs,
            matched=message.matched,
            ends_request=message.ends_request,
        )

    def _dispatch(
        self, combine: CombineState, tasks: Sequence[BuildTask], record: RequestRecord
    ) -> list[asyncio.Task[None]]:
        """Have each segment built, or sent by a peer, and the combine worker wait for it. What is being built already
        is built once."""
        new: list[BuildTask] = []
        started: list[asyncio.Task[None]] = []
        for task in tasks:
            if task.key in self._coming:
                continue
            if pull := self._pull(combine, task):
                pull.users += 1
                started.append(self.fleet.in_background(self._deliver(combine, task, pull, record)))
            else:
                new.append(task)
        workers = [worker for worker in self.fleet.scatter if worker.alive and worker.cost is not None]
        placement = place(
            self.policy,
            seconds := self._predicted(new),
            [worker.queued_seconds for worker in workers],
            [self.transfers.seconds(self.transfers.bytes_of(len(task))) for task in new],
            combine.here_seconds,
        )
        for worker, own in zip(workers, placement.assignments, strict=True):
            for index in own:
                self._build(worker, new[index])
        for task in tasks:
            if coming := self._coming.get(task.key):
                coming.users += 1
                started.append(self.fleet.in_background(self._deliver(combine, task, coming, record)))
        if placement.here:
            combine.here_seconds += sum(seconds[index] for index in placement.here)
            here = [new[index] for index in placement.here]
            started.append(self.fleet.in_background(self._build_here(combine, here, record)))
        return started

    def _pull(self, combine: CombineState, task: BuildTask) -> _Coming | None:
        """The segment from a peer that is thought to have it, unless a build is predicted to be quicker."""
        for peer, nbytes in self.fleet.holders(task.key, combine):
            seconds = self.transfers.seconds(nbytes)
            predicted = self._predicted([task])[0]
            if not predicted or seconds < predicted:
                return _Coming(peer.port.fetch(task.key), peer, seconds)
        return None

    def _build(self, worker: ScatterState, task: BuildTask) -> None:
        assert worker.cost is not None, worker.port.name
        seconds = worker.cost.seconds(len(task))
        worker.queued_seconds += seconds
        self._coming[task.key] = _Coming(worker.port.build(task), worker, seconds)

    async def _deliver(self, combine: CombineState, task: BuildTask, coming: _Coming, record: RequestRecord) -> None:
        began = time.perf_counter()
        worker = coming.worker
        try:
            delivery = await combine.port.deliver(task.key, [coming.result], coming.patience_seconds)
        except HypicError as error:  # the combine worker is gone; its requests are told by their streams
            delivery = Delivery(task.key, fallback=str(error), cause="receiver_lost")
        finally:
            coming.users -= 1
            if not coming.users and isinstance(worker, ScatterState):
                self._coming.pop(task.key, None)
                worker.queued_seconds = max(0.0, worker.queued_seconds - coming.seconds)
        if delivery.lost and isinstance(worker, ScatterState):  # a peer may be busy: it is followed, and so judged
            self.fleet.lose(worker)
        waited = time.perf_counter() - began
        self.transfers.add(len(task), delivery.payload_bytes, delivery.transfer_seconds)
        record.transfer_seconds += delivery.transfer_seconds
        record.builds.append(_build_record(task, delivery, combine.port.name, coming, waited))

    async def _build_here(self, combine: CombineState, tasks: Sequence[BuildTask], record: RequestRecord) -> None:
        record.builds += [_build_record(task, Delivery(task.key), combine.port.name, None, 0.0) for task in tasks]
        await combine.port.build_here([task.key for task in tasks])

    def _predicted(self, tasks: Sequence[BuildTask]) -> list[float]:
        """Seconds of each task. Workers of one cluster are taken to be alike: the slowest speaks for all, and 0 stands
        for not knowing."""
        costs = [worker.cost for worker in self.fleet.scatter if worker.cost is not None]
        return [max((cost.seconds(len(task)) for cost in costs), default=0.0) for task in tasks]


def _build_record(
    task: BuildTask, delivery: Delivery, combine_worker: str, coming: _Coming | None, waited_seconds: float
) -> BuildRecord:
    return BuildRecord(
        key=task.key.hex(),
        tokens=len(task),
        worker=delivery.worker or combine_worker,
        predicted_seconds=coming.seconds if coming else 0.0,
        build_seconds=delivery.build_seconds,
        transfer_seconds=delivery.transfer_seconds,
        payload_bytes=delivery.payload_bytes,
        waited_seconds=waited_seconds,
        fallback=delivery.fallback,
        cause=delivery.cause,
        pulled=bool(coming and coming.pulled and not delivery.fallback),
    )
