"""The requests of one HTTP call on their way: started together, heard as one, stopped as one."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from hypic.errors import DeadlineError
from hypic.request import TokenLogprob, TokenOutput
from hypic.router.bodies.shared import PromptTokensDetails, Report, UsageBody
from hypic.router.dispatcher import Dispatcher
from hypic.router.observation import Run
from hypic.router.record import RequestRecord

Outputs = AsyncGenerator[TokenOutput, None]


@dataclass
class Call:
    """Requests whose first tokens are there: from now on it is a 200. outputs: of which request, and what."""

    id: str
    created: int
    began: float
    records: list[RequestRecord]
    outputs: AsyncGenerator[tuple[int, TokenOutput], None]

    def reports(self) -> list[Report]:
        """What `explain` returns."""
        found = []
        for record in self.records:
            assert record.plan is not None, record
            found.append(Report(arm=record.plan.arm, plan=record.plan.as_dict(), timings=record.timings()))
        return found


@dataclass
class AnswerSoFar:
    """What one choice has said."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    last: TokenOutput | None = None

    def add(self, output: TokenOutput) -> None:
        """The next output of this choice."""
        self.text += output.text
        self.logprobs += output.logprobs
        self.last = output
        if output.token_id is not None:
            self.token_ids.append(output.token_id)


@dataclass
class Tally:
    """Usage of all requests of a call, and what each choice has said. choices: of each request."""

    choices: int
    answers: dict[int, AnswerSoFar] = field(default_factory=dict)
    _last: dict[int, TokenOutput] = field(default_factory=dict)

    def add(self, number: int, output: TokenOutput) -> int:
        """An output of request `number`. Returns the index of its choice in the whole answer."""
        index = number * self.choices + output.choice
        self.answers.setdefault(index, AnswerSoFar()).add(output)
        self._last[number] = output
        return index

    def usage(self) -> UsageBody:
        """Of all requests together."""
        usages = [output.usage for output in self._last.values()]
        prompt, answers = sum(u.prompt_tokens for u in usages), sum(u.completion_tokens for u in usages)
        cached = PromptTokensDetails(cached_tokens=sum(u.cached_tokens for u in usages))
        total = prompt + answers
        return UsageBody(
            prompt_tokens=prompt, completion_tokens=answers, total_tokens=total, prompt_tokens_details=cached
        )


async def start(dispatcher: Dispatcher, runs: Sequence[Run], began: float, timeout_seconds: float | None) -> Call:
    """Run what was begun up to its first tokens, so that what goes wrong before has a status of its own.

    began: when the call came in, by time.perf_counter. Raises DeadlineError `timeout_seconds` after that, here or out
    of the outputs.
    """
    streams = [run.outputs(dispatcher) for run in runs]
    ends = None
    if timeout_seconds is not None:
        left = timeout_seconds - (time.perf_counter() - began)
        ends = asyncio.get_running_loop().time() + left
    outputs = _together(streams, ends)
    firsts: list[tuple[int, TokenOutput]] = []
    try:
        while len({number for number, _ in firsts}) < len(runs):
            firsts.append(await anext(outputs))
    except BaseException:
        await outputs.aclose()
        raise
    records = [run.record for run in runs]
    return Call(runs[0].request.request_id, int(time.time()), began, records, _resumed(firsts, outputs))


async def _resumed(
    firsts: list[tuple[int, TokenOutput]], rest: AsyncGenerator[tuple[int, TokenOutput], None]
) -> AsyncGenerator[tuple[int, TokenOutput], None]:
    try:
        for first in firsts:
            yield first
        async for output in rest:
            yield output
    finally:
        await rest.aclose()


async def _together(streams: Sequence[Outputs], ends: float | None) -> AsyncGenerator[tuple[int, TokenOutput], None]:
    """Outputs of all streams as they come. Closing it, or a fault of one, closes all. ends: by the loop's clock."""
    pending = {asyncio.ensure_future(anext(stream)): number for number, stream in enumerate(streams)}
    try:
        while pending:
            left = None if ends is None else max(0.0, ends - asyncio.get_running_loop().time())
            done, _ = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise DeadlineError("the request's own timeout is over: ask for less, or allow more time")
            for task in done:
                number = pending.pop(task)
                try:
                    output = task.result()
                except StopAsyncIteration:
                    continue
                pending[asyncio.ensure_future(anext(streams[number]))] = number
                yield number, output
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for stream in streams:
            await stream.aclose()
