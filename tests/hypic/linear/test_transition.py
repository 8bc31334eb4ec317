"""Shapes, identities and bytes of the three forms."""

import pytest
import torch

from hypic.kernels.compose.naive import apply_transition
from hypic.linear.transition import (
    TransitionForm,
    held_bytes,
    identity_transition,
    pair_bytes,
    state_shape,
    transition_shape,
)

FORMS: list[TransitionForm] = ["scalar", "diagonal", "dense"]


@pytest.mark.parametrize("form", FORMS)
def test_identity_changes_nothing(form: TransitionForm) -> None:
    identity = identity_transition(form, 3, 8)
    assert identity.shape == transition_shape(form, 3, 8)
    assert held_bytes(identity) == identity.numel() * 4
    state = torch.randn(state_shape(3, 8, 5))
    assert torch.equal(apply_transition(identity, state), state)


def test_bytes_of_qwen3_5_35b() -> None:
    """DESIGN 2.3: 30 layers of 32 heads of 128x128 in float32 are 60 MiB for S and 60 MiB for T."""
    mib = 30 * pair_bytes("dense", 32, 128, 128) / 2**20
    assert mib == 120
    assert pair_bytes("scalar", 32, 128, 128) - 32 * 128 * 128 * 4 == 32 * 4
    assert pair_bytes("dense", 32, 128, 128, torch.bfloat16) * 2 == pair_bytes("dense", 32, 128, 128)


def test_held_bytes_of_a_view_are_those_of_the_whole() -> None:
    whole = torch.zeros(10, 4)
    assert held_bytes(whole[0]) == held_bytes(whole) == 160


def test_refuses_an_unknown_form() -> None:
    with pytest.raises(ValueError, match="unknown transition form 'sparse'"):
        transition_shape("sparse", 1, 1)  # type: ignore[arg-type]
