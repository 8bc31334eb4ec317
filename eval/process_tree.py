"""What the processes of a service take: memory and file handles, by role."""

import random
from dataclasses import dataclass

import psutil

ROLES = {"combine": "ray::CombineWorker", "scatter": "ray::ScatterWorker"}
"""How Ray names the processes of our actors."""


@dataclass(frozen=True)
class Usage:
    """Of all processes of one role. rss_bytes: resident memory that is not shared with other processes or files, so
    that Ray's object store is not counted in each process that looks at it. handles: open files, pipes and sockets."""

    processes: int
    rss_bytes: int
    handles: int


def usage(pid: int) -> dict[str, Usage]:
    """Of the server itself and of its workers; processes that end meanwhile are left out."""
    found: dict[str, list[tuple[int, int]]] = {"server": [], **{role: [] for role in ROLES}}
    for role, process in _processes(pid):
        try:
            memory = process.memory_info()
            found[role].append((memory.rss - memory.shared, process.num_fds()))
        except psutil.Error:  # it has ended
            continue
    return {
        role: Usage(len(own), sum(rss for rss, _ in own), sum(handles for _, handles in own))
        for role, own in found.items()
    }


def kill_worker(pid: int, rng: random.Random) -> str:
    """Kill one of the server's workers with SIGKILL; which role it had, "" where none was there."""
    workers = [(role, process) for role, process in _processes(pid) if role != "server"]
    if not workers:
        return ""
    role, process = rng.choice(workers)
    process.kill()
    return role


def _processes(pid: int) -> list[tuple[str, psutil.Process]]:
    server = psutil.Process(pid)
    found = [("server", server)]
    for process in server.children(recursive=True):
        try:
            command = " ".join(process.cmdline())
        except psutil.Error:  # it has ended
            continue
        found += [(role, process) for role, name in ROLES.items() if command.startswith(name)]
    return found
