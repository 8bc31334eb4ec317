"""The self-check of kernels at the start of an engine, as a fault that a user can act upon."""

from hypic.errors import WrongKernelError
from hypic.kernels.check import KernelMismatchError, check_kernels
from hypic.sequence import CacheSpec


def refuse_wrong_kernels(spec: CacheSpec) -> None:
    """Raises WrongKernelError where a kernel differs from its reference on the model's device, in its dtype."""
    try:
        check_kernels(spec.device, spec.dtype)
    except KernelMismatchError as error:
        raise WrongKernelError(str(error)) from error
