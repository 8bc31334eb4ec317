"""What the kernel tests share: one thread, and uninitialised memory made visible."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tensors here are small: a second thread costs ten times what it saves where cores are shared."""
    torch.set_num_threads(1)


@pytest.fixture
def device() -> torch.device:
    """Where kernels are tested: compiled on a GPU, in Triton's interpreter elsewhere."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def nan_filled_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.empty and its kin return NaN, so that a value read before it is written shows."""

    def filled(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def wrapper(*args: object, **options: object) -> Tensor:
            tensor = make(*args, **options)
            return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

        return wrapper

    monkeypatch.setattr(torch, "empty", filled(torch.empty))
    monkeypatch.setattr(torch, "empty_like", filled(torch.empty_like))
    monkeypatch.setattr(Tensor, "new_empty", filled(Tensor.new_empty))
