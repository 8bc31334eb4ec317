"""`hypic bench chaos`: clients that know the right answers ask a cluster whose workers die, stall and forget.

Whatever happens, a request ends in its right answer or in an error that says why, within seconds, and afterwards
nothing is held for anybody. Which requests and faults come, and in which order, is drawn from a seed.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from hypic.config import ClusterConfig, EngineConfig
from hypic.engine.engine import Engine
from hypic.errors import HypicError
from hypic.eval.chaos_config import ChaosConfig
from hypic.eval.chaos_faults import FAULTS
from hypic.eval.known_prompts import KnownPrompt, known_prompts
from hypic.eval.report import Report, Table, progress, say
from hypic.router.cluster import LocalCluster
from hypic.router.dispatcher import Dispatcher
from hypic.workers.ports import WorkerStats

CLUSTER = ClusterConfig(scatter_workers=2, combine_workers=2)
TENANTS = 3
HANG_SECONDS = 60.0
"""A request that has not ended by then never will."""

REST_SECONDS = 20.0
"""How long what is held may take to be given back once the last request has ended."""

RETRY_SECONDS = 0.5

LEAVING_SHARE = 0.2
"""Of requests whose client goes away, half of them at once and half somewhere on the way."""

Ending = Literal["right", "wrong", "left", "refused", "failed", "fault"]
"""right, wrong: the whole answer came. left: the client did, before the end. refused: for as long as a request may
take, however often it was asked again. failed: an error that says why, after the first token. fault: an exception that
says nothing to a user."""


@dataclass(frozen=True)
class Outcome:
    """How a request ended, by the clock of the run. said: the error's code, or what was wrong."""

    began_seconds: float
    ended_seconds: float
    ending: Ending
    said: str = ""


@dataclass(frozen=True)
class Harm:
    """A fault that was put in. recovery_seconds: until a request that began after it ended right; None if none did."""

    name: str
    at_seconds: float
    recovery_seconds: float | None


class Load:
    """Clients in the router's event loop that ask one prompt after another until `requests` have been asked."""

    def __init__(self, dispatcher: Dispatcher, prompts: Sequence[KnownPrompt], config: ChaosConfig) -> None:
        self.dispatcher, self.prompts, self.config = dispatcher, prompts, config
        self.outcomes: list[Outcome] = []
        self.refusals: Counter[str] = Counter()
        self.asking: dict[int, float] = {}
        self._began = time.monotonic()
        self._next = iter(range(config.requests))

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._began

    @property
    def hung(self) -> int:
        """Requests that are open for longer than any may take."""
        return sum(self.seconds - since > HANG_SECONDS for since in self.asking.values())

    def recovered(self, since: float) -> float | None:
        """Seconds from a moment until a request that began after it ended right."""
        ended = [o.ended_seconds for o in self.outcomes if o.ending == "right" and o.began_seconds >= since]
        return min(ended) - since if ended else None

    async def client(self) -> None:
        """One client; several share the requests."""
        for asked in self._next:
            began = self.asking[asked] = self.seconds
            ending, said = await self._ask(f"chaos-{asked}", asked)
            while ending == "refused" and self.seconds - began < HANG_SECONDS:  # as one does who is told to try again
                self.refusals[said] += 1
                await asyncio.sleep(RETRY_SECONDS)
                ending, said = await self._ask(f"chaos-{asked}-{self.refusals.total()}", asked)
            del self.asking[asked]
            self.outcomes.append(Outcome(began, self.seconds, ending, said))

    async def _ask(self, request_id: str, asked: int) -> tuple[Ending, str]:
        rng = random.Random(f"{self.config.seed}/{asked}")
        prompt, salt = rng.choice(self.prompts), f"tenant-{rng.randrange(TENANTS)}"
        leaves = rng.random() < LEAVING_SHARE
        patience = rng.choice((rng.uniform(0.0, 0.05), rng.uniform(0.0, 0.5))) if leaves else None
        token_ids: list[int] = []
        try:
            async with asyncio.timeout(patience):
                async with aclosing(self.dispatcher.generate(prompt.request(request_id, salt))) as outputs:
                    async for output in outputs:
                        token_ids += [] if output.token_id is None else [output.token_id]
        except TimeoutError:
            return "left", ""
        except HypicError as error:
            return ("failed" if token_ids else "refused"), error.code
        except Exception as error:  # every kind counts, and none may end the run
            return "fault", f"{type(error).__name__}: {error}"[:200]
        if tuple(token_ids) != prompt.token_ids:
            return "wrong", f"{prompt.arm}: {token_ids}, right is {list(prompt.token_ids)}"
        return "right", ""


async def under_faults(cluster: LocalCluster, load: Load, on_request: Callable[[int], None]) -> list[Harm]:
    """Run the load to its end, with a fault after every `config.every` requests. The deck of faults is dealt in a drawn
    order, again and again. Ends early where a request hangs."""
    rng, deck, harms = random.Random(load.config.seed), list[str](), list[tuple[str, float]]()
    clients = [asyncio.ensure_future(load.client()) for _ in range(load.config.clients)]
    while not all(client.done() for client in clients) and not load.hung:
        await asyncio.sleep(0.05)
        on_request(len(load.outcomes))
        due, left = load.config.every * (len(harms) + 1), load.config.requests - len(load.outcomes)
        if len(load.outcomes) >= due and left > load.config.clients:  # some must begin after it
            deck = deck or rng.sample(list(FAULTS), len(FAULTS))
            name = deck.pop()
            harms.append((name, load.seconds))
            await asyncio.to_thread(FAULTS[name], cluster, random.Random(f"{load.config.seed}/{len(harms)}"))
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    return [Harm(name, at, load.recovered(at)) for name, at in harms]


async def held_at_rest(dispatcher: Dispatcher) -> dict[str, int]:
    """What is still held once nothing runs and everyone has had time to give it back: by name."""
    ends = time.monotonic() + REST_SECONDS
    while True:
        held = held_of(await dispatcher.stats())
        if not held or time.monotonic() > ends:
            return held
        await asyncio.sleep(0.2)


def held_of(stats: Sequence[WorkerStats]) -> dict[str, int]:
    """Leases and open requests by worker, those at 0 left out."""
    counts = {f"{s.name} {name}": getattr(s, name) for s in stats for name in ("leases", "open_requests")}
    return {name: count for name, count in counts.items() if count}


def run_chaos(engine: EngineConfig, config: ChaosConfig) -> Report:
    """Find prompts with clear answers, start a cluster, and do everything to it."""
    reference = Engine(replace(engine, threads=engine.threads or 1))
    with progress("right answers", config.prompts) as advance:
        prompts = known_prompts(reference, config.prompts, config.seed, advance)
    with LocalCluster(engine, CLUSTER, say) as cluster:
        load = Load(cluster.dispatcher, prompts, config)
        with progress("requests", config.requests) as advance:
            harms = cluster.run(under_faults(cluster, load, advance.to))
        say("looking for what is still held")
        leaks = cluster.run(held_at_rest(cluster.dispatcher))
    results = _results(load, harms, leaks)
    return Report("bench chaos", str(engine.model), engine.device, results, tuple(_tables(results)))


def _results(load: Load, harms: Sequence[Harm], leaks: dict[str, int]) -> dict[str, Any]:
    endings = Counter(outcome.ending for outcome in load.outcomes)
    recoveries = [harm.recovery_seconds for harm in harms if harm.recovery_seconds is not None]
    wrong = [o.said for o in load.outcomes if o.ending in ("wrong", "fault", "refused")]
    unrecovered = [harm.name for harm in harms if harm.recovery_seconds is None]
    faults = {name: [h for h in harms if h.name == name] for name in FAULTS}
    return {
        "requests": len(load.outcomes),
        "faults": len(harms),
        "wrong_answers": endings["wrong"],
        "unexplained_errors": endings["fault"],
        "hung": load.hung,
        "leaks": sum(leaks.values()),
        "worst_recovery_seconds": max(recoveries, default=0.0),
        "unrecovered": unrecovered,
        "passed": not (wrong or load.hung or leaks or unrecovered),
        "endings": {ending: endings[ending] for ending in get_args(Ending)},
        "refusals": dict(load.refusals),
        "failures": dict(Counter(o.said for o in load.outcomes if o.ending == "failed")),
        "by_fault": {
            name: {
                "count": len(own),
                "worst_recovery_seconds": max((h.recovery_seconds or 0.0 for h in own), default=0.0),
            }
            for name, own in faults.items()
        },
        "slowest_seconds": max((o.ended_seconds - o.began_seconds for o in load.outcomes), default=0.0),
        "what_was_wrong": wrong[:20],
        "what_is_held": leaks,
        "seed": load.config.seed,
    }


def _tables(results: dict[str, Any]) -> list[Table]:
    names = ("requests", "faults", "wrong_answers", "unexplained_errors", "hung", "leaks")
    seconds = ("worst_recovery_seconds", "slowest_seconds")
    rows = [(name.replace("_", " "), str(results[name])) for name in names]
    rows += [(name.replace("_", " "), f"{results[name]:.1f}") for name in seconds]
    rows += [(f"ended: {name}", str(count)) for name, count in results["endings"].items()]
    rows += [(f"refused: {name}", str(count)) for name, count in results["refusals"].items()]
    rows += [(f"failed: {name}", str(count)) for name, count in results["failures"].items()]
    rows += [(f"held: {name}", str(count)) for name, count in results["what_is_held"].items()]
    faults = tuple(
        (name, str(row["count"]), f"{row['worst_recovery_seconds']:.1f}") for name, row in results["by_fault"].items()
    )
    note = "Refused: an error before the first token, then asked again. Failed: one after it. Left: the client did."
    return [
        Table("Under faults", ("", "found"), tuple(rows), note),
        Table(
            "Faults",
            ("fault", "times", "worst recovery s"),
            faults,
            "Recovery: until a request that began after the fault ended with the right answer.",
        ),
    ]
