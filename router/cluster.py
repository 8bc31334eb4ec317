"""A whole service in one block: Ray, workers and dispatcher, with plain blocking calls. For demos and measurements; the
HTTP side (hypic.router.app) stands on the same workers and the same dispatcher."""

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar, cast

import ray

from hypic.config import ClusterConfig, EngineConfig
from hypic.models.load import load_config
from hypic.plan import Plan
from hypic.request import FinishReason, GenerationRequest, TokenOutput, Usage
from hypic.router.dispatcher import Dispatcher
from hypic.router.placement import Policy
from hypic.router.record import RequestRecord
from hypic.tokenizer import PromptTokenizer
from hypic.workers.ports import WorkerInfo, WorkerStats
from hypic.workers.spawn import Progress, Workers, connect, spawn, start_ray, stop, wait_ready

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Completion:
    """A finished request."""

    text: str
    token_ids: tuple[int, ...]
    usage: Usage
    plan: Plan
    finish_reason: FinishReason
    record: RequestRecord


class RayWorkers:
    """Ray and the workers of one service, for the length of a with block.

    Ray is shut down at the end if it was started here; in a cluster that was running before, only the workers go.
    """

    def __init__(self, engine: EngineConfig, cluster: ClusterConfig, progress: Progress) -> None:
        self.engine, self.cluster, self._progress = engine, cluster, progress
        self._own_ray = False
        self._workers: Workers | None = None
        self.infos: list[WorkerInfo] = []

    def __enter__(self) -> "RayWorkers":
        """Start everything, without waiting for the workers. Raises what is wrong with the model before Ray starts."""
        load_config(self.engine.model)
        began = time.perf_counter()
        self._own_ray = start_ray(self.cluster)
        self._progress(f"Ray is up after {time.perf_counter() - began:.1f} s")
        try:
            self._workers = spawn(self.engine, self.cluster)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._own_ray:
            ray.shutdown()
        elif self._workers is not None:
            stop(self._workers)

    @property
    def workers(self) -> Workers:
        assert self._workers is not None, "the workers live inside the with block"
        return self._workers

    def wait(self) -> None:
        """Until every worker has loaded its model."""
        self.infos = wait_ready(self.workers, self._progress)


class LocalCluster:
    """Router, scatter workers and combine workers, usable from one thread as a context manager."""

    def __init__(
        self,
        engine: EngineConfig,
        cluster: ClusterConfig | None = None,
        progress: Progress = lambda text: None,
    ) -> None:
        self.engine, self.cluster = engine, cluster or ClusterConfig()
        self._ray = RayWorkers(self.engine, self.cluster, progress)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="router", daemon=True)

    def __enter__(self) -> "LocalCluster":
        self._ray.__enter__()
        try:
            self.tokenizer = PromptTokenizer.load(self.engine.model)  # while the workers load theirs
            self._ray.wait()
            self._thread.start()
            scatter, combine = connect(self._ray.workers.names)
            self.dispatcher = Dispatcher(scatter, combine, cast(Policy, self.cluster.placement))
            self.info = self.run(self.dispatcher.connect())
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.is_alive():
            if hasattr(self, "dispatcher"):
                self.run(self.dispatcher.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=5)
        self._ray.__exit__(kind, error, trace)

    def generate(self, request: GenerationRequest, record: RequestRecord | None = None) -> Iterator[TokenOutput]:
        """Outputs of a request as they come; see `Dispatcher.generate`."""
        outputs = self.dispatcher.generate(request, record)
        try:
            while (output := self.run(_next(outputs))) is not None:
                yield output
        finally:
            self.run(outputs.aclose())

    def complete(self, request: GenerationRequest) -> Completion:
        """Run a request to its end."""
        record = RequestRecord()
        outputs = list(self.generate(request, record))
        last = outputs[-1]
        assert last.finish_reason is not None, last
        assert record.plan is not None, last
        return Completion(
            text="".join(output.text for output in outputs),
            token_ids=tuple(output.token_id for output in outputs if output.token_id is not None),
            usage=last.usage,
            plan=record.plan,
            finish_reason=last.finish_reason,
            record=record,
        )

    def use(self, scatter_workers: int, policy: Policy) -> None:
        """Go on with the first so many scatter workers and another placement, for measurements. Nothing may run."""
        scatter, combine = connect(self._ray.workers.names)
        self.run(self.dispatcher.close())
        self.dispatcher = Dispatcher(scatter[:scatter_workers], combine, policy)
        self.run(self.dispatcher.connect())

    @property
    def workers(self) -> Workers:
        """The actors, for an HTTP server beside this one."""
        return self._ray.workers

    @property
    def infos(self) -> list[WorkerInfo]:
        """What each worker said of itself at its start."""
        return self._ray.infos

    def plan(self, request: GenerationRequest) -> Plan:
        """What would be done for a request now."""
        return self.run(self.dispatcher.plan(request))

    def stats(self) -> list[WorkerStats]:
        """Of every worker that answers, combine workers first."""
        return self.run(self.dispatcher.stats())

    def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run something in the router's event loop, where the dispatcher lives, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _next(outputs: Any) -> TokenOutput | None:
    output: TokenOutput | None = await anext(outputs, None)
    return output
