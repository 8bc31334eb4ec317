"""Compares kernels with their references on small inputs, on the device that is to run them.

Compilers and devices err: Triton releases have given wrong results on single GPU generations. So an engine that is to
serve with kernels runs this first, in about the time that compiling them takes, and refuses to serve wrong numbers.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from hypic.kernels.dispatch import VARIABLE, uses_triton
from hypic.kernels.registry import KERNELS, Kernel
from hypic.kernels.samples import Sample

_REMEDY = f"Set {VARIABLE}=naive to serve with the references, which are slower, or try another release of triton"


class KernelMismatchError(RuntimeError):
    """A kernel and its reference disagree on this device."""


@torch.no_grad()
def check_kernels(device: torch.device, dtype: torch.dtype, kernels: Sequence[Kernel[Any]] = KERNELS) -> None:
    """Compare every kernel with its reference in a dtype of its tolerances, where Triton runs on the device; do nothing
    elsewhere. Raises KernelMismatchError at the first that is off, or cannot run."""
    if not uses_triton(device.type):
        return
    for kernel in kernels:
        for case, sample in kernel.cases.items():
            found = deviation(kernel, sample("check", dtype), device)
            if not found <= kernel.tolerances[dtype]:
                raise KernelMismatchError(
                    f"the Triton kernel {kernel.name!r} is wrong on {_named(device)}: case {case!r} in {dtype} is off "
                    f"by {found:.1e} of the largest value, {kernel.tolerances[dtype]:.0e} is allowed. {_REMEDY}"
                )


def deviation(kernel: Kernel[Any], sample: Sample, device: torch.device) -> float:
    """Largest difference between kernel and reference, relative to the largest value of the tensor that it stands in;
    infinite where shapes differ or one holds NaN. Raises KernelMismatchError where the kernel cannot run."""
    expected = list(tensors_of(kernel.naive(**on_device(sample.arguments, device))))
    try:
        found = list(tensors_of(kernel.triton()(**on_device(sample.arguments, device))))
    except Exception as error:  # of the compiler, the driver or the kernel: each means that it cannot be served with
        raise KernelMismatchError(
            f"the Triton kernel {kernel.name!r} does not run on {_named(device)}: {type(error).__name__}: {error}. "
            f"{_REMEDY}"
        ) from error
    if [(tensor.shape, tensor.dtype) for tensor in found] != [(tensor.shape, tensor.dtype) for tensor in expected]:
        return float("inf")
    return max((_apart(a, b) for a, b in zip(found, expected, strict=True)), default=0.0)


def on_device(value: Any, device: torch.device) -> Any:
    """A copy of arguments, tensors in lists and dicts included: operations may write into theirs."""
    if isinstance(value, Tensor):
        return value.to(device, copy=True)
    if isinstance(value, dict):
        return {name: on_device(part, device) for name, part in value.items()}
    if isinstance(value, list):
        return [on_device(part, device) for part in value]
    return deepcopy(value)


def tensors_of(result: Any) -> Iterator[Tensor]:
    """The tensors of what an operation returns, in a fixed order."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, Mapping):
        for key in sorted(result):
            yield from tensors_of(result[key])
    elif isinstance(result, Sequence):
        for part in result:
            yield from tensors_of(part)
    elif is_dataclass(result):
        for part in fields(result):
            yield from tensors_of(getattr(result, part.name))


def _apart(found: Tensor, expected: Tensor) -> float:
    if not expected.numel():
        return 0.0
    a, b = found.double(), expected.double()
    apart = float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))
    return apart if apart == apart else float("inf")


def _named(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"the {device.type}"
