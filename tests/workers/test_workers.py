"""Workers as plain objects in one process: streams, deliveries, and what happens when a delivery does not come."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hypic.arms import ARMS
from hypic.config import EngineConfig
from hypic.engine.engine import Engine
from hypic.errors import DeadlineError, OverloadedError, PromptTooLongError, UnavailableError
from hypic.prompt import chat_segments
from hypic.protocol import decode_entry
from hypic.request import GenerationRequest, SamplingParams
from hypic.segment import Document, Message
from hypic.workers import combine as combine_module
from hypic.workers.combine import CombineWorker
from hypic.workers.ports import BuiltSegment, Delivery, Opened, Tokens
from hypic.workers.scatter import ScatterWorker

Result = Callable[[Any], Awaitable[BuiltSegment]]


@pytest.fixture(scope="module")
def config(tiny_checkpoint: Path) -> EngineConfig:
    return EngineConfig(model=tiny_checkpoint, threads=1)


@pytest.fixture(scope="module")
def scatter(config: EngineConfig) -> ScatterWorker:
    return ScatterWorker("scatter-0", config)


@pytest.fixture(scope="module")
def engine(config: EngineConfig) -> Engine:
    return Engine(config)


@pytest.fixture
def worker(config: EngineConfig) -> Iterator[CombineWorker]:
    worker = CombineWorker("combine-0", config)
    yield worker
    worker.stop()


def request_of(engine: Engine, name: str, *texts: str, question: str = "what?", tokens: int = 6) -> GenerationRequest:
    segments = chat_segments(engine.tokenizer, [Message("user", question)], [Document(text) for text in texts])
    return GenerationRequest(name, segments, ARMS["hypic"], SamplingParams(max_tokens=tokens, ignore_eos=True))


TEXTS = ("the blue key is in the red box by the door", "a second text of about the same length, or longer")


def reference_ids(config: EngineConfig, request: GenerationRequest) -> list[int | None]:
    return [output.token_id for output in Engine(config).generate(request)]


async def finish(worker: CombineWorker, request: GenerationRequest, result: Result, patience: float) -> Any:
    """Run a request whose cold segments are delivered from `result`."""
    tokens: list[Tokens] = []
    deliveries: list[Delivery] = []
    async for message in worker.generate(request):
        if isinstance(message, Opened):
            waits = [worker.deliver(task.key, [result(task)], patience) for task in message.tasks]
            deliveries = list(await asyncio.gather(*waits))
        else:
            tokens.append(message)
    return tokens, deliveries


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


def test_a_scatter_worker_builds_what_an_engine_builds(scatter: ScatterWorker, engine: Engine) -> None:
    task = engine.warm(list(request_of(engine, "r", *TEXTS).segments[1:-1]))[0]
    built = scatter.build(task)
    arrived, own = decode_entry(built.payload), engine.build([task])[0]
    for name, tensor in own.tensors.items():
        assert torch.equal(arrived.tensors[name], tensor), name
    assert built.worker == "scatter-0"
    assert scatter.hello().cost is not None
    assert scatter.stats().built >= 1


def test_delivered_segments_give_the_engines_answer(
    worker: CombineWorker, scatter: ScatterWorker, engine: Engine, config: EngineConfig
) -> None:
    request = request_of(engine, "r1", *TEXTS)

    async def scattered(task: Any) -> BuiltSegment:
        return scatter.build(task)

    async def both() -> Any:
        cold = await finish(worker, request, scattered, 30)
        warm = await finish(worker, replace(request, request_id="r2"), scattered, 30)
        return cold, warm, await worker.stats()

    (cold, deliveries), (warm, none), stats = run(both())
    assert [message.token_id for message in cold] == reference_ids(config, request)
    assert [message.token_id for message in warm] == [message.token_id for message in cold]
    assert [delivery.fallback for delivery in deliveries] == ["", ""]
    assert not none
    assert (cold[0].usage.cached_tokens, warm[0].usage.built_tokens) == (0, 0)
    assert warm[0].usage.cached_tokens > 0
    assert cold[0].plan is not None
    assert cold[1].plan is None
    assert (stats.leases, stats.open_requests, stats.delivered, stats.fallbacks) == (0, 0, 2, 0)


async def _dead(task: Any) -> BuiltSegment:
    raise RuntimeError("the process is gone")


async def _silent(task: Any) -> BuiltSegment:
    await asyncio.sleep(3600)
    raise AssertionError


def _of_another_segment(scatter: ScatterWorker) -> Result:
    async def result(task: Any) -> BuiltSegment:
        return scatter.build(replace(task, token_ids=np.roll(task.token_ids, 1)))

    return result


def _cut_short(scatter: ScatterWorker) -> Result:
    async def result(task: Any) -> BuiltSegment:
        built = scatter.build(task)
        return replace(built, payload=replace(built.payload, buffers=built.payload.buffers[:-1]))

    return result


@pytest.mark.parametrize("fault", ["dead", "silent", "another", "cut"])
def test_whatever_a_delivery_brings_the_answer_is_the_same(
    fault: str, worker: CombineWorker, scatter: ScatterWorker, engine: Engine, config: EngineConfig
) -> None:
    results = {
        "dead": _dead,
        "silent": _silent,
        "another": _of_another_segment(scatter),
        "cut": _cut_short(scatter),
    }
    request = request_of(engine, "r", *TEXTS)
    tokens, deliveries = run(finish(worker, request, results[fault], 0.2))
    assert [message.token_id for message in tokens] == reference_ids(config, request)
    assert all(delivery.fallback for delivery in deliveries)
    assert all(delivery.lost for delivery in deliveries) == (fault == "silent")


def test_segments_that_nobody_announces_are_built_here(
    worker: CombineWorker, engine: Engine, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(combine_module, "ANNOUNCE_SECONDS", 0.1)
    request = request_of(engine, "r", *TEXTS)

    async def ignore_tasks() -> list[int | None]:
        messages = [message async for message in worker.generate(request)]
        return [message.token_id for message in messages if isinstance(message, Tokens)]

    assert run(ignore_tasks()) == reference_ids(config, request)


@pytest.mark.parametrize("phase", ["opened", "waiting", "decoding"])
def test_an_abort_frees_everything(phase: str, worker: CombineWorker, engine: Engine) -> None:
    request = request_of(engine, "r", *TEXTS, tokens=2000)

    async def aborted() -> Any:
        stream = worker.generate(request)
        opened = await anext(stream)
        assert isinstance(opened, Opened)
        if phase == "waiting":
            asyncio.get_running_loop().call_later(0.1, worker.abort, "r")
        if phase == "decoding":
            await worker.build_here([task.key for task in opened.tasks])
            await anext(stream)
            worker.abort("r")
        if phase == "opened":
            await stream.aclose()
        else:
            assert not [m async for m in stream if isinstance(m, Tokens) and m.finish_reason]
        return await worker.stats()

    stats = run(aborted())
    assert (stats.leases, stats.open_requests) == (0, 0)


def test_a_refused_request_leaves_nothing(worker: CombineWorker, engine: Engine) -> None:
    request = request_of(engine, "r", "x" * 5000)

    async def refused() -> Any:
        with pytest.raises(PromptTooLongError, match="reads at most 4096"):
            await anext(worker.generate(request))
        return await worker.stats()

    stats = run(refused())
    assert (stats.leases, stats.open_requests) == (0, 0)


def test_a_fault_in_a_step_is_told_to_every_request(
    worker: CombineWorker, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_of(engine, "r", tokens=50)

    def broken(engine: Engine) -> list[Any]:
        raise RuntimeError("out of memory")

    async def fails() -> Any:
        with monkeypatch.context() as patch:
            await worker.hello()
            patch.setattr(Engine, "step", broken)
            with pytest.raises(RuntimeError, match="out of memory"):
                [message async for message in worker.generate(request)]
        again = [message async for message in worker.generate(request)]
        return again, await worker.stats()

    again, stats = run(fails())
    assert again[-1].finish_reason == "length"
    assert stats.leases == 0
    assert "out of memory" in stats.last_error


def test_cancelled_callers_do_not_harm_the_engine(worker: CombineWorker, engine: Engine) -> None:
    """Their orders are skipped, or their results dropped; the thread lives on."""
    request = request_of(engine, "r", tokens=3)

    async def cancelled() -> Any:
        await worker.hello()
        for delay in (0.0, 0.0, 0.001, 0.005):
            stream = worker.generate(request)
            task = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(delay)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await stream.aclose()
        return [message async for message in worker.generate(request)], await worker.stats()

    messages, stats = run(cancelled())
    assert messages[-1].finish_reason == "length"
    assert (stats.leases, stats.open_requests) == (0, 0)


def test_a_busy_worker_still_says_hello(worker: CombineWorker) -> None:
    """Health must not call a worker ill because its engine is in a long pass."""

    async def asked() -> float:
        await worker.hello()
        busy = worker._engine.call(lambda engine: time.sleep(1.0))
        began = time.perf_counter()
        await worker.hello()
        seconds = time.perf_counter() - began
        await asyncio.wrap_future(busy)
        return seconds

    assert run(asked()) < 0.5


def test_nobody_waits_for_an_engine_that_has_ended(worker: CombineWorker, engine: Engine) -> None:
    async def stopped() -> None:
        stream = worker.generate(request_of(engine, "r", tokens=3000))
        await anext(stream)
        worker.stop()
        with pytest.raises(UnavailableError, match="has stopped"):
            [message async for message in stream]
        with pytest.raises(UnavailableError, match="has stopped"):
            await worker.stats()
        with pytest.raises(UnavailableError, match="has stopped"):
            await worker.hello()

    run(stopped())


def test_a_model_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    worker = CombineWorker("combine-0", EngineConfig(model=tmp_path / "nowhere"))
    with pytest.raises(Exception, match="nowhere"):
        run(worker.hello())


def test_a_request_that_waits_in_vain_ends_with_its_own_time(worker: CombineWorker, engine: Engine) -> None:
    """Its segments never come, nothing else happens in the engine's thread, and still it is told."""
    request = replace(request_of(engine, "r", *TEXTS), timeout_seconds=0.2)

    async def waits() -> Any:
        with pytest.raises(DeadlineError, match="timeout is over"):
            [message async for message in worker.generate(request)]
        return await worker.stats()

    stats = run(waits())
    assert (stats.leases, stats.open_requests) == (0, 0)


def test_a_full_queue_is_refused_before_the_first_message(config: EngineConfig, engine: Engine) -> None:
    worker = CombineWorker("combine-0", replace(config, max_waiting=1))

    async def refused() -> Any:
        first = worker.generate(request_of(engine, "r1", *TEXTS))
        await anext(first)
        with pytest.raises(OverloadedError, match="full, 1 are waiting"):
            await anext(worker.generate(request_of(engine, "r2")))
        await first.aclose()
        messages = [message async for message in worker.generate(request_of(engine, "r3"))]
        return messages[-1], await worker.stats()

    last, stats = run(refused())
    worker.stop()
    assert last.finish_reason == "length"
    assert (stats.leases, stats.open_requests) == (0, 0)
