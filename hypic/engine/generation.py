"""A request that is producing tokens: its memory, its text so far, and when it is over."""

from dataclasses import dataclass, field, replace

from hypic.engine.sampler import Sampler
from hypic.plan import Plan
from hypic.request import FinishReason, GenerationRequest, TokenOutput, Usage
from hypic.sequence import SequenceCache
from hypic.tokenizer import Detokenizer


class StopText:
    """Passes text on once it can no longer be the beginning of a stop string."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Text that is final, and whether a stop string ended it. What a stop string covers is dropped."""
        self._held += text
        ends = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if ends:
            return self._held[: min(ends)], True
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        final = self._held[: len(self._held) - keep]
        self._held = self._held[len(final) :]
        return final, False

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper beginning of `stop` that ends `text`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)


@dataclass
class Generation:
    """One running request. last_token: the newest, not yet read by the model."""

    request: GenerationRequest
    cache: SequenceCache
    plan: Plan
    usage: Usage
    detokenizer: Detokenizer
    eos_ids: frozenset[int]
    sampler: Sampler = field(init=False)
    last_token: int = -1

    def __post_init__(self) -> None:
        self.sampler = Sampler(self.request.sampling)
        self._stop = StopText(self.request.sampling.stop)

    def push(self, token_id: int) -> TokenOutput:
        """Take the next token; the output says whether it was the last."""
        sampling = self.request.sampling
        self.last_token = token_id
        self.usage = replace(self.usage, completion_tokens=self.usage.completion_tokens + 1)
        if token_id in self.eos_ids and not sampling.ignore_eos:
            return self._output(token_id, self._stop.flush(), "stop")
        text, stopped = self._stop.push(self.detokenizer.push(token_id))
        if stopped:
            return self._output(token_id, text, "stop")
        if self.usage.completion_tokens >= sampling.max_tokens:
            return self._output(token_id, text + self._stop.flush(), "length")
        return self._output(token_id, text, None)

    def _output(self, token_id: int | None, text: str, finish: FinishReason | None) -> TokenOutput:
        return TokenOutput(self.request.request_id, token_id, text, self.usage, self.plan, finish)
