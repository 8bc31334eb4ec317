"""Requests as the engine takes them, and what it gives back token by token."""

import math
from dataclasses import dataclass, field
from typing import Literal

from hypic.arms import Arm
from hypic.errors import DeadlineError, GenerationError, HypicError, InvalidRequestError
from hypic.plan import Plan
from hypic.segment import Segment

FinishReason = Literal["stop", "length", "error"]


MAX_STOP_STRINGS = 16


@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens.

    temperature 0 is greedy. top_k 0 takes all. min_p: least probability, as a share of the greatest. seed: None draws
    one. stop: strings that end the text and are not part of it. stop_token_ids: end it like the end of text.
    ignore_eos: go on past the end of text. min_tokens: no end of text before so many. presence_penalty,
    frequency_penalty: taken off the logits of tokens that the answer holds, once and per occurrence.
    repetition_penalty: divides the logits of tokens of prompt and answer (arXiv 1909.05858). logit_bias: token id and
    what is added to its logit. logprobs: None for none, else how many of the likeliest tokens to report beside the
    chosen one.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    top_k: int = 0
    min_p: float = 0.0
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise InvalidRequestError(f"max_tokens must be at least 1, found {self.max_tokens}")
        ranges = {
            "temperature": (0.0, 2.0),
            "min_p": (0.0, 1.0),
            "presence_penalty": (-2.0, 2.0),
            "frequency_penalty": (-2.0, 2.0),
        }
        for name, (least, greatest) in ranges.items():
            if not least <= getattr(self, name) <= greatest:
                raise InvalidRequestError(f"{name} must be in {least:g} to {greatest:g}, found {getattr(self, name)}")
        if not 0.0 < self.top_p <= 1.0:
            raise InvalidRequestError(f"top_p must be above 0 and at most 1, found {self.top_p}")
        if not 0.0 < self.repetition_penalty <= 2.0:
            raise InvalidRequestError(
                f"repetition_penalty must be above 0 and at most 2, found {self.repetition_penalty}"
            )
        if self.top_k < 0 or (self.logprobs or 0) < 0:
            raise InvalidRequestError(f"top_k and logprobs must not be negative, found {self.top_k}, {self.logprobs}")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise InvalidRequestError(f"min_tokens must be in 0 to max_tokens, found {self.min_tokens}")
        if any(not -100.0 <= bias <= 100.0 for _, bias in self.logit_bias):
            raise InvalidRequestError("logit_bias takes values in -100 to 100")
        if len(self.stop) > MAX_STOP_STRINGS or any(not stop for stop in self.stop):
            raise InvalidRequestError(f"stop takes at most {MAX_STOP_STRINGS} strings, none of them empty")


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt to continue. segments: in order, the last one of kind "question". salt: the tenant's. session_id: of a
    conversation that is likely to go on, "" for none: what it would reuse is kept longest. choices: how many answers to
    draw from the one prompt. build_only: have the cold segments built and end there, with the plan and without a token.
    probe: measure later, in idle time, how far the first token's distribution is from that of a full recompute.
    timeout_seconds: how long it may take from when the engine has it; whatever phase it is in then, it is dropped.
    """

    request_id: str
    segments: tuple[Segment, ...]
    arm: Arm
    sampling: SamplingParams = field(default_factory=SamplingParams)
    salt: str = ""
    session_id: str = ""
    choices: int = 1
    build_only: bool = False
    probe: bool = False
    timeout_seconds: float = math.inf

    def __post_init__(self) -> None:
        if not self.segments or len(self.segments[-1]) == 0:
            raise InvalidRequestError("the prompt is empty: at least one token must follow the documents")
        if self.choices < 1:
            raise InvalidRequestError(f"at least one answer must be asked for, found {self.choices}")

    @property
    def prompt_tokens(self) -> int:
        return sum(len(segment) for segment in self.segments)


@dataclass(frozen=True)
class Usage:
    """Tokens of a request. cached: prompt tokens whose computation was skipped. computed: prompt tokens computed in
    the combine pass (seams, short segments, the question). built: tokens of cold segments that this request had
    prefilled; they are cached for whoever comes next, but were not free this time. completion: of all choices."""

    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    built_tokens: int
    completion_tokens: int = 0

    @classmethod
    def of(cls, plan: Plan) -> "Usage":
        """Of a request that has said nothing yet."""
        return cls(plan.prompt_tokens, plan.cached_tokens, plan.computed_tokens, plan.built_tokens)


@dataclass(frozen=True)
class TokenLogprob:
    """How likely a token of an answer was, by the model's own distribution: before temperature, penalties and bias.

    top: token id and log probability of the likeliest, most likely first. offset_chars: where in the answer's text the
    token begins.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    offset_chars: int


@dataclass(frozen=True)
class TokenOutput:
    """What one step yields for one choice of a request: text that became final, and at the end why it ended.

    token_id is None in an output that only closes the request. usage and plan stand in every output. error: what went
    wrong, where finish_reason is "error", error_code: the code of that fault; what was said before it stays right.
    logprobs: of the tokens whose text has
    become final. matched: the stop string or the token id that ended the text. ends_request: this is the last output of
    all choices. combine_seconds: from the beginning of the pass over the prompt until the first token was chosen, with
    rounds of others in between; in the first output of each choice alone.
    """

    request_id: str
    token_id: int | None
    text: str
    usage: Usage
    plan: Plan
    finish_reason: FinishReason | None = None
    error: str = ""
    error_code: str = ""
    choice: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    matched: str | int | None = None
    ends_request: bool = False
    combine_seconds: float = 0.0

    @classmethod
    def failed(cls, request: GenerationRequest, usage: Usage, plan: Plan, error: Exception) -> "TokenOutput":
        """The last output of a request that ends with an error."""
        told, code = f"{type(error).__name__}: {error}", GenerationError.code
        if isinstance(error, HypicError):
            told, code = str(error), error.code
        return cls(request.request_id, None, "", usage, plan, "error", told, code, ends_request=True)

    @property
    def fault(self) -> HypicError:
        """What to raise for an output whose finish_reason is "error"."""
        kind = DeadlineError if self.error_code == DeadlineError.code else GenerationError
        return kind(self.error)
