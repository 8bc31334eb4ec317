"""Every kernel of the registry against its reference, and an engine that refuses to serve with a wrong one."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hypic.config import EngineConfig
from hypic.engine import kernel_check
from hypic.engine.engine import Engine
from hypic.errors import WrongKernelError
from hypic.kernels import check, dispatch
from hypic.kernels.check import KernelMismatchError, check_kernels, deviation, tensors_of
from hypic.kernels.registry import KERNELS, ROTATE, Kernel
from hypic.kernels.samples import Sample

CASES = [(kernel, case) for kernel in KERNELS for case in kernel.cases]


@pytest.fixture
def with_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels everywhere, in the interpreter where there is no GPU."""
    monkeypatch.setenv(dispatch.VARIABLE, "triton")
    dispatch.uses_triton.cache_clear()
    yield
    dispatch.uses_triton.cache_clear()


def broken(kernel: Kernel[Any], change: Callable[[Tensor], object]) -> Kernel[Any]:
    """The kernel with a fault in its Triton form."""

    def wrong(*arguments: Any, **named: Any) -> Any:
        result = kernel.triton()(*arguments, **named)
        change(next(tensors_of(result)))
        return result

    return replace(kernel, triton=lambda: wrong)


@pytest.mark.parametrize(("kernel", "case"), CASES, ids=lambda part: getattr(part, "name", part))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_kernel_is_its_reference(kernel: Kernel[Any], case: str, dtype: torch.dtype, device: torch.device) -> None:
    found = deviation(kernel, kernel.cases[case]("check", dtype), device)
    assert found <= kernel.tolerances[dtype], f"off by {found:.1e}"


@pytest.mark.parametrize(("kernel", "case"), CASES, ids=lambda part: getattr(part, "name", part))
def test_samples_are_drawn_alike_and_say_what_they_take(kernel: Kernel[Any], case: str) -> None:
    one, other = (kernel.cases[case]("check", torch.float32) for _ in range(2))
    for a, b in zip(tensors_of(one.arguments), tensors_of(other.arguments), strict=True):
        assert torch.equal(a, b)
    results = list(tensors_of(kernel.naive(**one.arguments)))
    assert 0 < one.moved_bytes <= sum(t.nbytes for t in (*tensors_of(one.arguments), *results))


def test_a_wrong_kernel_is_named_with_its_error_and_the_way_out(with_triton: None, device: torch.device) -> None:
    off = broken(ROTATE, lambda tensor: tensor[0, -1].add_(0.01 * tensor.abs().max()))
    with pytest.raises(KernelMismatchError, match=r"'rotate' is wrong on .*'keys' in .*32 is off by 1\.") as told:
        check_kernels(device, torch.float32, [off])
    assert "1e-05 is allowed. Set HYPIC_KERNELS=naive" in str(told.value)
    check_kernels(device, torch.float32, [ROTATE])


def test_values_that_are_not_numbers_and_other_shapes_are_infinitely_off(device: torch.device) -> None:
    sample = ROTATE.cases["keys"]("check", torch.float32)
    assert deviation(broken(ROTATE, lambda tensor: tensor[0, 0].fill_(math.nan)), sample, device) == math.inf
    shorter = replace(ROTATE, triton=lambda: lambda x, cos, sin: x[:1])
    assert deviation(shorter, sample, device) == math.inf


def test_a_kernel_that_does_not_run_is_named_too(with_triton: None, device: torch.device) -> None:
    def fails(**arguments: Any) -> Tensor:
        raise RuntimeError("no kernel image is available")

    with pytest.raises(KernelMismatchError, match=r"does not run on .*no kernel image.*HYPIC_KERNELS=naive"):
        check_kernels(device, torch.float32, [replace(ROTATE, triton=lambda: fails)])


def test_arguments_are_copies(device: torch.device) -> None:
    def overwrites(x: Tensor, **others: Any) -> Tensor:
        return x.zero_()

    sample = Sample({"x": torch.ones(3)}, 1)
    kernel = Kernel("zero", overwrites, lambda: overwrites, {})
    assert deviation(kernel, sample, device) == 0
    assert float(sample.arguments["x"].sum()) == 3


def test_nothing_is_run_where_the_references_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "uses_triton", lambda device_type: False)
    monkeypatch.setattr(check, "uses_triton", lambda device_type: False)
    check_kernels(torch.device("cpu"), torch.float32, [broken(ROTATE, lambda tensor: tensor.zero_())])


def test_an_engine_does_not_start_with_a_wrong_kernel(
    with_triton: None, monkeypatch: pytest.MonkeyPatch, tiny_checkpoint: Path
) -> None:
    off = broken(ROTATE, lambda tensor: tensor.mul_(2))
    monkeypatch.setattr(kernel_check, "check_kernels", lambda device, dtype: check_kernels(device, dtype, [off]))
    with pytest.raises(WrongKernelError, match="'rotate' is wrong"):
        Engine(EngineConfig(model=tiny_checkpoint, threads=1, device="cuda" if torch.cuda.is_available() else "cpu"))
