"""Workers as Ray actors: start or join a cluster, create them, wait until they are ready, find and stop them.

Actors have names in a namespace of their own, so that a router that starts anew finds them again. A worker whose
process dies is started again by Ray, with empty caches.
"""

import logging
import math
import os
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from hypic.config import ClusterConfig, EngineConfig
from hypic.engine.composer import BuildTask
from hypic.engine.drift import DriftReport
from hypic.engine.inventory import Deletion, StoredSegment
from hypic.errors import HypicError, UnavailableError
from hypic.plan import Plan
from hypic.request import GenerationRequest
from hypic.workers.combine import CombineWorker
from hypic.workers.ports import (
    Changes,
    Delivery,
    Holdings,
    Opened,
    Role,
    Tokens,
    WorkerInfo,
    WorkerLostError,
    WorkerStats,
)
from hypic.workers.scatter import ScatterWorker

OBJECT_STORE_BYTES = 512 * 1024**2
"""Shared memory of a local cluster: segments are in it only while they travel."""

START_SECONDS = 600.0

Progress = Callable[[str], None]
"""Told, in a few words, what has just been reached."""


@dataclass(frozen=True)
class WorkerNames:
    """Where the workers of one service are found."""

    namespace: str
    scatter: tuple[str, ...]
    combine: tuple[str, ...]


@dataclass(frozen=True)
class Workers:
    """Spawned workers. Ray ends them when these handles, or the process that holds them, are gone."""

    names: WorkerNames
    actors: dict[str, Any]


@dataclass(frozen=True)
class RayScatter:
    """`ScatterPort` of an actor."""

    name: str
    actor: Any

    def build(self, task: BuildTask) -> Any:
        """An ObjectRef: it is awaitable, and Ray carries it to wherever it is awaited."""
        return self.actor.build.remote(task)

    async def hello(self) -> WorkerInfo:
        return await _answer(self.name, self.actor.hello.remote())  # type: ignore[no-any-return]

    async def stats(self) -> WorkerStats:
        return await _answer(self.name, self.actor.stats.remote())  # type: ignore[no-any-return]


@dataclass(frozen=True)
class RayCombine:
    """`CombinePort` of an actor. caller: a name of this process, by which the worker notices when it is gone."""

    name: str
    actor: Any
    caller: str

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Opened | Tokens, None]:
        stream = self.actor.generate.options(num_returns="streaming").remote(request, self.caller)
        try:
            async for message in stream:
                yield await _answer(self.name, message)
        except RayError as error:
            raise _translated(self.name, error) from error

    async def deliver(self, key: bytes, result: Sequence[Any], patience_seconds: float) -> Delivery:
        answer = self.actor.deliver.remote(key, list(result), patience_seconds)
        return await _answer(self.name, answer)  # type: ignore[no-any-return]

    def fetch(self, key: bytes) -> Any:
        """An ObjectRef: the segment goes from worker to worker, and never through this process."""
        return self.actor.fetch.remote(key)

    async def changes(self, epoch: int, sequence: int) -> Changes:
        answer = self.actor.changes.remote(epoch, sequence, self.caller)
        return await _answer(self.name, answer)  # type: ignore[no-any-return]

    async def holdings(self) -> Holdings:
        return await _answer(self.name, self.actor.holdings.remote())  # type: ignore[no-any-return]

    async def build_here(self, keys: Sequence[bytes]) -> None:
        await _answer(self.name, self.actor.build_here.remote(list(keys)))

    def abort(self, request_id: str) -> None:
        self.actor.abort.remote(request_id)

    async def plan(self, request: GenerationRequest) -> Plan:
        return await _answer(self.name, self.actor.plan.remote(request))  # type: ignore[no-any-return]

    async def segments(self, salt: str, after: bytes, limit: int) -> list[StoredSegment]:
        answer = self.actor.segments.remote(salt, after, limit)
        return await _answer(self.name, answer)  # type: ignore[no-any-return]

    async def delete(self, salt: str, key: bytes) -> Deletion:
        return await _answer(self.name, self.actor.delete.remote(salt, key))  # type: ignore[no-any-return]

    async def drift(self) -> DriftReport:
        return await _answer(self.name, self.actor.drift.remote())  # type: ignore[no-any-return]

    async def flush(self) -> int:
        return await _answer(self.name, self.actor.flush.remote())  # type: ignore[no-any-return]

    async def open_session(self, session_id: str, salt: str) -> None:
        await _answer(self.name, self.actor.open_session.remote(session_id, salt))

    async def close_session(self, session_id: str, salt: str) -> bool:
        return await _answer(self.name, self.actor.close_session.remote(session_id, salt))  # type: ignore[no-any-return]

    async def hello(self) -> WorkerInfo:
        return await _answer(self.name, self.actor.hello.remote())  # type: ignore[no-any-return]

    async def stats(self) -> WorkerStats:
        return await _answer(self.name, self.actor.stats.remote())  # type: ignore[no-any-return]


def start_ray(cluster: ClusterConfig) -> bool:
    """Join the cluster at `cluster.address`, or start one in this machine. False if this process is in one already,
    which is then used as it is. Raises UnavailableError where the cluster cannot be joined."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads do not survive Ray's forks
    if cluster.address:
        try:
            ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RayError) as error:
            raise UnavailableError(
                f"cannot join the Ray cluster at {cluster.address}: {error}; is it running? If it asks for a token, "
                "set RAY_AUTH_MODE=token here too"
            ) from error
        return True
    ray.init(
        # For placement alone: one for each worker. Ray also starts so many processes ahead, so more would cost time.
        num_cpus=cluster.scatter_workers + cluster.combine_workers,
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    return True


def spawn(engine: EngineConfig, cluster: ClusterConfig) -> Workers:
    """Create the workers and return at once; `wait_ready` waits for them."""
    if not engine.threads:
        engine = replace(engine, threads=_threads(cluster))
    names = WorkerNames(
        f"hypic-{uuid.uuid4().hex[:12]}",
        tuple(f"scatter-{number}" for number in range(cluster.scatter_workers)),
        tuple(f"combine-{number}" for number in range(cluster.combine_workers)),
    )
    classes: dict[str, type] = dict.fromkeys(names.combine, CombineWorker)
    classes |= dict.fromkeys(names.scatter, ScatterWorker)
    gpus = 0.0
    if engine.device.startswith("cuda"):
        resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
        gpus = gpu_share(len(classes), int(resources.get("GPU", 0)))
    actors: dict[str, Any] = {
        name: ray.remote(worker)
        .options(
            name=name,
            namespace=names.namespace,
            num_cpus=1,
            num_gpus=gpus,
            scheduling_strategy="SPREAD",
            max_restarts=-1,
            max_task_retries=0,
        )
        .remote(name, own_memory(engine, name, "combine" if worker is CombineWorker else "scatter"))
        for name, worker in classes.items()
    }
    return Workers(names, actors)


def connect(names: WorkerNames) -> tuple[list[RayScatter], list[RayCombine]]:
    """Ports of workers that were spawned, from any process of the cluster."""
    scatter = [RayScatter(name, ray.get_actor(name, names.namespace)) for name in names.scatter]
    caller = uuid.uuid4().hex
    combine = [RayCombine(name, ray.get_actor(name, names.namespace), caller) for name in names.combine]
    return scatter, combine


def wait_ready(workers: Workers, progress: Progress, limit_seconds: float = START_SECONDS) -> list[WorkerInfo]:
    """Wait until every worker has loaded its model. Raises what kept one from it, or HypicError where workers would not
    share what they cache, or where some are not there in time."""
    waiting: dict[Any, str] = {actor.hello.remote(): name for name, actor in workers.actors.items()}
    infos: list[WorkerInfo] = []
    while waiting:
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=limit_seconds)
        if not ready:
            raise HypicError(
                f"{', '.join(waiting.values())} did not start within {limit_seconds:.0f} s: does the cluster have a "
                "free CPU (or GPU) for each worker?"
            )
        name = waiting.pop(ready[0])
        try:
            info: WorkerInfo = ray.get(ready[0])
        except RayError as error:
            raise _translated(name, error) from error
        infos.append(info)
        progress(f"{name} is ready after {info.loading_seconds:.1f} s ({len(infos)} of {len(workers.actors)})")
    if len({info.namespace for info in infos}) > 1:
        raise HypicError("the workers have loaded different models: is the model directory the same on all nodes?")
    return infos


def stop(workers: Workers) -> None:
    """End the workers."""
    for actor in workers.actors.values():
        ray.kill(actor)


def own_memory(engine: EngineConfig, name: str, role: Role) -> EngineConfig:
    """The settings of one worker. A directory has one owner: each combine worker has its own below `cache_url`, and
    what only builds keeps nothing."""
    if role == "scatter":
        return replace(engine, cache_url="", host_cache_bytes=0)
    return replace(engine, cache_url=f"{engine.cache_url.rstrip('/')}/{name}" if engine.cache_url else "")


def gpu_share(workers: int, gpus: int) -> float:
    """GPUs of each worker: one, or a part where there are fewer than workers. Without any, one, which nobody gets."""
    return 1.0 if gpus in (0, workers) or gpus > workers else 1.0 / math.ceil(workers / gpus)


def _threads(cluster: ClusterConfig) -> int:
    """Threads of each worker where all share this machine; elsewhere a worker has what torch takes."""
    if cluster.address:
        return 0
    return max(1, (os.cpu_count() or 1) // max(1, cluster.scatter_workers))


async def _answer(name: str, reference: Any) -> Any:
    try:
        return await reference
    except RayError as error:
        raise _translated(name, error) from error


def _translated(name: str, error: RayError) -> Exception:
    """Ray's error as ours: the one raised in the worker, or that the worker is lost."""
    if isinstance(error, RayActorError):
        return WorkerLostError(f"worker {name} is not there: {str(error).splitlines()[0]}")
    if isinstance(error, RayTaskError) and isinstance(error.cause, Exception):
        return error.cause
    return WorkerLostError(f"worker {name} does not answer: {str(error).splitlines()[0]}")
