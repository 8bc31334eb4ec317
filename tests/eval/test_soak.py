"""Soak: every kind of answer is judged as what it is, growth is seen, and a real server comes through."""

import asyncio
import json
import os
import subprocess
import sys
import time
from typing import Any

import httpx
import pytest

from hypic.config import ClusterConfig, EngineConfig
from hypic.eval import process_tree, soak
from hypic.eval.known_prompts import KnownPrompt
from hypic.eval.process_tree import Usage, kill_worker, usage
from hypic.eval.soak import Ask, Load, Mix, growth, run_soak
from hypic.eval.soak_config import SoakConfig

PROMPT = KnownPrompt(("a",), "b?", "hypic", (), (1,), "right")


def answer(status: int, record: Any) -> httpx.Response:
    return httpx.Response(status, json=record)


def said(text: str) -> httpx.Response:
    return answer(200, {"choices": [{"message": {"content": text}}]})


def streamed(*events: Any) -> httpx.Response:
    return httpx.Response(200, text="".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n")


def delta(text: str) -> Any:
    return {"choices": [{"delta": {"content": text}}]}


REFUSAL = {"error": {"code": "unavailable"}}
WHOLE, STREAM = Ask("whole", "/", b"{}", PROMPT), Ask("stream", "/", b"{}", PROMPT)
HOSTILE = Ask("hostile", "/", b"{")
CASES: list[tuple[Ask, httpx.Response | Exception, str]] = [
    (WHOLE, said("right"), "right"),
    (WHOLE, said("left"), "wrong"),
    (WHOLE, answer(503, REFUSAL), "refused"),
    (WHOLE, answer(500, {"error": {"code": "internal_error"}}), "failed"),
    (WHOLE, httpx.ReadError("cut"), "unexplained"),
    (WHOLE, httpx.ReadTimeout("silence"), "hung"),
    (STREAM, streamed(delta("ri"), delta("ght"), {"choices": []}), "right"),
    (STREAM, streamed(delta("ri")), "wrong"),
    (STREAM, streamed(delta("ri"), {"error": {"code": "worker_lost"}}), "failed"),
    (STREAM, answer(429, REFUSAL), "refused"),
    (HOSTILE, answer(400, {"error": {"code": "bad"}}), "refused as it must be"),
    (HOSTILE, answer(500, {"error": {"code": "internal_error"}}), "wrong"),
    (HOSTILE, said("anything"), "wrong"),
]


@pytest.mark.parametrize(("ask", "given", "ending"), CASES, ids=lambda value: getattr(value, "kind", None))
def test_each_answer_is_judged(ask: Ask, given: httpx.Response | Exception, ending: str) -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        if isinstance(given, Exception):
            raise given
        return given

    async def one() -> tuple[str, str]:
        async with httpx.AsyncClient(transport=httpx.MockTransport(respond), base_url="http://x") as http:
            return await Load("http://x", Mix([PROMPT], 0), 1.0)._one(http, ask)

    assert asyncio.run(one())[0] == ending


def test_the_mix_has_every_kind_and_is_drawn_from_its_seed() -> None:
    drawn = [Mix([PROMPT], 1).draw() for _ in range(1)] + [ask for mix in [Mix([PROMPT], 1)] for ask in [mix.draw()]]
    assert drawn[0] == drawn[1]
    mix = Mix([PROMPT], 2)
    asks = [mix.draw() for _ in range(300)]
    assert {ask.kind for ask in asks} == {"whole", "stream", "leaving", "hostile"}
    assert {ask.body for ask in asks if ask.kind == "hostile"} == {body for _, body in soak.HOSTILE}
    assert all((ask.leaves_after is not None) == (ask.kind == "leaving") for ask in asks)


def samples(grow_bytes: int = 0, grow_handles: int = 0) -> list[tuple[float, dict[str, Usage]]]:
    """A hundred seconds; the first half rises steeply, as caches that fill up do."""
    return [
        (
            float(at),
            {"server": Usage(1, 10**8 * min(at, 50) + grow_bytes * at, 40 + grow_handles * at // 10)},
        )
        for at in range(100)
    ]


@pytest.mark.parametrize(
    ("taken", "flat"),
    [
        (samples(), True),
        (samples(grow_bytes=1024), True),
        (samples(grow_bytes=8 * 10**6), False),
        (samples(grow_handles=6), False),
    ],
)
def test_growth_in_the_second_half_is_seen(taken: Any, flat: bool) -> None:
    assert growth(taken, 100.0)["server"]["flat"] == flat


def test_a_run_too_short_to_tell_does_not_pass() -> None:
    load = Load("http://x", Mix([PROMPT], 0), 60.0)
    found: dict[str, Any] = {"samples": samples()[:2], "harms": [], "leaks": {}}
    assert not soak._results(load, found, SoakConfig())["passed"]


def test_processes_are_found_by_role_and_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "ROLES", {"combine": sys.executable, "scatter": "none"})
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        found = usage(os.getpid())
        assert found["server"].processes == 1
        assert found["combine"].processes >= 1
        assert found["combine"].rss_bytes > 0
        assert found["scatter"] == Usage(0, 0, 0)
        random = type(
            "First", (), {"choice": staticmethod(lambda found: next(f for f in found if f[1].pid == sleeper.pid))}
        )
        assert kill_worker(os.getpid(), random()) == "combine"  # type: ignore[arg-type]
        assert sleeper.wait(timeout=10) == -9
    finally:
        sleeper.kill()


@pytest.mark.cluster
def test_a_real_server_comes_through() -> None:
    began = time.monotonic()
    cluster = ClusterConfig(scatter_workers=1)
    results = run_soak(EngineConfig(threads=1), cluster, SoakConfig(minutes=0.15, faults=0, prompts=6)).results
    assert time.monotonic() - began > 9
    counted = ("wrong_answers", "unexplained_errors", "hung", "leaks")
    assert {name: results[name] for name in counted} == dict.fromkeys(counted, 0), results["what_was_wrong"]
    assert results["endings"]["right"] > 5
    assert set(results["growth"]) == {"server", "combine", "scatter"}
