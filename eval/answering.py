"""Greedy answers of an arm to questions, in the engine's continuous batch, over documents met before or not.

What is warm is built before its question comes, as documents that other prompts brought would be. Each arm has its own
salt, so no arm finds what another has cached.
"""

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hypic.arms import Arm
from hypic.engine.engine import Engine
from hypic.errors import GenerationError
from hypic.eval.workloads import Question
from hypic.request import GenerationRequest, SamplingParams
from hypic.segment import Segment

_OPEN_REQUESTS = 32


@dataclass(frozen=True)
class Answer:
    """A text, and how many of the prompt's tokens were not computed for it."""

    text: str
    prompt_tokens: int
    cached_tokens: int


def answer_all(
    engine: Engine, questions: Sequence[Question], arm: Arm, cold: Sequence[frozenset[int]] = ()
) -> list[Answer]:
    """Answers in the order of the questions. cold: of each question, the documents that nobody has met before; without
    it all are cold. Raises GenerationError."""
    requests = []
    for number, question in enumerate(questions):
        segments = question.segments(engine.tokenizer)
        if cold:
            _warm(engine, segments, cold[number], arm)
        sampling = SamplingParams(max_tokens=question.max_tokens)
        requests.append(GenerationRequest(str(number), segments, arm, sampling, arm.name))
    found = dict(_stream(engine, requests))
    return [found[number] for number in range(len(questions))]


def cold_documents(question: Question, share: float, seed: int, number: int) -> frozenset[int]:
    """Which documents of a question nobody has met before: that share of them, drawn from the seed; the same for every
    arm."""
    count = len(question.sections)
    return frozenset(random.Random(f"cold/{seed}/{number}").sample(range(count), round(share * count)))


def _warm(engine: Engine, segments: Sequence[Segment], cold: frozenset[int], arm: Arm) -> None:
    """Build the entries of all documents but the cold ones."""
    first = next((at for at, segment in enumerate(segments) if segment.kind == "document"), len(segments))
    documents = [segment for at, segment in enumerate(segments[first:-1]) if at not in cold]
    for entry in engine.build(engine.warm([*segments[:first], *documents], arm.name, arm.name)) if documents else ():
        engine.deliver(entry)


def _stream(engine: Engine, requests: Iterable[GenerationRequest]) -> Iterable[tuple[int, Answer]]:
    """(request number, answer) as requests finish, a bounded number of them open."""
    waiting = deque(requests)
    texts: dict[str, str] = {}
    while waiting or texts:
        while waiting and len(texts) < _OPEN_REQUESTS:
            request = waiting.popleft()
            engine.build_here([task.key for task in engine.submit(request)])
            texts[request.request_id] = ""
        for output in engine.step():
            if output.finish_reason == "error":
                raise GenerationError(output.error)
            texts[output.request_id] += output.text
            if output.finish_reason is not None:
                usage = output.usage
                text = texts.pop(output.request_id)
                yield int(output.request_id), Answer(text, usage.prompt_tokens, usage.cached_tokens)
