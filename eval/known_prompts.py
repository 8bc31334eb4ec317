"""Prompts whose right answers are known: what load under faults is checked against.

The documents come from one small pool, so that prompts share them and meet them cold, warm and in any order. The
answers are those of an engine in this process that runs nothing else.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from hypic.arms import ARMS
from hypic.engine.engine import Engine
from hypic.errors import HypicError
from hypic.eval.recall import examples
from hypic.prompt import chat_segments
from hypic.request import GenerationRequest, SamplingParams
from hypic.segment import Document, Message, Segment

ARMS_ASKED = ("hypic", "hypic", "hypic", "prefix", "full")
"""Most of the load is what the service is for."""

MARGIN_NATS = 0.05
"""How far the second likeliest token must be behind at each step. Builds in other batches round differently, and an
answer that hangs on rounding has no right or wrong."""

ANSWER_TOKENS = 12


@dataclass(frozen=True)
class KnownPrompt:
    """A prompt and its greedy answer of `ANSWER_TOKENS` tokens."""

    documents: tuple[str, ...]
    question: str
    arm: str
    segments: tuple[Segment, ...]
    token_ids: tuple[int, ...]
    text: str

    def request(self, request_id: str, salt: str) -> GenerationRequest:
        """This prompt as a tenant asks it."""
        sampling = SamplingParams(max_tokens=ANSWER_TOKENS, ignore_eos=True)
        return GenerationRequest(request_id, self.segments, ARMS[self.arm], sampling, salt)


def known_prompts(
    engine: Engine, count: int, seed: int, on_found: Callable[[], None] = lambda: None
) -> list[KnownPrompt]:
    """`count` prompts of 2 to 8 documents out of 24. Raises HypicError where too few answers of the model are clear."""
    rng = random.Random(seed)
    drawn = examples("plain", 12, 4, seed)
    pool = [section for example in drawn for section in example.sections][:24]
    found: list[KnownPrompt] = []
    for number in range(20 * count):
        documents = tuple(rng.sample(pool, rng.randint(2, 8)))
        prompt = _answered(engine, documents, rng.choice(drawn).question, rng.choice(ARMS_ASKED), f"known-{number}")
        if prompt is not None:
            found.append(prompt)
            on_found()
        if len(found) == count:
            engine.flush()
            return found
    raise HypicError(f"only {len(found)} of {20 * count} prompts have an answer that does not hang on rounding")


def _answered(engine: Engine, documents: tuple[str, ...], question: str, arm: str, name: str) -> KnownPrompt | None:
    """None where a step of the answer is a near tie."""
    segments = chat_segments(engine.tokenizer, [Message("user", question)], [Document(text) for text in documents])
    sampling = SamplingParams(max_tokens=ANSWER_TOKENS, ignore_eos=True, logprobs=2)
    token_ids: list[int] = []
    text, clear = "", True
    for output in engine.generate(GenerationRequest(name, segments, ARMS[arm], sampling)):
        text += output.text
        if output.token_id is not None:
            token_ids.append(output.token_id)
        clear &= all(told.top[0][1] - told.top[1][1] > MARGIN_NATS for told in output.logprobs)
    return KnownPrompt(documents, question, arm, segments, tuple(token_ids), text) if clear else None
