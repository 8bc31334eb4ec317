"""The recurrence of DESIGN 2.1, written as it stands there: the oracle of the kernel and family tests."""

from typing import NamedTuple

import torch
from torch import Tensor


class Recurrence(NamedTuple):
    """output `[T, HV, V]`, state `[HV, K, V]`, transition `[HV, K, K]`, all float64."""

    output: Tensor
    state: Tensor
    transition: Tensor


def token_loop(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor | None, state: Tensor) -> Recurrence:
    """S_t = A_t S_{t-1} + u_t, with A_t written out as a matrix.

    q, k `[T, H, K]`, v `[T, HV, V]`, g None, `[HV]`, `[T, HV]` or `[T, HV, K]`, beta None or `[T, HV]`, state
    `[HV, K, V]`. The same order for all: A_t = (I - β k kᵀ) diag(decay), which for one decay a head is GDN's.
    """
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


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Frobenius norm of the difference over that of `expected`; shapes must agree."""
    assert found.shape == expected.shape
    return float((found.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-30))
