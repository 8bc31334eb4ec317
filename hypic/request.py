"""Requests as the engine takes them, and what it gives back token by token."""

from dataclasses import dataclass, field
from typing import Literal

from hypic.arms import Arm
from hypic.errors import InvalidRequestError
from hypic.plan import Plan
from hypic.segment import Segment

FinishReason = Literal["stop", "length", "error"]


@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens. temperature 0 is greedy. seed: None draws one. stop: strings that end the text and
    are not part of it. ignore_eos: go on past the end of text, for benchmarks."""

    max_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise InvalidRequestError(f"max_tokens must be at least 1, found {self.max_tokens}")
        if not 0.0 <= self.temperature <= 2.0:
            raise InvalidRequestError(f"temperature must be in 0 to 2, found {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise InvalidRequestError(f"top_p must be above 0 and at most 1, found {self.top_p}")
        if len(self.stop) > 16 or any(not stop for stop in self.stop):
            raise InvalidRequestError("stop takes at most 16 strings, none of them empty")


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt to continue. segments: in order, the last one of kind "question". salt: the tenant's. session_id: of a
    conversation that is likely to go on, "" for none: what it would reuse is kept longest."""

    request_id: str
    segments: tuple[Segment, ...]
    arm: Arm
    sampling: SamplingParams = field(default_factory=SamplingParams)
    salt: str = ""
    session_id: str = ""

    def __post_init__(self) -> None:
        if not self.segments or len(self.segments[-1]) == 0:
            raise InvalidRequestError("the prompt is empty: at least one token must follow the documents")

    @property
    def prompt_tokens(self) -> int:
        return sum(len(segment) for segment in self.segments)


@dataclass(frozen=True)
class Usage:
    """Tokens of a request. cached: prompt tokens whose computation was skipped. computed: prompt tokens computed in
    the combine pass (seams, short segments, the question). built: tokens of cold segments that this request had
    prefilled; they are cached for whoever comes next, but were not free this time."""

    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    built_tokens: int
    completion_tokens: int = 0


@dataclass(frozen=True)
class TokenOutput:
    """What one step yields for one request: text that became final, and at the end why it ended.

    token_id is None in an output that only closes the request. usage and plan stand in every output. error: what went
    wrong, where finish_reason is "error"; what was said before it stays right.
    """

    request_id: str
    token_id: int | None
    text: str
    usage: Usage
    plan: Plan
    finish_reason: FinishReason | None = None
    error: str = ""
