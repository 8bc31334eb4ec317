"""`hypic bench soak`: a server under mixed load for minutes, some of it hostile, workers killed meanwhile.

Right answers are known, so a wrong one is noticed; what processes take is written down each second, and in the second
half of the run, when nothing is killed any more and caches have filled up, it must not grow.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import httpx

from hypic.config import ClusterConfig, EngineConfig
from hypic.engine.engine import Engine
from hypic.eval.chaos import REST_SECONDS, TENANTS
from hypic.eval.known_prompts import ANSWER_TOKENS, KnownPrompt, known_prompts
from hypic.eval.process_tree import Usage, kill_worker, usage
from hypic.eval.report import Report, Table, progress, say
from hypic.eval.server_process import Served, serving
from hypic.eval.soak_config import SoakConfig

CHAT = "/v1/chat/completions"
HANG_SECONDS = 60.0
SAMPLE_SECONDS = 1.0
ALLOWED_GROWTH, ALLOWED_BYTES, ALLOWED_HANDLES = 0.02, 8 * 1024**2, 8
"""What a flat line may differ by between the third and the last quarter of a run."""

HOSTILE: tuple[tuple[str, bytes], ...] = (
    (CHAT, b"{"),
    (CHAT, b"[" * 20_000),
    (CHAT, b'{"messages": []}'),
    (CHAT, b'{"messages": [{"role": "user", "content": "\\ud800"}]}'),
    (CHAT, json.dumps({"messages": [{"role": "user", "content": "a"}], "max_tokens": 10**9}).encode()),
    (CHAT, json.dumps({"messages": [{"role": "user", "content": "long " * 200_000}]}).encode()),
    ("/v1/completions", b'{"prompt": []}'),
    ("/generate", b'{"text": 3}'),
    ("/nowhere", b"{}"),
)
"""Requests that must cost nothing but their own error."""


@dataclass(frozen=True)
class Ask:
    """What a client does next. leaves_after: seconds until it goes away, None for never."""

    kind: str
    path: str
    body: bytes
    prompt: KnownPrompt | None = None
    leaves_after: float | None = None


class Mix:
    """Draws what is asked: answers in one piece and in streams, clients that leave, and bodies that must be refused."""

    def __init__(self, prompts: Sequence[KnownPrompt], seed: int) -> None:
        self._prompts, self._rng = prompts, random.Random(seed)

    def draw(self) -> Ask:
        """The next one."""
        rng = self._rng
        kind = rng.choices(("whole", "stream", "leaving", "hostile"), (4, 4, 1, 1))[0]
        if kind == "hostile":
            path, body = rng.choice(HOSTILE)
            return Ask(kind, path, body)
        prompt = rng.choice(self._prompts)
        record = {
            "messages": [{"role": "user", "content": prompt.question}],
            "documents": [{"text": text} for text in prompt.documents],
            "max_tokens": ANSWER_TOKENS,
            "ignore_eos": True,
            "temperature": 0,
            "stream": kind != "whole",
            "cache_salt": f"tenant-{rng.randrange(TENANTS)}",
            "hypic": {"arm": prompt.arm},
        }
        return Ask(kind, CHAT, json.dumps(record).encode(), prompt, rng.uniform(0, 0.3) if kind == "leaving" else None)


class Load:
    """Clients on one server until a moment, and what became of what they asked."""

    def __init__(self, url: str, mix: Mix, seconds: float) -> None:
        self.url, self.mix, self.seconds = url, mix, seconds
        self.endings: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.right_at: list[tuple[float, float]] = []
        self._began = time.monotonic()

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def recovered(self, since: float) -> float | None:
        """Seconds from a moment until a request that began after it ended right."""
        return min((ended - since for began, ended in self.right_at if began >= since), default=None)

    async def client(self) -> None:
        """Ask one thing after another."""
        async with httpx.AsyncClient(base_url=self.url, timeout=HANG_SECONDS) as http:
            while self.now < self.seconds:
                ask, began = self.mix.draw(), self.now
                ending, said = await self._one(http, ask)
                self.endings[ending] += 1
                if ending == "right":
                    self.right_at.append((began, self.now))
                elif ending in ("wrong", "hung", "unexplained"):
                    self.wrong.append(f"{ending}: {said}"[:300])
                elif ending == "refused":
                    await asyncio.sleep(0.5)

    async def _one(self, http: httpx.AsyncClient, ask: Ask) -> tuple[str, str]:
        try:
            async with asyncio.timeout(ask.leaves_after):
                status, text, error = await _answer(http, ask)
        except TimeoutError:
            return "left", ""
        except httpx.TimeoutException as fault:
            return "hung", repr(fault)
        except httpx.HTTPError as fault:
            return "unexplained", repr(fault)
        if ask.kind == "hostile":
            return ("refused as it must be", "") if 400 <= status < 500 else ("wrong", f"{status} to {ask.body[:80]!r}")
        if status in (429, 503):
            return "refused", error
        if status != 200 or error:
            return ("failed", error) if error else ("unexplained", f"{status}: {text[:200]}")
        assert ask.prompt is not None, ask.kind
        return ("right", "") if text == ask.prompt.text else ("wrong", f"{text!r}, right is {ask.prompt.text!r}")


async def _answer(http: httpx.AsyncClient, ask: Ask) -> tuple[int, str, str]:
    """Status, text, and code of the error."""
    headers = {"Content-Type": "application/json"}
    if ask.prompt is None or ask.kind == "whole":
        answer = await http.post(ask.path, content=ask.body, headers=headers)
        record = answer.json()
        if answer.status_code != 200:
            return answer.status_code, "", str(record["error"]["code"])
        return 200, "" if ask.prompt is None else str(record["choices"][0]["message"]["content"]), ""
    text, error = "", ""
    async with http.stream("POST", ask.path, content=ask.body, headers=headers) as answer:
        if answer.status_code != 200:
            return answer.status_code, "", str(json.loads(await answer.aread())["error"]["code"])
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                error = error or (str(event["error"]["code"]) if "error" in event else "")
                text += "".join(choice["delta"].get("content") or "" for choice in event.get("choices", ()))
    return 200, text, error


async def soak(served: Served, load: Load, config: SoakConfig, on_second: Callable[[], None]) -> dict[str, Any]:
    """Run the load with its faults to its end, and then see what is held. Returns samples, harms and leaks."""
    rng = random.Random(config.seed)
    clients = [asyncio.ensure_future(load.client()) for _ in range(config.clients)]
    samples: list[tuple[float, dict[str, Usage]]] = []
    harms: list[tuple[str, float]] = []
    while not all(client.done() for client in clients):
        await asyncio.sleep(SAMPLE_SECONDS)
        samples.append((load.now, await asyncio.to_thread(usage, served.pid)))
        on_second()
        if len(harms) < config.faults and load.now > (len(harms) + 1) * load.seconds / 2 / (config.faults + 1):
            harms.append((kill_worker(served.pid, rng), load.now))
    await asyncio.gather(*clients)
    return {"samples": samples, "harms": harms, "leaks": await _held_at_rest(served.url)}


async def _held_at_rest(url: str) -> dict[str, int]:
    """Leases and open requests of every worker, once all had time to give them back; those at 0 left out."""
    ends = time.monotonic() + REST_SECONDS
    async with httpx.AsyncClient(base_url=url, timeout=HANG_SECONDS) as http:
        while True:
            workers = (await http.get("/server_info")).json()["workers"]
            counts = {f"{w['name']} {name}": w[name] for w in workers for name in ("leases", "open_requests")}
            held = {name: count for name, count in counts.items() if count}
            if not held or time.monotonic() > ends:
                return held
            await asyncio.sleep(0.2)


def growth(samples: Sequence[tuple[float, dict[str, Usage]]], seconds: float) -> dict[str, dict[str, float]]:
    """By role, the median of memory and handles in the third and in the last quarter of a run, and whether that is
    flat."""
    quarters = [
        [taken for at, taken in samples if low * seconds <= at < high * seconds]
        for low, high in ((0.5, 0.75), (0.75, 1.0))
    ]
    found = {}
    for role in samples[0][1] if all(quarters) else ():
        rss = [median(taken[role].rss_bytes for taken in quarter) for quarter in quarters]
        handles = [median(taken[role].handles for taken in quarter) for quarter in quarters]
        flat = rss[1] - rss[0] <= max(ALLOWED_BYTES, ALLOWED_GROWTH * rss[0])
        flat &= handles[1] - handles[0] <= ALLOWED_HANDLES
        found[role] = {
            "third_quarter_bytes": rss[0],
            "last_quarter_bytes": rss[1],
            "third_quarter_handles": handles[0],
            "last_quarter_handles": handles[1],
            "flat": flat,
        }
    return found


def run_soak(engine: EngineConfig, cluster: ClusterConfig, config: SoakConfig) -> Report:
    """Find prompts with clear answers, serve the model, and load it."""
    with progress("right answers", config.prompts) as advance:
        reference = Engine(replace(engine, threads=engine.threads or 1))
        prompts = known_prompts(reference, config.prompts, config.seed, advance)
    seconds = 60 * config.minutes
    say("starting the server")
    with serving(engine, cluster) as served:
        load = Load(served.url, Mix(prompts, config.seed), seconds)
        with progress("seconds", round(seconds)) as advance:
            found = asyncio.run(soak(served, load, config, advance))
    results = _results(load, found, config)
    return Report("bench soak", str(engine.model), engine.device, results, tuple(_tables(results)))


def _results(load: Load, found: dict[str, Any], config: SoakConfig) -> dict[str, Any]:
    recoveries = {f"{role}, second {at:.0f}": load.recovered(at) for role, at in found["harms"]}
    flat = growth(found["samples"], load.seconds)
    bad = Counter(said.partition(":")[0] for said in load.wrong)
    return {
        "requests": load.endings.total(),
        "faults": len(found["harms"]),
        "wrong_answers": bad["wrong"],
        "unexplained_errors": bad["unexplained"],
        "hung": bad["hung"],
        "leaks": sum(found["leaks"].values()),
        "worst_recovery_seconds": max((r for r in recoveries.values() if r is not None), default=0.0),
        "passed": not load.wrong
        and not found["leaks"]
        and None not in recoveries.values()
        and bool(flat)
        and all(role["flat"] for role in flat.values()),
        "minutes": config.minutes,
        "requests_per_second": load.endings.total() / load.seconds,
        "endings": dict(load.endings),
        "recovery_seconds": recoveries,
        "growth": flat,
        "what_was_wrong": load.wrong[:20],
        "what_is_held": found["leaks"],
        "samples": [
            {"second": at, **{role: [own.rss_bytes, own.handles] for role, own in taken.items()}}
            for at, taken in found["samples"]
        ],
    }


def _tables(results: dict[str, Any]) -> list[Table]:
    names = ("requests", "faults", "wrong_answers", "unexplained_errors", "hung", "leaks")
    rows = [(name.replace("_", " "), str(results[name])) for name in names]
    rows += [("worst recovery seconds", f"{results['worst_recovery_seconds']:.1f}")]
    rows += [(f"ended: {name}", str(count)) for name, count in sorted(results["endings"].items())]
    rows += [("what was wrong", said) for said in results["what_was_wrong"][:3]]
    grown = tuple(
        (
            role,
            f"{row['third_quarter_bytes'] / 2**20:.1f}",
            f"{row['last_quarter_bytes'] / 2**20:.1f}",
            f"{row['third_quarter_handles']:.0f}",
            f"{row['last_quarter_handles']:.0f}",
            "yes" if row["flat"] else "no",
        )
        for role, row in results["growth"].items()
    )
    return [
        Table(f"{results['minutes']:g} minutes of load", ("", "found"), tuple(rows)),
        Table(
            "Third against last quarter",
            ("processes", "MiB", "MiB at the end", "handles", "at the end", "flat"),
            grown,
            "Medians of each quarter; memory without what processes share.",
        ),
    ]
