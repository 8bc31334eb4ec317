"""A client that sends when the schedule says, whether or not earlier requests are answered, and notes what comes when.

Times count from the scheduled moment, so that waiting in the client counts as waiting; how late it was is kept, and a
client that cannot keep its schedule is refused: it would measure itself.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from hypic.errors import HypicError

_TEXTLESS_TOKENS = 8
"""An answer of fewer tokens may be part of one character, and so without text."""

REQUEST_SECONDS = 300.0
"""An answer that takes longer is a failure."""


class LateClientError(HypicError):
    """The client sent later than its schedule: the rate that was asked for was not the one that was offered."""

    code = "late_client"


@dataclass
class Sample:
    """One request. Seconds by one clock, the replay's start being 0: when it was due, when it was sent, when each piece
    of text came, when the answer ended. error: "" where it ended well."""

    due_seconds: float
    sent_seconds: float = 0.0
    text_seconds: list[float] = field(default_factory=list)
    done_seconds: float = 0.0
    text: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    error: str = ""

    @property
    def lag_seconds(self) -> float:
        return self.sent_seconds - self.due_seconds

    @property
    def ttft_seconds(self) -> float:
        """From the scheduled moment to the first text."""
        return self.text_seconds[0] - self.due_seconds

    @property
    def total_seconds(self) -> float:
        return self.done_seconds - self.due_seconds


def replay(
    url: str, bodies: Sequence[bytes], due: Sequence[float], on_done: Callable[[], None] = lambda: None
) -> list[Sample]:
    """Send each body at its time, in seconds from now, and wait for all answers. A failed request is a sample with an
    error."""
    return asyncio.run(_replay(url, bodies, due, on_done))


def one_by_one(url: str, bodies: Sequence[bytes], on_done: Callable[[], None] = lambda: None) -> list[Sample]:
    """Each sent when the one before is answered: times without load."""
    return asyncio.run(_one_by_one(url, bodies, on_done))


def check_on_time(samples: Sequence[Sample], allowed_seconds: float) -> float:
    """The 99th percentile of lateness in seconds, by rank. Raises LateClientError above what is allowed."""
    lags = sorted(sample.lag_seconds for sample in samples)
    late = lags[min(len(lags) - 1, int(0.99 * len(lags)))]
    if late > allowed_seconds:
        raise LateClientError(
            f"the client sent requests up to {1000 * late:.0f} ms late, {1000 * allowed_seconds:.0f} ms are allowed: "
            "the machine is too busy for it; run it elsewhere with --url, or with fewer workers"
        )
    return late


async def _replay(url: str, bodies: Sequence[bytes], due: Sequence[float], on_done: Callable[[], None]) -> list[Sample]:
    samples = [Sample(seconds) for seconds in due]
    async with _client() as client:
        began = time.perf_counter()

        async def run(sample: Sample, body: bytes) -> None:
            await asyncio.sleep(sample.due_seconds - (time.perf_counter() - began))
            await _ask(client, url, body, sample, began)
            on_done()

        await asyncio.gather(*(run(sample, body) for sample, body in zip(samples, bodies, strict=True)))
    return samples


async def _one_by_one(url: str, bodies: Sequence[bytes], on_done: Callable[[], None]) -> list[Sample]:
    samples = []
    async with _client() as client:
        began = time.perf_counter()
        for body in bodies:
            sample = Sample(time.perf_counter() - began)
            await _ask(client, url, body, sample, began)
            samples.append(sample)
            on_done()
    return samples


def _client() -> httpx.AsyncClient:
    unbounded = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(timeout=httpx.Timeout(REQUEST_SECONDS), limits=unbounded)


async def _ask(client: httpx.AsyncClient, url: str, body: bytes, sample: Sample, began: float) -> None:
    """Lines are kept with their times and read afterwards: parsing must not delay other requests."""
    lines: list[tuple[float, str]] = []
    sample.sent_seconds = time.perf_counter() - began
    headers = {"Content-Type": "application/json"}
    try:
        async with client.stream("POST", f"{url}/v1/chat/completions", content=body, headers=headers) as answer:
            if answer.status_code != 200:
                sample.error = f"status {answer.status_code}: {(await answer.aread()).decode()[:300]}"
                return
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    lines.append((time.perf_counter() - began, line[6:]))
    except httpx.HTTPError as error:
        sample.error = f"{type(error).__name__}: {error}"
        return
    finally:
        sample.done_seconds = time.perf_counter() - began
    _read(lines, sample)


def _read(lines: Sequence[tuple[float, str]], sample: Sample) -> None:
    ended = False
    for seconds, line in lines:
        if line == "[DONE]":
            ended = True
            continue
        event: dict[str, Any] = json.loads(line)
        if "error" in event:
            sample.error = str(event["error"].get("message"))
            return
        if usage := event.get("usage"):
            sample.prompt_tokens, sample.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
            sample.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
        for choice in event["choices"]:
            if text := choice["delta"].get("content"):
                sample.text += text
                sample.text_seconds.append(seconds)
    if not ended:
        sample.error = "the stream ended without [DONE]"
    elif not sample.text and sample.output_tokens not in range(1, _TEXTLESS_TOKENS):
        sample.error = "the answer is empty"
    elif not sample.text:
        sample.text_seconds.append(lines[0][0])  # nothing is sent before there is a token
