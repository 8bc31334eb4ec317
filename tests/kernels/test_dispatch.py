"""Which form of an operation runs where, and what HYPIC_KERNELS may say."""

import sys
from collections.abc import Iterator

import pytest
import torch

from hypic.kernels import dispatch

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def read_again() -> Iterator[None]:
    """The variable is read once a process; here once a test."""
    dispatch.uses_triton.cache_clear()
    yield
    dispatch.uses_triton.cache_clear()


def chosen(device: torch.device) -> str:
    return dispatch.choose("naive", lambda: "triton", device)


@pytest.mark.parametrize(
    ("setting", "on_cpu", "on_cuda"),
    [
        (None, "naive", "triton"),
        ("auto", "naive", "triton"),
        ("naive", "naive", "naive"),
        ("triton", "triton", "triton"),
    ],
)
def test_setting_and_device_decide(
    monkeypatch: pytest.MonkeyPatch, setting: str | None, on_cpu: str, on_cuda: str
) -> None:
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    if setting:
        monkeypatch.setenv(dispatch.VARIABLE, setting)
    monkeypatch.setattr("triton.knobs.runtime.interpret", True)
    assert (chosen(CPU), chosen(CUDA)) == (on_cpu, on_cuda)


def test_unknown_word_is_refused_with_those_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(dispatch.VARIABLE, "cuda")
    with pytest.raises(dispatch.KernelChoiceError, match="'cuda'; allowed are auto, naive, triton"):
        chosen(CPU)


def test_triton_on_the_cpu_is_for_the_interpreter_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(dispatch.VARIABLE, "triton")
    monkeypatch.setattr("triton.knobs.runtime.interpret", False)
    with pytest.raises(dispatch.KernelChoiceError, match="TRITON_INTERPRET=1"):
        chosen(CPU)


def test_without_triton_auto_says_so_and_triton_refuses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setenv(dispatch.VARIABLE, "auto")
    assert chosen(CUDA) == "naive"
    assert "triton cannot be imported" in caplog.text
    dispatch.uses_triton.cache_clear()
    monkeypatch.setenv(dispatch.VARIABLE, "triton")
    with pytest.raises(dispatch.KernelChoiceError, match="cannot be imported"):
        chosen(CUDA)


def test_the_loader_is_not_called_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    assert dispatch.choose("naive", lambda: pytest.fail("loaded"), CPU) == "naive"
