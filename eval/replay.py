"""Requests of a trace, as ids and token lengths: what is asked in which order, and when. `hypic.eval.filling` has the
texts.

RAGPulse is a retrieval service (the same passages in any order), Mooncake conversations (prompts that go on from each
other), `synthetic` questions over popular documents, whose arrivals are a Poisson process.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from hypic.errors import InvalidRequestError
from hypic.eval.cache_traces import DATA, trace_lines

TRACES = ("ragpulse", "mooncake", "synthetic")

_CATCH_UP_TEXTS = 16

_SYNTHETIC_REQUESTS, _SYNTHETIC_DOCUMENTS, _SYNTHETIC_PICKED = 5000, 400, 6
_SYNTHETIC_TOKENS, _SYNTHETIC_OUTPUT_TOKENS = (300, 700), 128


@dataclass(frozen=True)
class Part:
    """A text of a trace: the same name is the same text."""

    name: str
    tokens: int


@dataclass(frozen=True)
class Asked:
    """One request. seconds: when, by the trace's clock. documents: in their order. context: what stands between them
    and the question, such as earlier turns and pages of the web."""

    seconds: float
    system: Part
    documents: tuple[Part, ...]
    context: tuple[Part, ...]
    question: Part
    output_tokens: int

    @property
    def parts(self) -> tuple[Part, ...]:
        """In the order of the prompt."""
        return (self.system, *self.documents, *self.context, self.question)

    @property
    def prompt_tokens(self) -> int:
        return sum(part.tokens for part in self.parts)


def read_trace(trace: str, seed: int) -> list[Asked]:
    """Requests in order of time. trace: one of `TRACES`, or a file like one of the two shipped samples. Raises
    InvalidRequestError where it is neither."""
    if trace == "synthetic":
        return _synthetic(seed)
    path = DATA / f"{trace}.jsonl.gz" if trace in TRACES else Path(trace)
    if not path.is_file():
        raise InvalidRequestError(f"there is no trace {trace!r}: use {', '.join(TRACES)} or a file like eval/data/*.gz")
    head, _ = found = trace_lines(path)
    requests = _mooncake(*found) if "block_tokens" in head else _ragpulse(*found)
    return sorted(requests, key=lambda request: request.seconds)


def scaled(requests: Sequence[Asked], prompt_scale: float, output_scale: float) -> list[Asked]:
    """The same requests with other lengths, at least a token each."""

    def part(found: Part) -> Part:
        return replace(found, tokens=max(1, round(found.tokens * prompt_scale)))

    return [
        replace(
            request,
            system=part(request.system),
            documents=tuple(map(part, request.documents)),
            context=tuple(map(part, request.context)),
            question=part(request.question),
            output_tokens=max(1, round(request.output_tokens * output_scale)),
        )
        for request in requests
    ]


def send_times(requests: Sequence[Asked], qps: float, arrivals: str, seed: int) -> list[float]:
    """Seconds from the start at which to send each request, at a mean rate. arrivals: "trace" keeps the trace's gaps
    relative to each other, "poisson" draws them."""
    if arrivals == "poisson":
        gaps = np.random.default_rng(seed).exponential(1.0, len(requests) - 1)
    else:
        gaps = np.diff([request.seconds for request in requests])
    if not gaps.sum() > 0:
        raise InvalidRequestError("all requests of this stretch of the trace came at once: use --arrivals poisson")
    gaps = gaps * (len(requests) / qps - 1 / qps) / gaps.sum()
    return [0.0, *np.cumsum(gaps).tolist()]


def catch_up(history: Sequence[Asked], measured: Sequence[Asked]) -> list[Asked]:
    """Requests for what was asked for in `history` and is asked for again: what a server that has been up for so long,
    with room for all, would have met. Sixteen texts each, in order of their first use, for one token."""
    again = {part.name for request in measured for part in (*request.documents, *request.context)}
    documents = {part.name: part for request in history for part in request.documents if part.name in again}
    context = {part.name: part for request in history for part in request.context if part.name in again}
    system = measured[0].system
    return [
        Asked(0.0, system, tuple(texts), (), Part(f"catch up {number}", 8), 1)
        for number, texts in enumerate(_batched(documents.values(), _CATCH_UP_TEXTS))
    ] + [
        Asked(0.0, system, (), tuple(texts), Part(f"catch up context {number}", 8), 1)
        for number, texts in enumerate(_batched(context.values(), _CATCH_UP_TEXTS))
    ]


def _ragpulse(head: dict[str, object], rows: list[list[object]]) -> list[Asked]:
    """The first system text opens the prompt; further ones, which vary, are documents in front of the passages."""
    lengths = head["lengths"]
    assert isinstance(lengths, dict)

    def parts(ids: object) -> tuple[Part, ...]:
        assert isinstance(ids, list)
        return tuple(Part(f"ragpulse {name}", int(lengths[str(name)])) for name in ids)

    requests = []
    for seconds, _, output_tokens, system, passages, history, web, question in rows:
        first, *others = parts(system)
        asked = parts(question)
        requests.append(
            Asked(
                float(str(seconds)),
                first,
                (*others, *parts(passages)),
                (*parts(history), *parts(web)),
                Part(" ".join(part.name for part in asked), sum(part.tokens for part in asked)),
                int(str(output_tokens)),
            )
        )
    return requests


def _mooncake(head: dict[str, object], rows: list[list[object]]) -> list[Asked]:
    """The first block opens the prompt, whole blocks are documents, what is left is the question."""
    size = int(str(head["block_tokens"]))
    requests = []
    for number, (milliseconds, prompt_tokens, output_tokens, runs) in enumerate(rows):
        assert isinstance(runs, list)
        ids = [
            block for first, count in zip(runs[::2], runs[1::2], strict=True) for block in range(first, first + count)
        ]
        whole = min(len(ids), int(str(prompt_tokens)) // size)
        blocks = [Part(f"mooncake {block}", size) for block in ids[:whole]]
        rest = Part(f"mooncake question {number}", max(8, int(str(prompt_tokens)) - whole * size))
        opening = blocks[0] if blocks else Part("mooncake system", 8)
        seconds = float(str(milliseconds)) / 1000
        requests.append(Asked(seconds, opening, tuple(blocks[1:]), (), rest, int(str(output_tokens))))
    return requests


def _synthetic(seed: int) -> list[Asked]:
    """Six documents each, drawn by popularity (Zipf, exponent 1), in random order, behind one system prompt."""
    rng = np.random.default_rng(seed)
    popularity = 1 / np.arange(1, _SYNTHETIC_DOCUMENTS + 1)
    popularity /= popularity.sum()
    lengths = rng.integers(*_SYNTHETIC_TOKENS, _SYNTHETIC_DOCUMENTS)
    documents = [Part(f"synthetic {number}", int(tokens)) for number, tokens in enumerate(lengths)]
    system, seconds = Part("synthetic system", 500), np.cumsum(rng.exponential(1.0, _SYNTHETIC_REQUESTS))
    requests = []
    for number in range(_SYNTHETIC_REQUESTS):
        picked = rng.choice(_SYNTHETIC_DOCUMENTS, _SYNTHETIC_PICKED, replace=False, p=popularity)
        chosen = tuple(documents[at] for at in picked)
        question = Part(f"synthetic question {number}", 24)
        requests.append(Asked(float(seconds[number]), system, chosen, (), question, _SYNTHETIC_OUTPUT_TOKENS))
    return requests


def _batched(parts: Iterable[Part], count: int) -> Iterator[tuple[Part, ...]]:
    left = iter(parts)
    while batch := tuple(islice(left, count)):
        yield batch
