"""A request that is producing tokens: its answers, the memory and the text so far of each, and when they are over."""

from dataclasses import replace

import torch
from torch import Tensor

from hypic.engine.sampler import Sampler, log_probabilities
from hypic.errors import GenerationError
from hypic.plan import Plan
from hypic.request import FinishReason, GenerationRequest, TokenLogprob, TokenOutput, Usage
from hypic.sequence import SequenceCache
from hypic.tokenizer import PromptTokenizer


class StopText:
    """Passes text on once it can no longer be the beginning of a stop string."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Text that is final, and the stop string that ended it. What a stop string covers is dropped."""
        self._held += text
        ends = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if ends:
            at, stop = min(ends)
            return self._held[:at], stop
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        final = self._held[: len(self._held) - keep]
        self._held = self._held[len(final) :]
        return final, None

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper beginning of `stop` that ends `text`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)


class Choice:
    """One answer. last_token: the newest, not yet read by the model."""

    def __init__(
        self, index: int, request: GenerationRequest, cache: SequenceCache, tokenizer: PromptTokenizer
    ) -> None:
        params = request.sampling
        self.index, self.cache, self.last_token, self.finished = index, cache, -1, False
        self._params = params
        self._ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else tokenizer.eos_ids)
        self._sampler = Sampler(request, index, tokenizer.eos_ids | self._ends)
        self._detokenizer, self._stop = tokenizer.stream(), StopText(params.stop)
        self._tokens, self._decoded_chars, self._said_chars = 0, 0, 0
        self._unsaid: list[TokenLogprob] = []

    def advance(self, logits: Tensor) -> tuple[str, FinishReason | None, str | int | None, tuple[TokenLogprob, ...]]:
        """Choose the next token: the text that became final, why it ended if it did, what ended it, and the
        probabilities of the tokens whose text is out. Raises GenerationError where the logits are no numbers."""
        if not bool(torch.isfinite(logits).all()):
            raise GenerationError("the model's logits hold NaN or infinity: no token can be chosen")
        params, token = self._params, self._sampler.choose(logits)
        self.last_token, self._tokens = token, self._tokens + 1
        if token in self._ends:
            return self._end(self._stop.flush(), "stop", token)
        if params.logprobs is not None:
            logprob, top = log_probabilities(logits, token, params.logprobs)
            self._unsaid.append(TokenLogprob(token, logprob, top, self._decoded_chars))
        decoded = self._detokenizer.push(token)
        self._decoded_chars += len(decoded)
        text, stopped = self._stop.push(decoded)
        if stopped is not None:
            return self._end(text, "stop", stopped)
        if self._tokens >= params.max_tokens:
            return self._end(text + self._stop.flush(), "length", None)
        return text, None, None, self._say(text)

    def _say(self, text: str, everything: bool = False) -> tuple[TokenLogprob, ...]:
        """The tokens that begin in what has been said by now; what a stop string covers is never said."""
        self._said_chars += len(text)
        said = [token for token in self._unsaid if everything or token.offset_chars < self._said_chars]
        self._unsaid = self._unsaid[len(said) :]
        return tuple(said)

    def _end(
        self, text: str, finish: FinishReason, matched: str | int | None
    ) -> tuple[str, FinishReason, str | int | None, tuple[TokenLogprob, ...]]:
        self.finished = True
        return text, finish, matched, self._say(text, everything=not isinstance(matched, str))


class Generation:
    """One running request: its choices go on from one prompt, which was computed once."""

    def __init__(
        self,
        request: GenerationRequest,
        cache: SequenceCache,
        plan: Plan,
        usage: Usage,
        tokenizer: PromptTokenizer,
        ends_seconds: float,
    ) -> None:
        """cache: the memory after the prompt; the first choice takes it, the others copy it. ends_seconds: when its
        time is over, as of its `Reservation`."""
        self.request, self.plan, self.usage, self.ends_seconds = request, plan, usage, ends_seconds
        caches = [cache, *(cache.copy() for _ in range(request.choices - 1))]
        self.choices = [Choice(index, request, own, tokenizer) for index, own in enumerate(caches)]

    @property
    def open(self) -> list[Choice]:
        """The choices that go on."""
        return [choice for choice in self.choices if not choice.finished]

    def advance(self, choice: Choice, logits: Tensor) -> TokenOutput:
        """Take the next token of a choice; the output says whether it was the last of the choice, and of all."""
        text, finish, matched, logprobs = choice.advance(logits)
        self.usage = replace(self.usage, completion_tokens=self.usage.completion_tokens + 1)
        return TokenOutput(
            self.request.request_id,
            choice.last_token,
            text,
            self.usage,
            self.plan,
            finish,
            choice=choice.index,
            logprobs=logprobs,
            matched=matched,
            ends_request=not self.open,
        )
