"""The dispatcher over workers in this process: who builds what, once, and the right answer whatever fails."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from hypic.config import EngineConfig
from hypic.engine.engine import Engine
from hypic.errors import PromptTooLongError, UnavailableError
from hypic.request import GenerationRequest, TokenOutput
from hypic.router import fleet
from hypic.router.dispatcher import Dispatcher
from hypic.router.record import RequestRecord
from hypic.workers import sharing
from hypic.workers.combine import CombineWorker
from hypic.workers.ports import WorkerLostError

DOCUMENTS = tuple(f"document number {number} says {'so ' * (10 + 7 * number)}and no more" for number in range(5))


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


async def outputs_of(
    dispatcher: Dispatcher, request: GenerationRequest, record: RequestRecord | None = None
) -> list[TokenOutput]:
    return [output async for output in dispatcher.generate(request, record)]


def ids(outputs: Any) -> list[int | None]:
    return [output.token_id for output in outputs]


def test_cold_then_shuffled_then_beside_new_ones(in_process: Any, make_request: Any, reference: Engine) -> None:
    order = [DOCUMENTS[3], "something new that was never seen before", DOCUMENTS[0]]

    async def three() -> Any:
        dispatcher = Dispatcher(in_process.scatter, in_process.combine[:1])
        await dispatcher.connect()
        answers = []
        for name, texts in (("cold", DOCUMENTS), ("shuffled", DOCUMENTS[::-1]), ("mixed", order)):
            record = RequestRecord()
            request = make_request(name, *texts)
            answers.append((request, await outputs_of(dispatcher, request, record), record))
        return answers, await dispatcher.stats()

    answers, stats = run(three())
    for request, outputs, record in answers:
        assert ids(outputs) == ids(reference.generate(request))
        assert record.plan == outputs[-1].plan
        assert record.ttft_seconds <= record.total_seconds
    cold, shuffled, mixed = (record for _, _, record in answers)
    assert sum(cold.segments_by_worker.values()) == 5
    assert set(cold.segments_by_worker) == {"scatter-0", "scatter-1"}
    assert cold.dispatch_seconds > 0
    assert cold.plan.cached_tokens == 0
    assert {row.key for row in shuffled.plan.rows} == {row.key for row in cold.plan.rows}
    assert not shuffled.builds
    template_tokens = cold.plan.rows[0].tokens  # remembered as an exact prefix
    assert shuffled.plan.cached_tokens == template_tokens + cold.plan.built_tokens - 5 * 8
    assert [build.tokens for build in mixed.builds] == [len("something new that was never seen before\n\n")]
    assert all(worker.leases == 0 for worker in stats)


def test_the_same_cold_documents_at_once_are_built_once(in_process: Any, make_request: Any, reference: Engine) -> None:
    """By two requests on each of two combine workers."""

    async def at_once() -> Any:
        dispatcher = Dispatcher(in_process.scatter, in_process.combine)
        await dispatcher.connect()
        requests = [make_request(f"r{number}", *DOCUMENTS) for number in range(4)]
        answers = await asyncio.gather(*(outputs_of(dispatcher, request) for request in requests))
        return answers, await dispatcher.stats()

    answers, stats = run(at_once())
    expected = ids(reference.generate(make_request("reference", *DOCUMENTS)))
    assert [ids(outputs) for outputs in answers] == [expected] * 4
    assert sum(len(port.tasks) for port in in_process.scatter) == 5
    assert [worker.requests for worker in stats[:2]] == [2, 2]
    assert all(worker.leases == 0 for worker in stats)


def test_requests_go_where_their_documents_are(in_process: Any, make_request: Any) -> None:
    async def twice() -> Any:
        dispatcher = Dispatcher(in_process.scatter, in_process.combine)
        await dispatcher.connect()
        records = []
        for name, texts in (("a", DOCUMENTS[:2]), ("b", DOCUMENTS[2:]), ("c", DOCUMENTS[1::-1]), ("d", DOCUMENTS[3:])):
            records.append(RequestRecord())
            await outputs_of(dispatcher, make_request(name, *texts), records[-1])
        return records

    first, second, third, fourth = run(twice())
    assert first.combine_worker == third.combine_worker
    assert second.combine_worker == fourth.combine_worker != first.combine_worker
    assert not third.builds
    assert not fourth.builds


async def _until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not reached():
            await asyncio.sleep(0.01)


def _agrees(dispatcher: Dispatcher, worker: CombineWorker) -> bool:
    """Whether the directory says what a worker holds."""
    held = worker._engine.started.result().segments.held()[1]
    return dispatcher.fleet.directory.held_by(worker.name) == {change.key: change.tier for change in held}


def test_a_router_that_starts_anew_finds_what_the_workers_hold(in_process: Any, make_request: Any) -> None:
    """And what goes is noticed."""

    async def anew() -> Any:
        first = Dispatcher(in_process.scatter, in_process.combine)
        await first.connect()
        before = RequestRecord()
        await outputs_of(first, make_request("a", *DOCUMENTS[:3]), before)
        await first.close()
        second = Dispatcher(in_process.scatter, in_process.combine)
        await second.connect()
        holder = next(worker for worker in in_process.combine if worker.name == before.combine_worker)
        await _until(lambda: len(second.fleet.directory.held_by(holder.name)) == 3)
        assert all(_agrees(second, worker) for worker in in_process.combine)
        after = RequestRecord()
        await outputs_of(second, make_request("b", *DOCUMENTS[2::-1]), after)
        await holder.flush()
        await _until(lambda: not second.fleet.directory.held_by(holder.name))
        await second.close()
        return before, after

    before, after = run(anew())
    assert (after.combine_worker, after.builds) == (before.combine_worker, [])


def test_what_a_peer_holds_is_sent_from_there_and_not_built_again(
    in_process: Any, make_request: Any, reference: Engine
) -> None:
    async def pulled() -> Any:
        dispatcher = Dispatcher(in_process.scatter, in_process.combine)
        await dispatcher.connect()
        first = RequestRecord()
        await outputs_of(dispatcher, make_request("a", *DOCUMENTS[:3]), first)
        holder = next(worker for worker in in_process.combine if worker.name == first.combine_worker)
        await _until(lambda: _agrees(dispatcher, holder))
        state = next(w for w in dispatcher.fleet.combine if w.port is holder)
        state.open_requests += 5  # it has too much to do
        for _ in range(64):
            dispatcher.transfers.add(100, 1000, 0.0)  # the segments are so short that only this makes them worth it
        records = [RequestRecord(), RequestRecord()]
        asked = [make_request("b", *DOCUMENTS[2::-1], DOCUMENTS[4]), make_request("c", DOCUMENTS[3], DOCUMENTS[0])]
        found = dispatcher.fleet.directory.holders
        answers = [await outputs_of(dispatcher, asked[0], records[0])]
        builds = sum(len(port.tasks) for port in in_process.scatter)
        stale = {key: dict(found(key)) for key in map(bytes.fromhex, (b.key for b in records[0].builds))}
        for worker in in_process.combine:
            await worker.flush()
        dispatcher.fleet.directory.holders = lambda key: stale.get(key, {})  # type: ignore[method-assign]
        answers.append(await outputs_of(dispatcher, asked[1], records[1]))
        stats = await dispatcher.stats()
        await dispatcher.close()
        return holder.name, asked, answers, records, builds, stats

    holder, asked, answers, records, builds, stats = run(pulled())
    for request, outputs in zip(asked, answers, strict=True):
        assert ids(outputs) == ids(reference.generate(request))
    assert records[0].combine_worker != holder
    assert [build.worker for build in records[0].builds if build.pulled] == [holder] * 3
    assert sum(records[0].segments_by_worker.values()) == 1
    assert builds == 4
    late = {build.cause: build for build in records[1].builds}
    assert set(late) == {"", "gone"}  # the one that nobody had, and the one that was believed to be there
    assert "not on" in late["gone"].fallback
    assert all(worker.leases == 0 for worker in stats)


def test_a_build_that_is_quicker_than_a_transfer_is_preferred(in_process: Any, make_request: Any) -> None:
    async def slow() -> Any:
        dispatcher = Dispatcher(in_process.scatter, in_process.combine)
        await dispatcher.connect()
        first = RequestRecord()
        await outputs_of(dispatcher, make_request("a", *DOCUMENTS[:3]), first)
        holder = next(worker for worker in in_process.combine if worker.name == first.combine_worker)
        await _until(lambda: _agrees(dispatcher, holder))
        next(w for w in dispatcher.fleet.combine if w.port is holder).open_requests += 5
        for _ in range(64):
            dispatcher.transfers.add(100, 1000, 1000.0)
        record = RequestRecord()
        await outputs_of(dispatcher, make_request("b", *DOCUMENTS[:3]), record)
        await dispatcher.close()
        return record

    record = run(slow())
    assert len(record.builds) == 3
    assert not any(build.pulled for build in record.builds)


class StillCombine(CombineWorker):
    """A combine worker that can stand still: it answers nothing, and nothing that it was asked is done."""

    still = False

    async def changes(self, epoch: int, sequence: int, caller: str = "") -> Any:
        await self._moves()
        return await super().changes(epoch, sequence, caller)

    async def hello(self) -> Any:
        await self._moves()
        return await super().hello()

    async def generate(self, request: GenerationRequest, caller: str = "") -> Any:
        async for message in super().generate(request, caller):
            await self._moves()
            yield message

    async def _moves(self) -> None:
        while self.still:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_combine_worker_that_stands_still_is_given_up(
    moment: str,
    in_process: Any,
    engine_config: EngineConfig,
    make_request: Any,
    reference: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the first token another takes over; after it the client is told."""
    monkeypatch.setattr(fleet, "SILENCE_SECONDS", 0.3)
    monkeypatch.setattr(sharing, "FOLLOW_SECONDS", 0.05)
    request = make_request("r", question="no documents", tokens=40)
    worker = StillCombine("combine-9", engine_config)

    async def wedged() -> Any:
        dispatcher = Dispatcher([], [worker, in_process.combine[0]])
        await dispatcher.connect()
        heard, record = [], RequestRecord()
        worker.still = moment == "before"
        try:
            async for output in dispatcher.generate(request, record):
                heard.append(output)
                worker.still = True
        except WorkerLostError:
            assert moment == "after"
        assert not dispatcher.alive["combine-9"][1]
        worker.still = False
        await _until(lambda: dispatcher.alive["combine-9"][1])
        stats = await dispatcher.stats()
        await dispatcher.close()
        return heard, record, stats

    heard, record, stats = run(wedged())
    worker.stop()
    if moment == "before":
        assert ids(heard) == ids(reference.generate(request))
        assert (record.attempts, record.combine_worker) == (2, "combine-0")
    assert all((found.leases, found.open_requests) == (0, 0) for found in stats)


def test_broken_scatter_workers_cost_time_not_answers(in_process: Any, make_request: Any, reference: Engine) -> None:
    async def broken() -> Any:
        dispatcher = Dispatcher(in_process.scatter, in_process.combine[:1])
        await dispatcher.connect()
        for port in in_process.scatter:
            port.broken = True
        first, second, third = RequestRecord(), RequestRecord(), RequestRecord()
        outputs = await outputs_of(dispatcher, make_request("a", *DOCUMENTS[:3]), first)
        await outputs_of(dispatcher, make_request("b", DOCUMENTS[3]), second)
        ill = await dispatcher.health()
        for port in in_process.scatter:
            port.broken = False
        await asyncio.sleep(0.2)
        await outputs_of(dispatcher, make_request("c", DOCUMENTS[4]), third)
        return outputs, (first, second, third), ill, await dispatcher.health()

    outputs, (first, second, third), ill, well = run(broken())
    assert ids(outputs) == ids(reference.generate(make_request("a", *DOCUMENTS[:3])))
    assert all("no answer" in build.fallback for build in first.builds)
    assert second.segments_by_worker == {"combine-0": 1}  # nobody was asked
    assert ill.serving
    assert ill.workers["scatter-0"] == "lost"
    assert set(third.segments_by_worker) <= {"scatter-0", "scatter-1"}
    assert set(well.workers.values()) == {"ok"}


@pytest.mark.parametrize("policy", ["round_robin", "local"])
def test_other_policies_give_the_same_answer(
    policy: Any, in_process: Any, make_request: Any, reference: Engine
) -> None:
    async def placed() -> Any:
        dispatcher = Dispatcher(in_process.scatter, in_process.combine[:1], policy)
        await dispatcher.connect()
        record = RequestRecord()
        return await outputs_of(dispatcher, make_request("r", *DOCUMENTS), record), record

    outputs, record = run(placed())
    assert ids(outputs) == ids(reference.generate(make_request("r", *DOCUMENTS)))
    workers = {"combine-0"} if policy == "local" else {"scatter-0", "scatter-1"}
    assert set(record.segments_by_worker) == workers
    assert record.dispatch_seconds > 0


def test_a_closed_stream_stops_the_work(in_process: Any, make_request: Any) -> None:
    async def closed() -> Any:
        dispatcher = Dispatcher(in_process.scatter, in_process.combine[:1])
        await dispatcher.connect()
        stream = dispatcher.generate(make_request("r", *DOCUMENTS, tokens=2000))
        await anext(stream)
        await stream.aclose()
        await asyncio.sleep(0.05)
        return await dispatcher.stats()

    stats = run(closed())
    assert (stats[0].leases, stats[0].open_requests) == (0, 0)


def test_a_too_long_prompt_reaches_no_scatter_worker(in_process: Any, make_request: Any) -> None:
    async def refused() -> None:
        dispatcher = Dispatcher(in_process.scatter, in_process.combine[:1])
        await dispatcher.connect()
        with pytest.raises(PromptTooLongError):
            await outputs_of(dispatcher, make_request("r", "x" * 3000, "y" * 3000))

    run(refused())
    assert not any(port.tasks for port in in_process.scatter)


class LostCombine:
    """A combine worker whose process is gone, after `tokens` tokens of another's stream."""

    def __init__(self, name: str, stream: Any = None, tokens: int = 0) -> None:
        self.name, self._stream, self._tokens = name, stream, tokens

    async def generate(self, request: GenerationRequest) -> Any:
        if self._stream is not None:
            messages = self._stream(request)
            for _ in range(1 + self._tokens):
                yield await anext(messages)
            await messages.aclose()
        raise WorkerLostError(f"{self.name} is gone")

    async def hello(self) -> Any:
        raise WorkerLostError(f"{self.name} is gone")

    async def stats(self) -> Any:
        raise WorkerLostError(f"{self.name} is gone")

    def abort(self, request_id: str) -> None:
        """Nobody is there to hear it."""


def test_a_lost_combine_worker_is_replaced_before_the_first_token(
    in_process: Any, make_request: Any, reference: Engine
) -> None:
    request = make_request("r", question="no documents")

    async def lost() -> Any:
        dispatcher = Dispatcher([], [LostCombine("combine-9"), in_process.combine[0]])
        record = RequestRecord()
        outputs = await outputs_of(dispatcher, request, record)
        health = await dispatcher.health()
        await dispatcher.close()
        return outputs, record, health

    outputs, record, health = run(lost())
    assert ids(outputs) == ids(reference.generate(replace(request, request_id="again")))
    assert (record.attempts, record.combine_worker) == (2, "combine-0")
    assert health.serving
    assert "gone" in health.workers["combine-9"]


def test_without_combine_workers_requests_are_refused_at_once(make_request: Any) -> None:
    async def none_left() -> Any:
        dispatcher = Dispatcher([], [LostCombine("combine-9")])
        for _ in range(2):
            with pytest.raises(UnavailableError, match="no combine worker") as fault:
                await outputs_of(dispatcher, make_request("r"))
            assert fault.value.retry_after_seconds > 0
        health = await dispatcher.health()
        await dispatcher.close()
        return health

    assert not run(none_left()).serving


def test_a_combine_worker_lost_in_mid_answer_is_an_error(in_process: Any, make_request: Any) -> None:
    heard: list[TokenOutput] = []

    async def lost() -> None:
        torn = LostCombine("combine-9", in_process.combine[0].generate, tokens=3)
        dispatcher = Dispatcher([], [torn, in_process.combine[1]])
        try:
            async for output in dispatcher.generate(make_request("r", question="no documents")):
                heard.append(output)
        finally:
            await dispatcher.close()

    with pytest.raises(WorkerLostError):
        run(lost())
    assert len(heard) == 3
