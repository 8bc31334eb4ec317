"""The one place that chooses between an operation's reference and its Triton kernel.

HYPIC_KERNELS is the one environment variable of this package, read once: `auto` (the default) takes Triton for CUDA
tensors where triton imports and the references elsewhere; `naive` and `triton` take one of them everywhere.
"""

import logging
import os
from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch

logger = logging.getLogger(__name__)

F = TypeVar("F")
VARIABLE = "HYPIC_KERNELS"
ALLOWED = ("auto", "naive", "triton")


class KernelChoiceError(ValueError):
    """HYPIC_KERNELS asks for what is not there: an unknown word, or Triton where it cannot run."""


def choose(naive: F, triton: Callable[[], F], device: torch.device) -> F:
    """The form of an operation that works on tensors of `device`.

    naive: the reference. triton: imports and returns the kernel of the same signature; not called where the
    reference is taken, so the CPU path never imports triton. Raises KernelChoiceError as `uses_triton` does.
    """
    return triton() if uses_triton(device.type) else naive


@cache
def uses_triton(device_type: str) -> bool:
    """Whether operations on tensors of "cpu" or "cuda" go to Triton. Raises KernelChoiceError where HYPIC_KERNELS
    is no allowed word, or is `triton` where triton cannot be imported or cannot run on the device."""
    wanted = os.environ.get(VARIABLE, "auto")
    if wanted not in ALLOWED:
        raise KernelChoiceError(f"{VARIABLE} is {wanted!r}; allowed are {', '.join(ALLOWED)}")
    if wanted == "naive" or (wanted == "auto" and device_type != "cuda"):
        return False
    try:
        import triton
    except ImportError as error:
        if wanted == "triton":
            raise KernelChoiceError(f"{VARIABLE} is 'triton', but triton cannot be imported: {error}") from error
        logger.warning("triton cannot be imported (%s): the references run on the %s device", error, device_type)
        return False
    if device_type != "cuda" and not triton.knobs.runtime.interpret:
        raise KernelChoiceError(
            f"{VARIABLE} is 'triton', but Triton kernels run on a {device_type} device only in Triton's interpreter, "
            "for tests (TRITON_INTERPRET=1); use 'auto' or 'naive'"
        )
    return True
