"""Predicted transfers follow those that were seen."""

import pytest

from hypic.router.transfer import TransferEstimate


def test_nothing_seen_costs_nothing() -> None:
    transfers = TransferEstimate()
    transfers.add(0, 0, 1.0)  # a segment that never came
    assert (transfers.seconds(1000), transfers.bytes_of(100)) == (0.0, 0)


def test_bytes_are_a_state_and_so_much_a_token_and_seconds_follow_bytes() -> None:
    transfers = TransferEstimate()
    transfers.add(100, 1200, 0.012)
    assert transfers.bytes_of(700) == 1200
    for tokens in (200, 300, 400):
        transfers.add(tokens, 1000 + 2 * tokens, (1000 + 2 * tokens) * 1e-5)
    assert transfers.bytes_of(1000) == pytest.approx(3000, abs=2)
    assert transfers.seconds(3000) == pytest.approx(0.03)


def test_a_transfer_that_waited_for_its_receiver_changes_little() -> None:
    transfers = TransferEstimate()
    for _ in range(5):
        transfers.add(100, 1000, 0.01)
    transfers.add(100, 1000, 30.0)
    assert transfers.seconds(1000) == pytest.approx(0.01)
