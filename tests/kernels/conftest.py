"""What the kernel tests share: uninitialised memory made visible, and the literal recurrence as oracle."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tensors here are small: a second thread costs ten times what it saves where cores are shared."""
    torch.set_num_threads(1)


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


class Recurrence(NamedTuple):
    """output `[T, HV, V]`, state `[HV, K, V]`, transition `[HV, K, K]`, all float64."""

    output: Tensor
    state: Tensor
    transition: Tensor


@pytest.fixture
def token_loop() -> Callable[..., Recurrence]:
    """The recurrence of DESIGN 2.1, S_t = A_t S_{t-1} + u_t, with A_t written out as a matrix.

    q, k `[T, H, K]`, v `[T, HV, V]`, g None, `[HV]`, `[T, HV]` or `[T, HV, K]`, beta None or `[T, HV]`, state
    `[HV, K, V]`. The same order for all: A_t = (I - β k kᵀ) diag(decay), which for one decay a head is GDN's.
    """

    def loop(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor | None, state: Tensor
    ) -> Recurrence:
        tokens, heads, key_dim = v.shape[0], v.shape[1], k.shape[2]
        q, k = (x.double().repeat_interleave(heads // x.shape[1], dim=1) for x in (q, k))
        identity = torch.eye(key_dim, dtype=torch.float64)
        log_decay = torch.zeros(tokens, heads, key_dim, dtype=torch.float64)
        if g is not None:
            log_decay += g.double() if g.ndim == 3 else g.double().expand(tokens, heads).unsqueeze(-1)
        state, transition, outputs = state.double(), identity.expand(heads, -1, -1), []
        for t in range(tokens):
            step = torch.diag_embed(log_decay[t].exp())
            write = k[t].unsqueeze(-1) * v[t].double().unsqueeze(-2)
            if beta is not None:
                strength = beta[t].double()[:, None, None]
                step = (identity - strength * k[t].unsqueeze(-1) * k[t].unsqueeze(-2)) @ step
                write = strength * write
            state, transition = step @ state + write, step @ transition
            outputs.append((q[t].unsqueeze(-1) * state).sum(-2))
        return Recurrence(torch.stack(outputs), state, transition)

    return loop


@pytest.fixture
def error() -> Callable[[Tensor, Tensor], float]:
    """Relative Frobenius error of the first against the second."""

    def relative(found: Tensor, expected: Tensor) -> float:
        assert found.shape == expected.shape
        return float((found.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-30))

    return relative
