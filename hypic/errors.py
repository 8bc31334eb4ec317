"""Faults that a user can cause or must know of. Each says what was found, what was expected, and what to do."""


class HypicError(Exception):
    """A fault with an HTTP status and a stable code for machines."""

    status = 500
    code = "internal_error"


class InvalidRequestError(HypicError):
    """The request cannot be served as it is; nothing was changed by it."""

    status = 400
    code = "invalid_request"


class PromptTooLongError(InvalidRequestError):
    """The prompt, or the prompt with the tokens asked for, does not fit the model."""

    code = "context_length_exceeded"


class ModelNotFoundError(HypicError):
    """No checkpoint stands at the path given."""

    status = 404
    code = "model_not_found"


class CheckpointError(HypicError):
    """A checkpoint is there, but does not hold the model that its config describes."""

    code = "bad_checkpoint"


class UnsupportedModelError(HypicError):
    """The checkpoint's architecture, or a feature that its config asks for, is not served."""

    code = "unsupported_model"


class WrongKernelError(HypicError):
    """A kernel gives other results than its reference on this device, so nothing is served with it."""

    code = "wrong_kernel"


class GenerationError(HypicError):
    """A request failed on the way; what it yielded before stays right, and no other request is concerned."""

    code = "generation_failed"


class DeadlineError(HypicError):
    """The request was not done by the time that it gave itself; what it yielded before stays right."""

    status = 408
    code = "deadline_exceeded"


class UnavailableError(HypicError):
    """The service cannot take the request now; the same request may succeed later."""

    status = 503
    code = "unavailable"

    def __init__(self, message: str, retry_after_seconds: int = 1) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class OverloadedError(HypicError):
    """More is waiting than a worker takes: the same request may succeed once some of it is done."""

    status = 429
    code = "overloaded"

    def __init__(self, message: str, retry_after_seconds: int = 1) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
