"""Which requests an engine takes, and until when it works on them: what the model reads, the queue, their own time."""

import math
from collections.abc import Collection, Iterable
from typing import Protocol, TypeVar

from hypic.errors import DeadlineError, InvalidRequestError, OverloadedError, PromptTooLongError
from hypic.request import GenerationRequest

MOST_RETRY_SECONDS = 60


class Timed(Protocol):
    """A request in some phase. ends_seconds: when its time is over."""

    @property
    def ends_seconds(self) -> float: ...


TimedT = TypeVar("TimedT", bound=Timed)


def check_request(request: GenerationRequest, vocabulary: int, max_tokens: int) -> None:
    """Raises InvalidRequestError or PromptTooLongError for what the model cannot read. max_tokens: both together."""
    biased = [token for token, _ in request.sampling.logit_bias]
    told = [*biased, *request.sampling.stop_token_ids]
    spans = [
        (int(segment.token_ids.min()), int(segment.token_ids.max())) for segment in request.segments if len(segment)
    ]
    least, greatest = min(least for least, _ in spans), max(greatest for _, greatest in spans)
    if min(told, default=least) < 0 or least < 0 or max(greatest, *told, 0) >= vocabulary:
        raise InvalidRequestError(f"a token id is not one of the model's {vocabulary}: they count from 0")
    total = request.prompt_tokens + request.sampling.max_tokens
    if total > max_tokens:
        raise PromptTooLongError(
            f"the prompt has {request.prompt_tokens} tokens and up to {request.sampling.max_tokens} more were "
            f"asked for, {total} in all; the model reads at most {max_tokens}: send fewer or shorter "
            "documents, or lower max_tokens"
        )


def check_room(arrivals_seconds: Collection[float], max_waiting: int, now_seconds: float) -> None:
    """Raises OverloadedError where so many wait already. A queue takes about as long as its oldest has waited: that is
    when to try again."""
    if len(arrivals_seconds) >= max_waiting:
        waited = now_seconds - min(arrivals_seconds)
        retry = max(1, min(MOST_RETRY_SECONDS, math.ceil(waited)))
        raise OverloadedError(f"the queue is full, {len(arrivals_seconds)} are waiting: try again in {retry} s", retry)


def overdue(work: Iterable[TimedT], now_seconds: float) -> list[tuple[TimedT, DeadlineError]]:
    """What is out of time, and what to tell of it."""
    told = "the request's own timeout is over: ask for less, or allow more time"
    return [(one, DeadlineError(told)) for one in work if one.ends_seconds <= now_seconds]


def seconds_left(work: Iterable[Timed], now_seconds: float) -> float | None:
    """Until the first is out of time; None where none has a limit."""
    left = min((one.ends_seconds for one in work), default=math.inf) - now_seconds
    return None if math.isinf(left) else max(0.0, left)
