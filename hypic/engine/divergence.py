"""How far one next-token distribution is from another: the one owner of the arithmetic."""

from torch import Tensor


def kl_nats(expected: Tensor, found: Tensor) -> Tensor:
    """KL(expected || found) of rows of log probabilities or logits `[T, vocabulary]`: float64 `[T]`, never below 0."""
    p, q = expected.double().log_softmax(-1), found.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1).clamp_min(0.0)
