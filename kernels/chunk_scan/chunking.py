"""From packed tokens to chunks: gathering, and the decays between the tokens of one chunk.

Decays are never divided: exp(G_i)·exp(-G_j) overflows for strong gates. Every exponent here is the sum of the
log decays strictly between two tokens, so it is <= 0 and exact from log decay 0 to -50 a token and beyond.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hypic.kernels.runs import Runs


def check_inputs(q: Tensor, k: Tensor, v: Tensor, runs: Runs, initial_states: Tensor) -> None:
    """Raise ValueError unless q, k are `[T, H, K]`, v `[T, HV, V]` with H dividing HV, T the tokens of
    `runs`, and initial_states `[N, HV, K, V]`."""
    tokens, heads = v.shape[:2]
    if tokens != runs.num_tokens:
        raise ValueError(f"runs hold {runs.num_tokens} tokens, but v has {tokens}")
    if q.shape != k.shape or q.shape[0] != tokens or heads % q.shape[1]:
        raise ValueError(
            f"q and k must be [{tokens}, H, K] with H dividing {heads}; found {tuple(q.shape)}, {tuple(k.shape)}"
        )
    expected = (runs.num_sequences, heads, q.shape[2], v.shape[2])
    if initial_states.shape != expected:
        raise ValueError(f"initial_states must be {expected}; found {tuple(initial_states.shape)}")


def to_chunks(x: Tensor, runs: Runs) -> Tensor:
    """Packed `[T, H, D]` as chunks `[M, H, C, D]` in schedule order, padding zero. A view: C and H are
    swapped in memory, so that the caller's next operation can lay the result out as it needs."""
    gather = runs.schedule.gather.to(x.device)  # [M, C]
    chunks = x.index_select(0, gather.flatten().clamp(max=x.shape[0] - 1)) if len(x) else x
    if gather.numel() != runs.num_tokens:
        chunks[gather.flatten() == runs.num_tokens] = 0
    return chunks.view(*gather.shape, *x.shape[1:]).transpose(1, 2)


def group_product(shared: Tensor, own: Tensor) -> Tensor:
    """`[M, H, ...]` times `[M, HV, ...]`, key head h serving HV/H value heads in a row: `[M, HV, ...]`."""
    groups = own.shape[1] // shared.shape[1]
    return (shared.unsqueeze(2) * torch.unflatten(own, 1, (-1, groups))).flatten(1, 2)


def to_value_heads(shared: Tensor, heads: int) -> Tensor:
    """`[M, H, C, D]` as `[M, HV, C, D]`, contiguous, key head h serving HV/H value heads in a row."""
    return shared.repeat_interleave(heads // shared.shape[1], dim=1)


def scalar_decays(log_decay: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Decays within chunks, from float64 log decays `[M, H, C]` per token.

    Returns those from the chunk's start and to its end, `[M, H, C, 1]`; those between tokens, `[M, H, C, C]`,
    whose strict upper triangle is meaningless; and the float64 log decay of the whole chunk, `[M, H]`.
    """
    total = log_decay.cumsum(-1)
    between = (total.unsqueeze(-1) - total.unsqueeze(-2)).to(dtype).clamp_(max=0).exp_()
    to_end = (total[..., -1:] - total).to(dtype).exp_()
    return total.to(dtype).exp().unsqueeze(-1), to_end.unsqueeze(-1), between, total[..., -1]


@dataclass(frozen=True)
class ChannelDecays:
    """Decays within chunks when every key channel has its own.

    from_start, to_end: `[M, H, C, K]`. products: one `[M, H, C, C]` for each of the rows asked for, P_ij =
    Σ_c row_ic · key_jc · exp(Σ_{j<t<=i} g_tc) for j <= i, and 0 above. log_decay: float64 `[M, H, K]`.
    """

    from_start: Tensor
    to_end: Tensor
    products: list[Tensor]
    log_decay: Tensor


def channel_decays(rows: Sequence[Tensor], key: Tensor, log_decay: Tensor) -> ChannelDecays:
    """Decays and decayed products; rows, key, log_decay: `[M, H, C, K]`, C a power of two.

    Blocks of 1, 2, 4, ... tokens are joined in twos: the later one's rows decay since the middle, the earlier one's
    keys until the middle, and both exponents are plain sums of log decays.
    """
    products = [torch.diag_embed((row * key).sum(-1)) for row in rows]
    since, until = log_decay.clone(), torch.zeros_like(log_decay)  # in a token's block: up to it, and after it
    size = 1
    while size < key.shape[2]:
        earlier_key, (since_0, since_1), until_0 = _halve(key, size)[0], _halve(since, size), _halve(until, size)[0]
        decayed_key = (until_0.exp() * earlier_key).mT
        decay = since_1.exp()
        for product, row in zip(products, rows, strict=True):
            corner = _diagonal_blocks(product, 2 * size)[..., size:, :size]  # [M, H, B, size, size]
            corner.copy_((decay * _halve(row, size)[1]) @ decayed_key)
        until_0 += since_1[..., -1:, :]
        since_1 += since_0[..., -1:, :]
        size *= 2
    return ChannelDecays(since.exp_(), until.exp_(), products, log_decay.sum(-2, dtype=torch.float64))


def _halve(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Earlier and later halves of the blocks of 2 * size tokens of `[M, H, C, K]`: views, `[M, H, B, size, K]`."""
    blocks = x.view(*x.shape[:2], x.shape[2] // (2 * size), 2, size, x.shape[3])
    return blocks[:, :, :, 0], blocks[:, :, :, 1]


def _diagonal_blocks(matrix: Tensor, size: int) -> Tensor:
    """The diagonal blocks `[M, H, C/size, size, size]` of `[M, H, C, C]`, as a view."""
    blocks = matrix.shape[-1] // size
    split = matrix.view(*matrix.shape[:2], blocks, size, blocks, size)
    return split.diagonal(dim1=2, dim2=4).movedim(-1, 2)
