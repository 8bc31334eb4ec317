"""What a combine worker tells routers and other workers of its cache, and what it does when a router falls silent."""

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hypic.arms import ARMS
from hypic.config import EngineConfig
from hypic.prompt import chat_segments
from hypic.protocol import decode_entry
from hypic.request import GenerationRequest, SamplingParams
from hypic.segment import Document, Message
from hypic.tokenizer import PromptTokenizer
from hypic.workers import sharing
from hypic.workers.combine import CombineWorker
from hypic.workers.ports import Changes, Opened, SegmentGoneError, Tokens
from hypic.workers.sharing import CALLER_SECONDS, Callers

TEXTS = ("the blue key is in the red box by the door", "a second text of about the same length, or longer")


@pytest.fixture
def worker(tiny_checkpoint: Path) -> Iterator[CombineWorker]:
    worker = CombineWorker("combine-0", EngineConfig(model=tiny_checkpoint, threads=1))
    yield worker
    worker.stop()


@pytest.fixture(scope="module")
def request_(tiny_checkpoint: Path) -> GenerationRequest:
    segments = chat_segments(
        PromptTokenizer.load(tiny_checkpoint), [Message("user", "what?")], [Document(text) for text in TEXTS]
    )
    return GenerationRequest("r", segments, ARMS["hypic"], SamplingParams(max_tokens=2000, ignore_eos=True))


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


async def warm(worker: CombineWorker, request: GenerationRequest) -> list[bytes]:
    """Have a worker build a request's documents; their keys."""
    keys = []
    async for message in worker.generate(replace(request, build_only=True)):
        if isinstance(message, Opened):
            keys = [task.key for task in message.tasks]
            await worker.build_here(keys)
    return keys


def test_changes_are_told_in_order_and_add_up_to_what_is_held(
    worker: CombineWorker, request_: GenerationRequest
) -> None:
    async def told() -> Any:
        waiting = asyncio.ensure_future(worker.changes(0, 0))
        unknown = await waiting
        following = asyncio.ensure_future(worker.changes(unknown.epoch, unknown.after))
        keys = await warm(worker, request_)
        first = await following
        rest = await worker.changes(first.epoch, first.after + len(first.changes)) if len(first.changes) < 2 else None
        holdings = await worker.holdings()
        await worker.flush()
        gone = await worker.changes(holdings.epoch, holdings.sequence)
        return unknown, keys, (*first.changes, *(rest.changes if rest else ())), holdings, gone, await worker.holdings()

    unknown, keys, added, holdings, gone, empty = run(told())
    assert unknown.changes == ()
    assert [change.key for change in added] == keys
    assert set(holdings.held) == set(added)
    assert {change.tier for change in added} == {"device"}
    assert {change.key for change in gone.changes} == set(keys)
    assert {change.tier for change in gone.changes} == {""}
    assert (empty.sequence, empty.held) == (gone.after + len(gone.changes), ())


def test_without_changes_the_answer_comes_all_the_same(worker: CombineWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "FOLLOW_SECONDS", 0.05)

    async def asked() -> Any:
        known = await worker.changes(0, 0)
        return known, await worker.changes(known.epoch, known.after)

    known, answer = run(asked())
    assert answer == Changes(known.epoch, known.after)


def test_a_fetched_segment_is_the_one_that_is_held(worker: CombineWorker, request_: GenerationRequest) -> None:
    async def fetched() -> Any:
        keys = await warm(worker, request_)
        built = [await worker.fetch(key) for key in keys]
        leases = (await worker.stats()).leases
        await worker.flush()
        with pytest.raises(SegmentGoneError, match="not on combine-0 any more"):
            await worker.fetch(keys[0])
        engine = worker._engine.started.result()
        return keys, built, leases, engine.build(engine.warm(list(request_.segments[1:-1])))

    keys, built, leases, own = run(fetched())
    assert leases == 0
    for key, segment, entry in zip(keys, built, own, strict=True):
        arrived = decode_entry(segment.payload)
        assert (arrived.key, segment.worker) == (key, "combine-0")
        for name, tensor in entry.tensors.items():
            assert torch.equal(arrived.tensors[name], tensor), name


def test_requests_of_a_router_that_falls_silent_are_dropped(
    worker: CombineWorker, request_: GenerationRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "CALLER_SECONDS", 0.1)
    monkeypatch.setattr("hypic.workers.combine.FOLLOW_SECONDS", 0.02)

    async def orphaned() -> Any:
        messages = [m async for m in worker.generate(request_, "router-1") if isinstance(m, Tokens)]
        return messages, await worker.stats()

    messages, stats = run(orphaned())
    assert not any(message.ends_request for message in messages)
    assert (stats.leases, stats.open_requests) == (0, 0)


def test_who_is_silent_for_too_long_is_gone_and_nobody_else() -> None:
    now = [0.0]
    callers = Callers(lambda: now[0])
    callers.opened("a", "router-1")
    callers.opened("b", "router-2")
    callers.opened("c", "")
    now[0] = CALLER_SECONDS - 1
    callers.heard("router-2")
    assert callers.orphans() == []
    now[0] = CALLER_SECONDS + 1
    assert callers.orphans() == ["a"]
    callers.closed("a")
    assert callers.orphans() == []
    callers.heard("router-1")
    callers.opened("d", "router-1")
    assert callers.orphans() == []
