"""The Triton convolution against the reference: spans shorter than its reach, empty ones, odd numbers of channels."""

import pytest
import torch

from hypic.kernels.causal_conv import naive, triton

APART = {torch.float32: {"atol": 3e-6, "rtol": 0.0}, torch.bfloat16: {"atol": 1e-2, "rtol": 2**-7}}
"""The interpreter cuts bfloat16 off where a GPU rounds it: up to a whole unit in the last place."""


@pytest.mark.parametrize(
    ("offsets", "channels", "width", "dtype"),
    [
        ((0, 1), 1, 4, torch.float32),
        ((0, 63), 130, 2, torch.float32),
        ((0, 64), 64, 4, torch.float32),
        ((0, 1, 3, 3, 130), 1, 4, torch.float32),
        ((0, 2, 65), 65, 4, torch.bfloat16),
    ],
)
def test_is_the_reference(
    offsets: tuple[int, ...], channels: int, width: int, dtype: torch.dtype, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((offsets[-1], channels), (channels, width), (channels,), (len(offsets) - 1, width - 1, channels))
    x, weight, bias, tails = (torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)
    for used in (bias, None):
        output, extended = triton.causal_conv(x, weight, used, offsets, tails)
        expected, expected_extended = naive.causal_conv(x, weight, used, offsets, tails)
        torch.testing.assert_close(output, expected, **APART[dtype])
        assert torch.equal(extended, expected_extended)


@pytest.mark.parametrize("rows", [1, 3])
def test_steps_are_the_reference(rows: int, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((rows, 130), (130, 4), (130,), (rows, 3, 130))
    x, weight, bias, tails = (torch.randn(shape, generator=generator).to(device) for shape in shapes)
    for used in (bias, None):
        output, after = triton.causal_conv_step(x, weight, used, tails)
        expected, expected_after = naive.causal_conv_step(x, weight, used, tails)
        torch.testing.assert_close(output, expected, atol=3e-6, rtol=0)
        assert torch.equal(after, expected_after)


def test_strided_inputs(device: torch.device) -> None:
    wide = torch.randn(65, 2, 40, device=device)
    x, tails, weight = (
        wide[:, 1],
        torch.randn(3, 1, 40, device=device).transpose(0, 1),
        torch.randn(40, 4, device=device),
    )
    output, _ = triton.causal_conv(x, weight, None, (0, 65), tails)
    torch.testing.assert_close(output, naive.causal_conv(x, weight, None, (0, 65), tails)[0], atol=3e-6, rtol=0)
    transposed = torch.randn(40, 2, device=device).T
    step, _ = triton.causal_conv_step(transposed, weight, None, tails.expand(2, 3, 40))
    expected, _ = naive.causal_conv_step(transposed, weight, None, tails.expand(2, 3, 40))
    torch.testing.assert_close(step, expected, atol=3e-6, rtol=0)


@pytest.mark.parametrize("form", [naive, triton], ids=["naive", "triton"])
def test_what_does_not_fit_is_refused(form: object, device: torch.device) -> None:
    x, weight, tails = (torch.zeros(shape, device=device) for shape in ((5, 4), (4, 4), (1, 3, 4)))
    for offsets in ((0, 4), (1, 5), (0, 3, 2, 5)):
        with pytest.raises(ValueError, match="spans must ascend"):
            form.causal_conv(x, weight, None, offsets, tails)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="tails must be"):
        form.causal_conv(x, weight, None, (0, 5), tails[:, :2])  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="tails must be"):
        form.causal_conv_step(x, weight, None, tails)  # type: ignore[attr-defined]
