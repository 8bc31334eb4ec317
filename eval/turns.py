"""Times of things that are done in turns, so that whatever slows the machine down slows all of them alike."""

import time
from collections.abc import Callable, Mapping
from statistics import median

import torch


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Seconds from the call until its result is there: on a GPU, until everything that was launched is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def in_turns(
    arms: Mapping[str, Callable[[], object]],
    rounds: int,
    device: torch.device,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Seconds of each arm in each round, by name. Every round runs all arms once and begins with another one; before
    the first, each is run untimed. advance: called after each run."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    names = list(arms)
    for number in range(-1, rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            found = seconds_of(arms[name], device)
            if number >= 0:
                seconds[name].append(found)
            advance()
    return seconds


def overhead_percent(seconds: list[float], reference: list[float]) -> float:
    """How much longer one arm takes than another, in percent: the median over rounds of what each round says."""
    return 100 * (median(a / b for a, b in zip(seconds, reference, strict=True)) - 1)
