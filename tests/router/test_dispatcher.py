"""The dispatcher over workers in this process: who builds what, once, and the right answer whatever fails."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from hypic.engine.engine import Engine
from hypic.errors import PromptTooLongError, UnavailableError
from hypic.request import GenerationRequest, TokenOutput
from hypic.router.dispatcher import Dispatcher
from hypic.router.record import RequestRecord
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
