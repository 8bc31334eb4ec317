"""The workers as the router knows them: which are there, what they hold, how much they have to do.

Each combine worker is followed all the time: what its cache gains and loses goes into the directory, and silence is how
a worker that stands still is noticed, by requests in the middle of an answer too. A worker that is lost is asked for
nothing until it has answered.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hypic.errors import HypicError, UnavailableError
from hypic.request import GenerationRequest
from hypic.router.directory import Directory
from hypic.segment import Namespace
from hypic.workers.cost import CostModel
from hypic.workers.ports import (
    CombinePort,
    Opened,
    Role,
    ScatterPort,
    Tokens,
    WorkerInfo,
    WorkerLostError,
    WorkerStats,
)

AnswerT = TypeVar("AnswerT")

ANSWER_SECONDS = 5.0
"""How long a worker may take to answer a question that needs no work."""

SILENCE_SECONDS = 8.0
"""A combine worker that has said nothing for so long is lost: it is asked for changes all the time, answers at least
every second, and does so however busy its engine is."""

RETRY_SECONDS = 5
"""When a client should try again where no combine worker is there: by then Ray has started one."""


@dataclass(eq=False)
class ScatterState:
    """A scatter worker. queued_seconds: predicted, of builds that are not delivered yet."""

    port: ScatterPort
    cost: CostModel | None = None
    alive: bool = True
    queued_seconds: float = 0.0


@dataclass(eq=False)
class CombineState:
    """A combine worker. here_seconds: predicted, of the builds that it has to do itself. lost: set once it is."""

    port: CombinePort
    alive: bool = True
    open_requests: int = 0
    given_requests: int = 0
    here_seconds: float = 0.0
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    following: "asyncio.Task[None] | None" = None


@dataclass(frozen=True)
class Health:
    """Which workers answer. serving: whether requests can be taken at all."""

    serving: bool
    workers: dict[str, str]


class Fleet:
    """All workers of one service. For one event loop."""

    def __init__(self, scatter: Sequence[ScatterPort], combine: Sequence[CombinePort]) -> None:
        self.directory = Directory()
        self.scatter = [ScatterState(port) for port in scatter]
        self.combine = [CombineState(port) for port in combine]
        self.namespace: Namespace | None = None
        self._background: set[asyncio.Task[Any]] = set()

    async def connect(self) -> WorkerInfo:
        """Wait for the workers; what a combine worker says of itself. Raises if no combine worker is there.

        A combine worker that is missing, or a scatter worker that is not ready soon after, joins when it answers.
        """
        answers = await asyncio.gather(*(worker.port.hello() for worker in self.combine), return_exceptions=True)
        for worker, answer in zip(self.combine, answers, strict=True):
            if isinstance(answer, WorkerInfo):
                self._welcome(worker, answer)
            else:
                self.lose(worker)
        joining = [task for scatter in self.scatter if (task := self.lose(scatter))]
        if joining:
            await asyncio.wait(joining, timeout=ANSWER_SECONDS)
        infos = [answer for answer in answers if isinstance(answer, WorkerInfo)]
        if not infos:
            raise next(answer for answer in answers if isinstance(answer, BaseException))
        return infos[0]

    def choose(self, request: GenerationRequest) -> CombineState:
        """The combine worker that should be done first: its work is the tokens that it is thought not to hold, and a
        prompt of this length for each request that it has open. Of equals, the one that has been given the fewest.
        Raises UnavailableError without any."""
        alive = [worker for worker in self.combine if worker.alive]
        if not alive:
            raise UnavailableError("no combine worker is there; it is started again, try again soon", RETRY_SECONDS)
        if len(alive) == 1:
            return alive[0]
        names = [worker.port.name for worker in alive]
        known = self.namespace
        held = dict.fromkeys(names, 0) if known is None else self.directory.best(request, known, names)

        def work(worker: CombineState) -> tuple[int, int]:
            missing_tokens = request.prompt_tokens - held[worker.port.name]
            return missing_tokens + worker.open_requests * request.prompt_tokens, worker.given_requests

        return min(alive, key=work)

    def holders(self, key: bytes, but: CombineState) -> list[tuple[CombineState, int]]:
        """Other combine workers that are thought to have a segment, and its bytes; the least busy first."""
        found = self.directory.holders(key)
        peers = [w for w in self.combine if w.alive and w is not but and w.port.name in found]
        return [(w, found[w.port.name].nbytes) for w in sorted(peers, key=lambda w: w.open_requests)]

    async def heard(
        self, worker: CombineState, messages: AsyncGenerator[Opened | Tokens, None]
    ) -> AsyncGenerator[Opened | Tokens, None]:
        """Messages of a stream while its worker is there. Raises WorkerLostError as soon as it is given up."""
        gone = asyncio.ensure_future(worker.lost.wait())
        following = None
        try:
            while True:
                following = asyncio.ensure_future(anext(messages, None))
                await asyncio.wait({following, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not following.done():
                    raise WorkerLostError(f"worker {worker.port.name} does not answer")
                message = following.result()
                if message is None:
                    return
                yield message
        finally:
            gone.cancel()
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            await messages.aclose()

    async def stats(self) -> list[WorkerStats]:
        """Of every worker that answers."""
        ports: list[CombinePort | ScatterPort] = [worker.port for worker in self.combine]
        ports += [worker.port for worker in self.scatter]
        questions = [port.stats() for port in ports]
        answers = await asyncio.gather(*(_bounded(question) for question in questions), return_exceptions=True)
        return [answer for answer in answers if isinstance(answer, WorkerStats)]

    @property
    def alive(self) -> dict[str, tuple[Role, bool]]:
        """Role of every worker, and whether it answered when it was last asked."""
        found: dict[str, tuple[Role, bool]] = {worker.port.name: ("combine", worker.alive) for worker in self.combine}
        return found | {worker.port.name: ("scatter", worker.alive) for worker in self.scatter}

    async def health(self) -> Health:
        """Ask every combine worker, which answers however busy its engine is. Of scatter workers only what is known
        already counts, death or silence to a build: they answer nothing while they build."""
        answers = await asyncio.gather(
            *(_bounded(worker.port.hello()) for worker in self.combine), return_exceptions=True
        )
        states = {}
        for worker, answer in zip(self.combine, answers, strict=True):
            if not isinstance(answer, WorkerInfo):
                self.lose(worker)
            elif not worker.alive:
                self._welcome(worker, answer)
            states[worker.port.name] = "ok" if worker.alive else f"lost: {answer or 'no answer'}"
        serving = any(worker.alive for worker in self.combine)
        states |= {worker.port.name: "ok" if worker.alive else "lost" for worker in self.scatter}
        return Health(serving, states)

    def lose(self, worker: ScatterState | CombineState) -> "asyncio.Task[None] | None":
        """Ask a worker for nothing until it has answered; what waits for that, None where something does already."""
        if isinstance(worker, CombineState):
            self.directory.forget(worker.port.name)
            worker.lost.set()
        if not worker.alive:
            return None
        worker.alive = False
        return self.in_background(self._revive(worker))

    def in_background(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run something until it ends or the fleet is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def close(self) -> None:
        """Stop what runs in the background."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    async def _revive(self, worker: ScatterState | CombineState) -> None:
        pause_seconds = 0.2
        while not worker.alive:
            try:
                info = await worker.port.hello()
            except HypicError:
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(5.0, 2 * pause_seconds)
                continue
            if not worker.alive:
                self._welcome(worker, info)

    def _welcome(self, worker: ScatterState | CombineState, info: WorkerInfo) -> None:
        worker.alive = True
        if isinstance(worker, ScatterState):
            worker.cost, worker.queued_seconds = info.cost, 0.0
            return
        self.namespace = info.namespace
        worker.lost, worker.here_seconds = asyncio.Event(), 0.0
        if worker.following is not None:
            worker.following.cancel()
        worker.following = self.in_background(self._follow(worker))

    async def _follow(self, worker: CombineState) -> None:
        """Keep the directory up to date with a worker's cache, until the worker is lost."""
        name = worker.port.name
        asking: asyncio.Task[None] | None = None
        try:
            while worker.alive:
                async with asyncio.timeout(SILENCE_SECONDS):
                    news = await worker.port.changes(*self.directory.position(name))
                if not self.directory.apply(name, news) and (asking is None or asking.done()):
                    asking = self.in_background(self._take_stock(worker))  # it may take long: the engine answers
        except (HypicError, TimeoutError):
            self.lose(worker)

    async def _take_stock(self, worker: CombineState) -> None:
        try:
            holdings = await worker.port.holdings()
        except HypicError:  # if it is lost, it is noticed where it is followed
            return
        if worker.alive:
            self.directory.replace(worker.port.name, holdings)


async def _bounded(question: Awaitable[AnswerT]) -> AnswerT:
    return await asyncio.wait_for(question, ANSWER_SECONDS)
