"""`hypic bench kernels`: each kernel against its reference on one device, in turns, once both agree.

On a GPU both forms are timed at the geometry of Qwen3.5-35B-A3B; on a CPU only the references are, at a size that suits
it, for Triton's interpreter says nothing about speed. What a form reaches is told as the share of what a copy and a
matrix product reach on the same device in the same run, so no table of devices is needed. Bytes and operations are the
least that the work takes: a form that moves more is slower, and its share tells.
"""

from collections.abc import Callable
from typing import Any, cast

import torch

from hypic.errors import InvalidRequestError
from hypic.eval.report import Report, Table, progress
from hypic.eval.ttft import GateError
from hypic.eval.turns import in_turns
from hypic.kernels.check import KernelMismatchError, deviation, on_device
from hypic.kernels.dispatch import uses_triton
from hypic.kernels.registry import KERNELS, Kernel
from hypic.kernels.samples import Sample, Size

_COPIED_BYTES = {"cpu": 2**26, "cuda": 2**31}
_PRODUCT_SIZE = {"cpu": 768, "cuda": 8192}


def run_kernels(device: str, dtype: str, rounds: int) -> Report:
    """Compare and time every case of every kernel. dtype: float32 or bfloat16. Raises GateError where a kernel differs
    from its reference, InvalidRequestError where there is no such device."""
    place, kind = torch.device(device), cast("torch.dtype", getattr(torch, dtype))
    if place.type not in _COPIED_BYTES or (place.type == "cuda" and not torch.cuda.is_available()):
        raise InvalidRequestError(f"there is no device {device!r} here; use cpu, or cuda where there is a GPU")
    compiled = place.type == "cuda" and uses_triton(place.type)
    cases = [(kernel, case) for kernel in KERNELS for case in kernel.cases]
    found: dict[str, Any] = {}
    limits = device_limits(place, kind, rounds)
    with progress("timing", len(cases)) as advance:
        for kernel, case in cases:
            if compiled:
                check_gate(kernel, case, kind, place)
            size: Size = "gpu" if place.type == "cuda" else "cpu"
            found[f"{kernel.name}: {case}"] = time_case(kernel, kernel.cases[case](size, kind), place, rounds, compiled)
            advance(f"timing {kernel.name}")
    results: dict[str, Any] = {
        "dtype": dtype,
        "timed": "kernels and references" if compiled else "references",
        "rounds": rounds,
    }
    for row in found.values():
        _add_shares(row, limits)
    return Report(
        "bench kernels",
        "none",
        device,
        results | {"limits": limits, "kernels": found},
        (_table(found, limits, compiled),),
    )


def check_gate(kernel: Kernel[Any], case: str, dtype: torch.dtype, device: torch.device) -> None:
    """Nothing is timed that is wrong. Raises GateError."""
    try:
        apart = deviation(kernel, kernel.cases[case]("check", dtype), device)
    except KernelMismatchError as error:
        raise GateError(str(error)) from error
    if not apart <= kernel.tolerances[dtype]:
        raise GateError(
            f"kernel {kernel.name!r}, case {case!r} is off by {apart:.1e}, {kernel.tolerances[dtype]:.0e} is allowed; "
            "nothing was timed"
        )


def device_limits(device: torch.device, dtype: torch.dtype, rounds: int) -> dict[str, float]:
    """What the device reaches: bytes a second of a copy, read and written, and operations of a matrix product in the
    dtype; of the best round each."""
    source = torch.zeros(_COPIED_BYTES[device.type], dtype=torch.uint8, device=device)
    target, size = torch.empty_like(source), _PRODUCT_SIZE[device.type]
    a, b = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    seconds = in_turns({"copy": lambda: target.copy_(source), "product": lambda: a @ b}, rounds, device)
    return {
        "bytes_per_second": 2 * source.nbytes / min(seconds["copy"]),
        "flops_per_second": 2 * size**3 / min(seconds["product"]),
    }


def time_case(kernel: Kernel[Any], sample: Sample, device: torch.device, rounds: int, compiled: bool) -> dict[str, Any]:
    """Milliseconds of the forms that run, the best of the rounds, and their launches."""
    forms: dict[str, Callable[..., Any]] = {"naive": kernel.naive}
    if compiled:
        forms["triton"] = kernel.triton()
    arguments = on_device(sample.arguments, device)
    runs = {name: (lambda form=form: form(**arguments)) for name, form in forms.items()}
    with torch.inference_mode():
        seconds = in_turns(runs, rounds, device)
        launches = {name: launched(run) for name, run in runs.items()} if compiled else {}
    return {
        "ms": {name: 1000 * min(each) for name, each in seconds.items()},
        "launches": launches,
        "moved_bytes": sample.moved_bytes,
        "flops": sample.flops,
    }


def launched(run: Callable[[], object]) -> int:
    """Kernels that one call launches on the GPU, copies and fills among them."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        run()
        torch.cuda.synchronize()
    return sum(event.count for event in trace.key_averages() if str(event.device_type) == "DeviceType.CUDA")


def _add_shares(row: dict[str, Any], limits: dict[str, float]) -> None:
    """The larger of the two shares tells what holds a form back."""
    row["bandwidth_percent"] = {
        name: 100 * row["moved_bytes"] / (ms / 1000) / limits["bytes_per_second"] for name, ms in row["ms"].items()
    }
    row["flops_percent"] = {
        name: 100 * row["flops"] / (ms / 1000) / limits["flops_per_second"] for name, ms in row["ms"].items()
    }


def _table(found: dict[str, Any], limits: dict[str, float], compiled: bool) -> Table:
    rows = tuple(
        (
            name,
            form,
            f"{ms:.3f}",
            f"{row['bandwidth_percent'][form]:.0f}",
            f"{row['flops_percent'][form]:.0f}",
            str(row["launches"].get(form, "-")),
        )
        for name, row in found.items()
        for form, ms in row["ms"].items()
    )
    note = (
        f"Best of the rounds. Percent of what a copy ({limits['bytes_per_second'] / 1e9:.0f} GB/s) and a product of "
        f"matrices ({limits['flops_per_second'] / 1e12:.2f} TFLOP/s) reached here."
    )
    if not compiled:
        note += " Only the references were timed: kernels need a GPU."
    columns = ("operation", "form", "ms", "bandwidth %", "FLOP/s %", "launches")
    return Table("Kernels", columns, rows, note, text_columns=2)
