"""Attention at arbitrary positions against float64 softmax over an explicit mask."""

import pytest
import torch
from torch import Tensor

from hypic.kernels.attention.naive import Span, attention

SPANS: dict[str, tuple[Span, ...]] = {
    "from the start": ((0, 65),),
    "one": ((17, 1),),
    "first": ((0, 1),),
    "suffix": ((30, 35),),
    "seams": ((3, 8), (20, 8), (40, 25)),
    "all but one seam": ((0, 8), (9, 56)),
    "an empty span": ((3, 0), (5, 3), (64, 1)),
}


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    spans: tuple[Span, ...],
    scale: float,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(groups, dim=1) for x in (k, v))
    positions = torch.cat([torch.arange(at, at + n) for at, n in spans])
    scores = torch.einsum("thd,shd->hts", q.double(), k) * scale
    age = positions[:, None] - torch.arange(k.shape[0])[None, :]
    scores.masked_fill_((age < 0) | (age >= (window or len(k))), -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, len(positions), 1)], dim=-1)
    return torch.einsum("hts,shd->thd", scores.softmax(-1)[..., : len(k)], v)


@pytest.mark.parametrize("name", SPANS)
@pytest.mark.parametrize(("heads", "kv_heads", "value_dim"), [(4, 4, 16), (6, 2, 16), (4, 1, 24)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
def test_matches_explicit_mask(
    name: str, heads: int, kv_heads: int, value_dim: int, dtype: torch.dtype, tolerance: float
) -> None:
    generator = torch.Generator().manual_seed(1)
    spans = SPANS[name]
    q = torch.randn(sum(n for _, n in spans), heads, 16, generator=generator).to(dtype)
    k = torch.randn(65, kv_heads, 16, generator=generator).to(dtype)
    v = torch.randn(65, kv_heads, value_dim, generator=generator).to(dtype)
    output = attention(q, k, v, spans, 0.3)
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), reference(q, k, v, spans, 0.3), atol=tolerance, rtol=0)


def test_far_apart_scores_stay_finite() -> None:
    """Merging two parts must survive scores that differ by more than float32's exponent holds (160 here). The
    log-sum-exp of scores near 80 is known to 8e-6, hence the tolerance."""
    q = torch.full((4, 1, 8), 50.0)
    k = torch.full((12, 1, 8), -50.0)
    k[10] = 50.0
    v = torch.randn(12, 1, 8, generator=torch.Generator().manual_seed(0))
    output = attention(q, k, v, ((8, 4),), 0.004)
    torch.testing.assert_close(output.double(), reference(q, k, v, ((8, 4),), 0.004), atol=3e-5, rtol=0)


@pytest.mark.parametrize("spans", [((0, 3),), ((63, 4),)])
def test_refuses_spans_that_do_not_fit(spans: tuple[Span, ...]) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        attention(torch.zeros(4, 1, 8), torch.zeros(65, 1, 8), torch.zeros(65, 1, 8), spans, 1.0)


def test_refuses_heads_that_do_not_divide() -> None:
    with pytest.raises(ValueError, match="do not divide"):
        attention(torch.zeros(1, 3, 8), torch.zeros(2, 2, 8), torch.zeros(2, 2, 8), ((0, 1),), 1.0)


@pytest.mark.parametrize("name", SPANS)
@pytest.mark.parametrize("window", [None, 1, 7, 40, 65, 100])
@pytest.mark.parametrize("sinks", [False, True])
def test_windows_and_sinks(name: str, window: int | None, sinks: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    spans = SPANS[name]
    q = torch.randn(sum(n for _, n in spans), 6, 16, generator=generator)
    k, v = (torch.randn(65, 2, 16, generator=generator) for _ in range(2))
    scores = torch.randn(6, generator=generator) * 3 if sinks else None
    expected = reference(q, k, v, spans, 0.3, window, scores)
    torch.testing.assert_close(attention(q, k, v, spans, 0.3, window, scores).double(), expected, atol=3e-6, rtol=0)


def test_long_windows_are_cut_into_blocks() -> None:
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(500, 2, 8, generator=generator) for _ in range(3))
    expected = reference(q, k, v, ((0, 500),), 0.3, 70)
    torch.testing.assert_close(attention(q, k, v, ((0, 500),), 0.3, 70).double(), expected, atol=3e-6, rtol=0)
