"""Faults put into a running cluster: what machines, networks and operators do to it, each in a few lines."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from hypic.router.cluster import LocalCluster
from hypic.workers.spawn import OBJECT_STORE_BYTES

ANSWER_SECONDS = 20.0

Fault = Callable[[LocalCluster, random.Random], None]
"""Does its harm and returns at once, or when it is over; what it does must end by itself."""


def kill_scatter(cluster: LocalCluster, rng: random.Random) -> None:
    """A scatter worker's process ends, whatever it was building; Ray starts it again."""
    ray.kill(_any(cluster, rng, "scatter"), no_restart=False)


def kill_combine(cluster: LocalCluster, rng: random.Random) -> None:
    """A combine worker's process ends with its cache and every request that it runs."""
    ray.kill(_any(cluster, rng, "combine"), no_restart=False)


def kill_all(cluster: LocalCluster, rng: random.Random) -> None:
    """All workers at once: nobody is left to answer until they are back."""
    for actor in cluster.workers.actors.values():
        ray.kill(actor, no_restart=False)


def stop_scatter(cluster: LocalCluster, rng: random.Random) -> None:
    """A scatter worker stands still for some seconds, as under a long page-out, and goes on."""
    _stand_still(_any(cluster, rng, "scatter"), rng.uniform(1.0, 4.0))


def stop_combine(cluster: LocalCluster, rng: random.Random) -> None:
    """A combine worker stands still for some seconds in the middle of its requests, and goes on."""
    _stand_still(_any(cluster, rng, "combine"), rng.uniform(0.5, 2.0))


def drop_cache(cluster: LocalCluster, rng: random.Random) -> None:
    """Everything cached goes, also what a lookup has just found."""
    for name in cluster.workers.names.combine:
        try:
            ray.get(cluster.workers.actors[name].flush.remote(), timeout=ANSWER_SECONDS)
        except RayError:  # it is dead or standing still: it has nothing to lose
            continue


def fill_object_store(cluster: LocalCluster, rng: random.Random) -> None:
    """The memory in which segments travel is full for some seconds."""
    block = 16 * 1024**2
    held: list[Any] = [ray.put(np.zeros(block, np.uint8)) for _ in range(OBJECT_STORE_BYTES * 9 // 10 // block)]
    threading.Timer(rng.uniform(1.0, 3.0), held.clear).start()


FAULTS: dict[str, Fault] = {
    "scatter worker killed": kill_scatter,
    "combine worker killed": kill_combine,
    "all workers killed": kill_all,
    "scatter worker stood still": stop_scatter,
    "combine worker stood still": stop_combine,
    "cache dropped": drop_cache,
    "object store filled": fill_object_store,
}


def _any(cluster: LocalCluster, rng: random.Random, role: str) -> Any:
    names = cluster.workers.names
    return cluster.workers.actors[rng.choice(names.scatter if role == "scatter" else names.combine)]


def _stand_still(actor: Any, seconds: float) -> None:
    try:
        pid = ray.get(actor.hello.remote(), timeout=ANSWER_SECONDS).pid
        os.kill(pid, signal.SIGSTOP)
    except (RayError, ProcessLookupError):  # it has just died of the fault before
        return
    try:
        time.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)
