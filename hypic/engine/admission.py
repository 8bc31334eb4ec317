"""Which requests a model can serve at all: told before anything is planned."""

from hypic.errors import InvalidRequestError, PromptTooLongError
from hypic.request import GenerationRequest


def check_request(request: GenerationRequest, vocabulary: int, max_tokens: int) -> None:
    """Raises InvalidRequestError where a token id is not among the model's `vocabulary`, and PromptTooLongError where
    prompt and answer together are more than the `max_tokens` that it reads."""
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
