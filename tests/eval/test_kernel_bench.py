"""The bench of kernels: every case is there, shares follow from times, and nothing wrong is timed."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hypic.errors import InvalidRequestError
from hypic.eval import kernel_bench
from hypic.eval.kernel_bench import check_gate, run_kernels
from hypic.eval.ttft import GateError
from hypic.kernels.registry import KERNELS, ROTATE


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes of the self-check, which take no time."""

    def checked(case: Any) -> Any:
        return lambda size, dtype: case("check", dtype)

    kernels = [replace(k, cases={name: checked(case) for name, case in k.cases.items()}) for k in KERNELS]
    monkeypatch.setattr(kernel_bench, "KERNELS", kernels)
    monkeypatch.setattr(kernel_bench, "_COPIED_BYTES", {"cpu": 2**20})
    monkeypatch.setattr(kernel_bench, "_PRODUCT_SIZE", {"cpu": 32})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_report_on_a_cpu_is_of_the_references(small: None, dtype: str) -> None:
    report = run_kernels("cpu", dtype, rounds=2)
    results = report.results
    assert results["timed"] == "references"
    assert list(results["kernels"]) == [f"{kernel.name}: {case}" for kernel in KERNELS for case in kernel.cases]
    row = results["kernels"]["rotate: keys"]
    assert list(row["ms"]) == ["naive"]
    assert row["launches"] == {}
    expected = 100 * row["moved_bytes"] / (row["ms"]["naive"] / 1000) / results["limits"]["bytes_per_second"]
    assert row["bandwidth_percent"]["naive"] == pytest.approx(expected)
    assert "kernels need a GPU" in report.markdown()


def test_a_wrong_kernel_is_not_timed() -> None:
    def doubled(**arguments: Any) -> Tensor:
        return 2 * ROTATE.naive(**arguments)

    with pytest.raises(GateError, match=r"'rotate', case 'keys' is off by 1\.0e\+00"):
        check_gate(replace(ROTATE, triton=lambda: doubled), "keys", torch.float32, torch.device("cpu"))


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no device 'mps'"):
        run_kernels("mps", "float32", rounds=1)
