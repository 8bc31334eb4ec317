"""The Triton rotation against the reference: sizes, partial rotation, views, and writing in place of copying."""

import pytest
import torch

from hypic.kernels.rope import naive, triton

APART = {torch.float32: {"atol": 1e-6, "rtol": 0.0}, torch.bfloat16: {"atol": 1e-2, "rtol": 2**-7}}
"""The interpreter cuts bfloat16 off where a GPU rounds it: up to a whole unit in the last place."""


@pytest.mark.parametrize(
    ("tokens", "heads", "dim", "half"), [(1, 1, 16, 8), (63, 3, 24, 8), (64, 2, 40, 4), (65, 2, 16, 8), (130, 1, 6, 2)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_is_the_reference(
    tokens: int, heads: int, dim: int, half: int, dtype: torch.dtype, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, heads, dim, generator=generator).to(device, dtype)
    cos, sin = torch.randn(2, tokens, half, generator=generator).to(device)
    found, expected = triton.rotate(x, cos, sin), naive.rotate(x, cos, sin)
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected, **APART[dtype])


def test_cached_keys_are_placed_in_a_span_of_a_memory_of_another_dtype(device: torch.device) -> None:
    keys = torch.randn(3, 65, 2, 20, device=device)[:2]  # two layers
    cos, sin = torch.randn(2, 65, 6, device=device)
    memory = torch.full((2, 100, 2, 20), torch.nan, dtype=torch.bfloat16, device=device)
    triton.rotate(keys, cos, sin, out=memory[:, 30:95])
    torch.testing.assert_close(memory[:, 30:95], naive.rotate(keys, cos, sin).bfloat16(), **APART[torch.bfloat16])
    assert memory[:, :30].isnan().all()
    assert memory[:, 95:].isnan().all()


def test_transposed_input_and_no_tokens(device: torch.device) -> None:
    x = torch.randn(2, 5, 8, device=device).transpose(0, 1)
    cos, sin = torch.randn(2, 5, 4, device=device)
    torch.testing.assert_close(triton.rotate(x, cos, sin), naive.rotate(x, cos, sin), atol=1e-6, rtol=0)
    assert triton.rotate(x[:0], cos[:0], sin[:0]).shape == (0, 2, 8)


@pytest.mark.parametrize("form", [naive, triton], ids=["naive", "triton"])
def test_what_does_not_fit_is_refused(form: object, device: torch.device) -> None:
    x, angle = torch.zeros(3, 1, 8, device=device), torch.zeros(3, 4, device=device)
    for cos, sin in ((angle[:2], angle[:2]), (angle, angle[:, :2]), (angle.repeat(1, 2), angle.repeat(1, 2))):
        with pytest.raises(ValueError, match="cos and sin must be"):
            form.rotate(x, cos, sin)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="out must be"):
        form.rotate(x, angle, angle, out=torch.zeros(2, 1, 8, device=device))  # type: ignore[attr-defined]
