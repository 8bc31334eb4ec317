"""The way of a request through the cluster: reserve at a combine worker, place and build what is cold, stream tokens.

Nothing here knows Ray or HTTP. Cold segments are handed to the combine worker as soon as their builds are queued; it
takes them in as they arrive. A worker that fails is not asked again until it has answered, and what it was to bring is
built on the combine worker, so the answer is the same.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from hypic.engine.composer import BuildTask
from hypic.errors import HypicError, UnavailableError
from hypic.plan import Plan
from hypic.request import GenerationRequest, TokenOutput
from hypic.router.directory import Directory
from hypic.router.placement import Policy, place
from hypic.router.record import BuildRecord, RequestRecord
from hypic.workers.cost import CostModel
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

AnswerT = TypeVar("AnswerT")

LEAST_PATIENCE_SECONDS = 10.0
"""How long a build may take at least before the combine worker does it itself."""

PATIENCE_FACTOR = 4.0
"""How many times its predicted time a build may take."""

ANSWER_SECONDS = 5.0
"""How long a worker may take to answer a question that needs no work."""


@dataclass
class _Scatter:
    """What the router knows of a scatter worker. queued_seconds: predicted, of builds that are not delivered yet."""

    port: ScatterPort
    cost: CostModel | None = None
    alive: bool = True
    queued_seconds: float = 0.0


@dataclass
class _Combine:
    port: CombinePort
    alive: bool = True
    open_requests: int = 0
    given_requests: int = 0


@dataclass
class _Building:
    """A build that is queued or running somewhere, for whoever else wants the segment."""

    result: Awaitable[BuiltSegment]
    worker: _Scatter
    seconds: float
    users: int = 0


@dataclass(frozen=True)
class Health:
    """Which workers answer. serving: whether requests can be taken at all."""

    serving: bool
    workers: dict[str, str]


class Dispatcher:
    """Runs requests on scatter and combine workers. For one event loop."""

    def __init__(self, scatter: Sequence[ScatterPort], combine: Sequence[CombinePort], policy: Policy = "lpt") -> None:
        self.policy = policy
        self.directory = Directory()
        self._scatter = [_Scatter(port) for port in scatter]
        self._combine = [_Combine(port) for port in combine]
        self._building: dict[bytes, _Building] = {}
        self._background: set[asyncio.Task[Any]] = set()

    async def connect(self) -> WorkerInfo:
        """Wait for the workers; what a combine worker says of itself. Raises if no combine worker is there.

        A combine worker that is missing, or a scatter worker that is not ready soon after, joins when it answers.
        """
        answers = await asyncio.gather(*(worker.port.hello() for worker in self._combine), return_exceptions=True)
        for worker, answer in zip(self._combine, answers, strict=True):
            if isinstance(answer, BaseException):
                self._lose(worker)
        for scatter in self._scatter:
            self._lose(scatter)
        if self._background:
            await asyncio.wait(self._background, timeout=ANSWER_SECONDS)
        infos = [answer for answer in answers if isinstance(answer, WorkerInfo)]
        if not infos:
            raise next(answer for answer in answers if isinstance(answer, BaseException))
        return infos[0]

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
            worker = self._choose(request)
            record.request_id, record.combine_worker = request.request_id, worker.port.name
            record.attempts += 1
            try:
                async with aclosing(self._attempt(worker, request, record, began)) as outputs:
                    async for output in outputs:
                        yield output
                return
            except WorkerLostError:
                self._lose(worker)
                if record.ttft_seconds:
                    raise
                record.builds.clear()

    @property
    def alive(self) -> dict[str, tuple[Role, bool]]:
        """Role of every worker, and whether it answered when it was last asked."""
        found: dict[str, tuple[Role, bool]] = {worker.port.name: ("combine", worker.alive) for worker in self._combine}
        return found | {worker.port.name: ("scatter", worker.alive) for worker in self._scatter}

    async def plan(self, request: GenerationRequest) -> Plan:
        """What would be done for a request now, where it would run."""
        return await self._choose(request).port.plan(request)

    @property
    def combine_ports(self) -> list[CombinePort]:
        """The combine workers that are there, for what concerns all of them. Raises UnavailableError without any."""
        ports = [worker.port for worker in self._combine if worker.alive]
        if not ports:
            raise UnavailableError("no combine worker is there; it is started again, try again soon", 5)
        return ports

    async def stats(self) -> list[WorkerStats]:
        """Of every worker that answers."""
        ports: list[CombinePort | ScatterPort] = [worker.port for worker in self._combine]
        ports += [worker.port for worker in self._scatter]
        questions = [port.stats() for port in ports]
        answers = await asyncio.gather(*(_bounded(question) for question in questions), return_exceptions=True)
        return [answer for answer in answers if isinstance(answer, WorkerStats)]

    async def health(self) -> Health:
        """Ask every combine worker, which answers however busy its engine is. Of scatter workers only what is known
        already counts, death or silence to a build: they answer nothing while they build."""
        answers = await asyncio.gather(
            *(_bounded(worker.port.hello()) for worker in self._combine), return_exceptions=True
        )
        states = {}
        for worker, answer in zip(self._combine, answers, strict=True):
            if isinstance(answer, WorkerInfo):
                worker.alive = True
            else:
                self._lose(worker)
            states[worker.port.name] = "ok" if worker.alive else f"lost: {answer or 'no answer'}"
        serving = any(worker.alive for worker in self._combine)
        states |= {worker.port.name: "ok" if worker.alive else "lost" for worker in self._scatter}
        return Health(serving, states)

    async def close(self) -> None:
        """Stop what runs in the background."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    async def _attempt(
        self, worker: _Combine, request: GenerationRequest, record: RequestRecord, began: float
    ) -> AsyncGenerator[TokenOutput, None]:
        worker.open_requests += 1
        worker.given_requests += 1
        finished = False
        deliveries: list[asyncio.Task[None]] = []
        try:
            async with aclosing(worker.port.generate(request)) as messages:
                async for message in messages:
                    if isinstance(message, Opened):
                        record.reserve_seconds = time.perf_counter() - began
                        deliveries = self._dispatch(worker, message.tasks, record)
                        continue
                    finished = message.ends_request
                    output = self._output(request, message, record, began)
                    if finished and deliveries:  # all are in by now, but word of it may be on its way
                        await asyncio.wait(deliveries, timeout=1.0)
                    yield output
            if not finished:
                raise WorkerLostError(f"worker {worker.port.name} ended request {request.request_id} without a word")
            self.directory.add(request, worker.port.name)
        finally:
            worker.open_requests -= 1
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
        self, combine: _Combine, tasks: Sequence[BuildTask], record: RequestRecord
    ) -> list[asyncio.Task[None]]:
        """Queue the builds and have the combine worker wait for each. What is being built already is built once."""
        new = [task for task in tasks if task.key not in self._building]
        workers = [worker for worker in self._scatter if worker.alive and worker.cost is not None]
        placement = place(self.policy, self._predicted(workers, new), [worker.queued_seconds for worker in workers])
        for worker, own in zip(workers, placement.assignments, strict=True):
            for index in own:
                self._build(worker, new[index])
        started = []
        for task in tasks:
            if building := self._building.get(task.key):
                building.users += 1
                started.append(self._in_background(self._deliver(combine, task, building, record)))
        here = [new[index] for index in placement.here]
        if here:
            started.append(self._in_background(self._build_here(combine, here, record)))
        return started

    def _build(self, worker: _Scatter, task: BuildTask) -> None:
        assert worker.cost is not None, worker.port.name
        seconds = worker.cost.seconds(len(task))
        worker.queued_seconds += seconds
        self._building[task.key] = _Building(worker.port.build(task), worker, seconds)

    async def _deliver(self, combine: _Combine, task: BuildTask, building: _Building, record: RequestRecord) -> None:
        began = time.perf_counter()
        patience = max(LEAST_PATIENCE_SECONDS, PATIENCE_FACTOR * building.worker.queued_seconds)
        try:
            delivery = await combine.port.deliver(task.key, [building.result], patience)
        except HypicError as error:  # the combine worker is gone; its requests are told by their streams
            delivery = Delivery(task.key, fallback=str(error), cause="receiver_lost")
        finally:
            building.users -= 1
            if not building.users:
                self._building.pop(task.key, None)
                building.worker.queued_seconds = max(0.0, building.worker.queued_seconds - building.seconds)
        if delivery.lost:
            self._lose(building.worker)
        waited = time.perf_counter() - began
        record.transfer_seconds += delivery.transfer_seconds
        record.builds.append(_build_record(task, delivery, combine.port.name, building.seconds, waited))

    async def _build_here(self, combine: _Combine, tasks: Sequence[BuildTask], record: RequestRecord) -> None:
        record.builds += [_build_record(task, Delivery(task.key), combine.port.name, 0.0, 0.0) for task in tasks]
        await combine.port.build_here([task.key for task in tasks])

    def _predicted(self, workers: Sequence[_Scatter], tasks: Sequence[BuildTask]) -> list[float]:
        """Seconds of each task. Workers of one cluster are taken to be alike: the slowest speaks for all."""
        costs = [worker.cost for worker in workers if worker.cost is not None]
        return [max((cost.seconds(len(task)) for cost in costs), default=0.0) for task in tasks]

    def _choose(self, request: GenerationRequest) -> _Combine:
        """The combine worker that should be done first: its work is the tokens that it is thought not to hold, and a
        prompt of this length for each request that it has open. Of equals, the one that has been given the fewest."""
        alive = [worker for worker in self._combine if worker.alive]
        if not alive:
            raise UnavailableError("no combine worker is there; it is started again, try again soon", 5)
        if len(alive) == 1:
            return alive[0]
        held = self.directory.best(request, [worker.port.name for worker in alive])

        def work(worker: _Combine) -> tuple[int, int]:
            missing_tokens = request.prompt_tokens - held[worker.port.name]
            return missing_tokens + worker.open_requests * request.prompt_tokens, worker.given_requests

        return min(alive, key=work)

    def _lose(self, worker: _Scatter | _Combine) -> None:
        """Ask a worker for nothing until it has answered."""
        if isinstance(worker, _Combine):
            self.directory.forget(worker.port.name)
        if worker.alive:
            worker.alive = False
            self._in_background(self._revive(worker))

    async def _revive(self, worker: _Scatter | _Combine) -> None:
        pause_seconds = 0.2
        while not worker.alive:
            try:
                info = await worker.port.hello()
            except HypicError:
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(5.0, 2 * pause_seconds)
                continue
            worker.alive = True
            if isinstance(worker, _Scatter):
                worker.cost, worker.queued_seconds = info.cost, 0.0

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def _build_record(
    task: BuildTask, delivery: Delivery, combine_worker: str, predicted_seconds: float, waited_seconds: float
) -> BuildRecord:
    return BuildRecord(
        key=task.key.hex(),
        tokens=len(task),
        worker=delivery.worker or combine_worker,
        predicted_seconds=predicted_seconds,
        build_seconds=delivery.build_seconds,
        transfer_seconds=delivery.transfer_seconds,
        payload_bytes=delivery.payload_bytes,
        waited_seconds=waited_seconds,
        fallback=delivery.fallback,
        cause=delivery.cause,
    )


async def _bounded(question: Awaitable[AnswerT]) -> AnswerT:
    return await asyncio.wait_for(question, ANSWER_SECONDS)
