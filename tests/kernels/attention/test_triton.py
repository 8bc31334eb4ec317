"""The Triton attention against the reference, where its tiles, splits and layouts end."""

import math

import pytest
import torch

from hypic.kernels.attention import naive, triton
from hypic.kernels.attention.naive import Span

Case = tuple[list[tuple[Span, ...]], int, int, int, int, int | None, bool]

# Spans of each text; query and key heads; K and V; window; sinks.
CASES: dict[str, Case] = {
    "one token": ([((0, 1),)], 1, 1, 16, 16, None, False),
    "63, heads of 24 and 40": ([((0, 63),)], 2, 1, 24, 40, None, False),
    "64 over earlier keys": ([((66, 64),)], 2, 2, 16, 16, None, False),
    "65 and 130, groups of 3": ([((0, 65),), ((0, 130),)], 6, 2, 16, 8, None, True),
    "seams of two texts": ([((3, 8), (40, 8), (120, 10)), ((0, 8), (9, 1))], 4, 1, 48, 16, None, False),
    "window": ([((0, 130),), ((129, 1),)], 2, 1, 16, 16, 7, True),
    "texts and spans without queries": ([(), ((5, 0), (9, 2)), ((0, 0),)], 2, 1, 16, 16, None, False),
    "a head wider than 128": ([((20, 3),)], 2, 1, 192, 136, None, False),
}


def drawn(case: Case, device: torch.device, dtype: torch.dtype = torch.float32) -> tuple[object, ...]:
    """Arguments of `attention_batch`. Keys and values are views of a memory with room for more, as in service."""
    spans, heads, kv_heads, key_dim, value_dim, window, sinks = case
    generator = torch.Generator().manual_seed(0)
    queries = sum(count for text in spans for _, count in text)
    lengths = [max((at + count for at, count in text), default=1) for text in spans]
    q = torch.randn(queries, heads, key_dim, generator=generator).to(device, dtype)
    keys, values = (
        [
            torch.randn(2, length + 9, kv_heads, dim, generator=generator).to(device, dtype)[1, :length]
            for length in lengths
        ]
        for dim in (key_dim, value_dim)
    )
    scores = torch.randn(heads, generator=generator).to(device) * 3 if sinks else None
    return q, keys, values, spans, key_dim**-0.5, window, scores


@pytest.mark.parametrize(
    ("name", "split"), [*((name, False) for name in CASES), ("seams of two texts", True), ("window", True)]
)
def test_is_the_reference(name: str, split: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    if split:  # into parts of few keys, some of which see nothing
        monkeypatch.setattr(triton, "_LEAST_KEYS", 24)
        monkeypatch.setattr(triton, "_PROGRAMS", 16)
    arguments = drawn(CASES[name], device)
    found, expected = triton.attention_batch(*arguments), naive.attention_batch(*arguments)  # type: ignore[arg-type]
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, atol=5e-6, rtol=0)


def test_bfloat16(device: torch.device) -> None:
    arguments = drawn(CASES["65 and 130, groups of 3"], device, torch.bfloat16)
    found, expected = triton.attention_batch(*arguments), naive.attention_batch(*arguments)  # type: ignore[arg-type]
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=0)


def test_scores_beyond_what_exponents_hold(device: torch.device) -> None:
    """One key stands out by 160, the rest is alike."""
    q, k = torch.full((4, 1, 16), 50.0, device=device), torch.full((12, 1, 16), -50.0, device=device)
    k[10] = 50.0
    v = torch.randn(12, 1, 16, generator=torch.Generator().manual_seed(0)).to(device)
    found = triton.attention(q, k, v, ((8, 4),), 0.002)
    torch.testing.assert_close(found, naive.attention(q, k, v, ((8, 4),), 0.002), atol=3e-5, rtol=0)
    assert found.isfinite().all()


def test_what_does_not_fit_is_refused(device: torch.device) -> None:
    q, k, v = (torch.zeros(shape, device=device) for shape in ((4, 2, 16), (65, 1, 16), (65, 1, 16)))
    for form in (naive, triton):
        for spans in (((0, 3),), ((63, 4),)):
            with pytest.raises(ValueError, match="do not fit"):
                form.attention(q, k, v, spans, 1.0)
        with pytest.raises(ValueError, match="do not divide"):
            form.attention(q, k.expand(65, 4, 16), v, ((0, 4),), 1.0)
        with pytest.raises(ValueError, match="values"):
            form.attention(q, k, v[:-1], ((0, 4),), 1.0)
        with pytest.raises(ValueError, match="each needs all"):
            form.attention_batch(q, [k], [v, v], [((0, 4),)], 1.0)
    with pytest.raises(ValueError, match="one dtype and layout"):
        triton.attention_batch(q, [k, k.repeat(1, 2, 1)[:, :1]], [v, v], [((0, 4),), ()], 1.0)


def test_scale_is_applied_once(device: torch.device) -> None:
    q, k = torch.ones(1, 1, 16, device=device), torch.tensor([1.0, 0.0], device=device)[:, None, None].expand(2, 1, 16)
    v = torch.tensor([1.0, 0.0], device=device)[:, None, None].expand(2, 1, 16).contiguous()
    share = float(triton.attention(q, k.contiguous(), v, ((1, 1),), 0.125)[0, 0, 0])
    assert share == pytest.approx(1 / (1 + math.exp(-2.0)), abs=1e-6)
