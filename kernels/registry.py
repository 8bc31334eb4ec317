"""Every operation that has two forms, a reference and a Triton kernel, with inputs to compare and to time them on.

Whatever looks at all kernels goes through `KERNELS`: the self-check at the start of an engine (`check.py`), the tests,
and `hypic bench kernels`. Code that runs an operation takes its form for a device from here: `ROTATE.on(x.device)`.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from hypic.kernels import samples
from hypic.kernels.attention.naive import attention_batch
from hypic.kernels.causal_conv.naive import causal_conv, causal_conv_step
from hypic.kernels.diagonal_decay.naive import diagonal_decay, diagonal_decay_step
from hypic.kernels.dispatch import choose
from hypic.kernels.gated_delta.naive import gated_delta, gated_delta_step
from hypic.kernels.rope.naive import rotate
from hypic.kernels.samples import Sample, Size
from hypic.kernels.scalar_decay.naive import scalar_decay, scalar_decay_step

F = TypeVar("F", bound=Callable[..., Any])

TOLERANCES: dict[torch.dtype, float] = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""How far a kernel may be from its reference, relative to the largest value: roundings, in another order."""


@dataclass(frozen=True)
class Kernel(Generic[F]):
    """An operation. naive: the reference. triton: imports and returns the kernel of the same signature. cases: by name,
    inputs of a size and dtype, drawn alike each time, on the CPU. tolerances: by dtype."""

    name: str
    naive: F
    triton: Callable[[], F]
    cases: Mapping[str, Callable[[Size, torch.dtype], Sample]]
    tolerances: Mapping[torch.dtype, float] = field(default_factory=lambda: TOLERANCES)

    def on(self, device: torch.device) -> F:
        """The form that works on tensors of a device, see `choose`."""
        return choose(self.naive, self.triton, device)


def _from(module: str, name: str) -> Callable[[], Any]:
    """Imports a Triton kernel when it is first wanted."""
    return lambda: getattr(importlib.import_module(f"hypic.kernels.{module}"), name)


ROTATE = Kernel("rotate", rotate, _from("rope.triton", "rotate"), {"keys": samples.rotate})
CAUSAL_CONV = Kernel(
    "causal_conv", causal_conv, _from("causal_conv.triton", "causal_conv"), {"spans": samples.causal_conv}
)
CAUSAL_CONV_STEP = Kernel(
    "causal_conv_step",
    causal_conv_step,
    _from("causal_conv.triton", "causal_conv_step"),
    {"decode": samples.causal_conv_step},
)
ATTENTION = Kernel(
    "attention",
    attention_batch,
    _from("attention.triton", "attention_batch"),
    {
        "prefill": samples.prefill,
        "seams": samples.seams,
        "decode": samples.decode,
        "window and sinks": samples.window_and_sinks,
    },
)

_LINEAR = tuple(
    Kernel(naive.__name__, naive, _from(f"{folder}.triton", naive.__name__), cases)
    for folder, naive, cases in (
        ("gated_delta", gated_delta, {"build": samples.gated_delta, "KDA build": samples.kimi_delta}),
        ("gated_delta", gated_delta_step, {"decode": samples.gated_delta_step, "KDA decode": samples.kimi_delta_step}),
        ("scalar_decay", scalar_decay, {"build": samples.scalar_decay}),
        ("scalar_decay", scalar_decay_step, {"decode": samples.scalar_decay_step}),
        ("diagonal_decay", diagonal_decay, {"build": samples.diagonal_decay}),
        ("diagonal_decay", diagonal_decay_step, {"decode": samples.diagonal_decay_step}),
    )
)
"""Their folders choose the form themselves."""

KERNELS: tuple[Kernel[Any], ...] = (ROTATE, CAUSAL_CONV, CAUSAL_CONV_STEP, ATTENTION, *_LINEAR)
