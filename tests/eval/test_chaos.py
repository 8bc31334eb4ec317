"""Chaos: what goes wrong is counted as what it was, and a real cluster under faults comes through."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hypic.config import EngineConfig
from hypic.engine.engine import Engine
from hypic.errors import GenerationError, HypicError, UnavailableError
from hypic.eval import chaos, known_prompts
from hypic.eval.chaos import Load, held_of, run_chaos, under_faults
from hypic.eval.chaos_config import ChaosConfig
from hypic.eval.known_prompts import ANSWER_TOKENS, KnownPrompt
from hypic.workers.ports import WorkerStats

PROMPT = KnownPrompt(("a",), "b?", "full", (SimpleNamespace(),), (7, 8), "x")  # type: ignore[arg-type]
Answer = Callable[[int], AsyncGenerator[Any, None]]


class FakeDispatcher:
    """Answers by a function of how often it was asked."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.asked = answer, 0

    def generate(self, request: Any) -> AsyncGenerator[Any, None]:
        self.asked += 1
        return self.answer(self.asked)


async def saying(*token_ids: int, then: Exception | None = None, seconds: float = 0.0) -> AsyncGenerator[Any, None]:
    await asyncio.sleep(seconds)
    for token_id in token_ids:
        yield SimpleNamespace(token_id=token_id)
    if then:
        raise then


def loaded(monkeypatch: pytest.MonkeyPatch, answer: Answer, requests: int = 1) -> Load:
    monkeypatch.setattr(chaos, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(chaos, "LEAVING_SHARE", 0.0)
    monkeypatch.setattr(KnownPrompt, "request", lambda self, request_id, salt: request_id)
    config = ChaosConfig(requests=requests, every=1, clients=2)
    return Load(FakeDispatcher(answer), [PROMPT], config)  # type: ignore[arg-type]


ENDINGS: dict[str, Answer] = {
    "right": lambda n: saying(7, 8),
    "wrong": lambda n: saying(7, 9),
    "failed": lambda n: saying(7, then=GenerationError("broke off")),
    "fault": lambda n: saying(then=KeyError("x")),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_each_ending_is_told_apart(monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    load = loaded(monkeypatch, ENDINGS[ending])
    asyncio.run(load.client())
    assert [outcome.ending for outcome in load.outcomes] == [ending]
    results = chaos._results(load, [], {})
    assert results["passed"] == (ending in ("right", "failed"))
    assert results["wrong_answers"] == (ending == "wrong")


def test_a_short_answer_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    load = loaded(monkeypatch, lambda n: saying(7))
    asyncio.run(load.client())
    assert [outcome.ending for outcome in load.outcomes] == ["wrong"]


def test_who_is_refused_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    load = loaded(monkeypatch, lambda n: saying(7, 8) if n > 3 else saying(then=UnavailableError("not now")))
    asyncio.run(load.client())
    assert [outcome.ending for outcome in load.outcomes] == ["right"]
    assert load.refusals == {"unavailable": 3}


def test_clients_that_leave_are_neither_right_nor_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    load = loaded(monkeypatch, lambda n: saying(7, 9, seconds=5.0))
    monkeypatch.setattr(chaos, "LEAVING_SHARE", 1.0)
    asyncio.run(load.client())
    assert [outcome.ending for outcome in load.outcomes] == ["left"]


def test_a_request_that_hangs_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    load = loaded(monkeypatch, lambda n: saying(7, 8, seconds=60.0))
    monkeypatch.setattr(chaos, "HANG_SECONDS", 0.2)
    monkeypatch.setattr(chaos, "FAULTS", {})
    asyncio.run(under_faults(None, load, lambda done: None))  # type: ignore[arg-type]
    results = chaos._results(load, [], {})
    assert results["hung"] == 1
    assert not results["passed"]


def test_faults_come_in_a_drawn_order_and_recovery_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(
        chaos, "FAULTS", {name: lambda cluster, rng, name=name: done.append(name) for name in ("a", "b", "c")}
    )
    load = loaded(monkeypatch, lambda n: saying(7, 8, seconds=0.05), requests=12)
    harms = asyncio.run(under_faults(None, load, lambda done: None))  # type: ignore[arg-type]
    assert [harm.name for harm in harms] == done
    assert len(set(done[:3])) == 3, "each once before any comes again"
    assert all(harm.recovery_seconds is not None and harm.recovery_seconds >= 0.05 for harm in harms)


def test_what_is_held_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    held = held_of([WorkerStats("combine-0", "combine", leases=2), WorkerStats("scatter-0", "scatter")])
    assert held == {"combine-0 leases": 2}
    results = chaos._results(loaded(monkeypatch, ENDINGS["right"]), [], held)
    assert results["leaks"] == 2
    assert not results["passed"]


def test_known_prompts_have_the_engines_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(EngineConfig(threads=1))
    found = known_prompts.known_prompts(engine, 6, seed=3)
    assert len({prompt.documents for prompt in found}) == 6
    for prompt in found:
        outputs = list(engine.generate(prompt.request("again", "tenant")))
        assert tuple(o.token_id for o in outputs if o.token_id is not None) == prompt.token_ids
        assert len(prompt.token_ids) == ANSWER_TOKENS
    monkeypatch.setattr(known_prompts, "MARGIN_NATS", 1e9)
    with pytest.raises(HypicError, match="hang on rounding"):
        known_prompts.known_prompts(engine, 1, seed=3)


@pytest.mark.cluster
def test_a_real_cluster_comes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("combine worker killed", "scatter worker killed", "cache dropped")
    monkeypatch.setattr(chaos, "FAULTS", {name: chaos.FAULTS[name] for name in names})
    results = run_chaos(EngineConfig(), ChaosConfig(requests=24, every=6, prompts=6)).results
    assert results["passed"], results
    assert results["requests"] == 24
    assert results["faults"] >= 2
    assert results["endings"]["right"] > 10
