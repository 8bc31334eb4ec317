"""Decays within chunks, against the difference before the exponential in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic.kernels.chunk_scan.chunking import channel_decays, group_product, scalar_decays, to_chunks
from hypic.kernels.runs import Runs

STRENGTHS = st.sampled_from([0.0, 1e-4, 0.1, 3.0, 50.0])


def gates(seed: int, strengths: tuple[float, float], *shape: int) -> torch.Tensor:
    """Log decays of two strengths, mixed at random, so that weak gates stand beside strong ones."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.where(torch.rand(shape, generator=generator) < 0.5, *strengths)
    return -scale * torch.rand(shape, generator=generator)


@pytest.mark.parametrize("tokens", [4, 8, 16, 32, 64])
@settings(max_examples=15, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000), strengths=st.tuples(STRENGTHS, STRENGTHS))
def test_channel_decays_in_float32(tokens: int, seed: int, strengths: tuple[float, float]) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows, key = torch.rand(2, 2, 3, tokens, 5, generator=generator)  # positive: no cancellation in the sums
    g = gates(seed, strengths, 2, 3, tokens, 5)
    found = channel_decays([rows, key], key, g)

    total = g.double().cumsum(2)
    between = (total.unsqueeze(3) - total.unsqueeze(2)).clamp(max=0).exp()  # [M, H, C, C, K]
    for row, product in zip((rows, key), found.products, strict=True):
        expected = torch.einsum("mhik,mhjk,mhijk->mhij", row.double(), key.double(), between).tril()
        torch.testing.assert_close(product.double(), expected, rtol=1e-5, atol=1e-37)  # exp(-80) and all
        assert float((product.double() - expected).abs().max()) <= 2e-6
    torch.testing.assert_close(found.from_start.double(), total.exp(), rtol=3e-5, atol=1e-37)
    torch.testing.assert_close(found.to_end.double(), (total[:, :, -1:] - total).exp(), rtol=3e-5, atol=1e-37)
    torch.testing.assert_close(found.log_decay, total[:, :, -1])


@settings(max_examples=15, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000), strengths=st.tuples(STRENGTHS, STRENGTHS))
def test_scalar_decays_in_float32(seed: int, strengths: tuple[float, float]) -> None:
    g = gates(seed, strengths, 2, 3, 32).double()
    from_start, to_end, between, log_decay = scalar_decays(g, torch.float32)
    total = g.cumsum(-1)
    torch.testing.assert_close(from_start.double()[..., 0], total.exp(), rtol=3e-5, atol=1e-37)
    torch.testing.assert_close(to_end.double()[..., 0], (total[..., -1:] - total).exp(), rtol=3e-5, atol=1e-37)
    expected = (total.unsqueeze(-1) - total.unsqueeze(-2)).clamp(max=0).exp()
    torch.testing.assert_close(between.double().tril(), expected.tril(), rtol=3e-5, atol=1e-37)
    assert torch.equal(log_decay, total[..., -1])


def test_scalar_decays_leave_their_input() -> None:
    g = torch.full((1, 1, 8), -0.5, dtype=torch.float64)
    found = scalar_decays(g, torch.float64)
    assert torch.equal(g, torch.full_like(g, -0.5))
    assert float(found[3]) == -4.0


def test_chunks_hold_each_token_once_and_zeros() -> None:
    runs = Runs.from_lengths([[3, 0, 20], [41]])
    x = torch.arange(1, 65.0).view(64, 1, 1).expand(64, 2, 3)
    chunks = to_chunks(x, runs)
    assert chunks.shape[1:] == (2, runs.schedule.chunk_tokens, 3)
    values = chunks[:, 1, :, 2].flatten()
    assert sorted(values[values != 0].tolist()) == list(range(1, 65))
    assert torch.equal(values[runs.schedule.scatter], x[:, 0, 0])


def test_group_product_shares_key_heads_in_a_row() -> None:
    shared, own = torch.randn(2, 3, 4, 5), torch.randn(2, 6, 4, 1)
    assert torch.equal(group_product(shared, own), shared.repeat_interleave(2, dim=1) * own)
