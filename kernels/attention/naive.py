"""Causal attention whose queries may stand at any positions of a text: seams, suffixes, or all of it."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

Span = tuple[int, int]
"""Consecutive queries: the position of the first, and how many."""


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    spans: tuple[Span, ...],
    scale: float,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend from T queries to the keys at or before their positions.

    q: `[T, H, K]`, rotated. k: `[S, HK, K]`, v: `[S, HK, V]`, HK dividing H; key j stands at position j.
    spans: where the queries stand, in packed order; counts sum to T. scale: on the scores. window: how many keys a
    query sees, itself included; None for all. sinks: `[H]`, a score per head that takes its share of the softmax and
    gives no value (arXiv 2309.17453). Returns `[T, H, V]` in the dtype of q. Raises ValueError where rows and spans
    disagree or a query stands past the last key.
    """
    check_spans(q, [k], [v], [spans])
    output = q.new_empty(q.shape[0], q.shape[1], v.shape[-1])
    row = 0
    for position, count in spans if window is None else _blocks(spans, window):
        rows = slice(row, row + count)
        end = position + count
        if window is None or end <= window:
            attended, weight = _span(q[rows], k[:end], v[:end], scale)
        else:
            start = max(0, position - window + 1)
            attended, weight = _band(q[rows], k[start:end], v[start:end], scale, window)
        if sinks is not None:
            attended = (attended.float() * torch.sigmoid(weight - sinks.float()).unsqueeze(-1)).to(q.dtype)
        output[rows] = attended
        row += count
    return output


def attention_batch(
    q: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    spans: Sequence[tuple[Span, ...]],
    scale: float,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """`attention` of N texts: q `[T, H, K]` holds the queries of one after the other, keys, values and spans those of
    each. Texts without queries are allowed. Raises ValueError as `attention` does."""
    check_spans(q, keys, values, spans)
    outputs, row = [], 0
    for k, v, text in zip(keys, values, spans, strict=True):
        count = sum(n for _, n in text)
        outputs.append(attention(q[row : row + count], k, v, text, scale, window, sinks))
        row += count
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def check_spans(q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], spans: Sequence[tuple[Span, ...]]) -> None:
    """Raise ValueError unless the spans of N texts hold the T queries, each at or before the last key of its text, and
    heads fit."""
    if not len(keys) == len(values) == len(spans) > 0:
        raise ValueError(f"{len(spans)} texts have spans, {len(keys)} keys and {len(values)} values; each needs all")
    counted = sum(count for text in spans for _, count in text)
    for k, v, text in zip(keys, values, spans, strict=True):
        if q.shape[1] % k.shape[1]:
            raise ValueError(f"{k.shape[1]} key heads do not divide {q.shape[1]} query heads")
        if k.shape[:2] != v.shape[:2] or k.shape[2] != q.shape[2]:
            raise ValueError(
                f"keys must be [S, HK, {q.shape[2]}] and values [S, HK, V]; found {tuple(k.shape)}, {tuple(v.shape)}"
            )
        if counted != q.shape[0] or any(at + n > k.shape[0] for at, n in text):
            raise ValueError(f"spans {text} do not fit {q.shape[0]} queries over {k.shape[0]} keys")


def _blocks(spans: tuple[Span, ...], window: int) -> Iterator[Span]:
    """Spans cut so that the keys of a block are not many more than a query of it sees."""
    size = max(window, 64)
    for position, count in spans:
        for start in range(0, count, size):
            yield position + start, min(size, count - start)


def _span(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The last T of S positions attend: every earlier key without a mask, their own keys causally. Returns `[T, H, V]`
    and the log-sum-exp of the scores, float32 `[T, H]`."""
    before = k.shape[0] - q.shape[0]
    if not q.shape[0]:
        return q.new_empty(0, q.shape[1], v.shape[-1]), q.new_empty(0, q.shape[1], dtype=torch.float32)
    if q.shape[0] == 1:
        return _earlier(q, k, v, scale)
    if before == 0:
        return _own(q, k, v, scale)
    own, own_weight = _own(q, k[before:], v[before:], scale)
    earlier, earlier_weight = _earlier(q, k[:before], v[:before], scale)
    share = torch.sigmoid(earlier_weight - own_weight).unsqueeze(-1)  # softmax over the two parts
    attended = torch.lerp(own.float(), earlier.float(), share).to(q.dtype)
    return attended, torch.logaddexp(own_weight, earlier_weight)


def _band(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int) -> tuple[Tensor, Tensor]:
    """The last T of S positions attend to themselves and the `window` - 1 keys before."""
    groups, before = q.shape[1] // k.shape[1], k.shape[0] - q.shape[0]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = torch.einsum("thd,shd->hts", q.float(), k.float()) * scale
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(before).triu(before - window + 1)
    scores.masked_fill_(~seen, -torch.inf)
    output = torch.einsum("hts,shd->thd", scores.softmax(-1), v.float()).to(q.dtype)
    return output, scores.logsumexp(-1).T


def _own(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Causal square attention. Returns `[T, H, V]` and the log-sum-exp of the scores, float32 `[T, H]`."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    return _flash(q, k, v, causal=True, scale=scale)


def _earlier(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention without a mask; the heads of a group stack up as rows, so each key is read once."""
    tokens, heads, dim = q.shape
    groups = heads // k.shape[1]
    stacked = q.view(tokens, k.shape[1], groups, dim).transpose(1, 2).reshape(tokens * groups, k.shape[1], dim)
    output, weight = _flash(stacked, k, v, causal=False, scale=scale)
    output = output.view(tokens, groups, k.shape[1], -1).transpose(1, 2).reshape(tokens, heads, -1)
    return output, weight.view(tokens, groups, k.shape[1]).transpose(1, 2).reshape(tokens, heads)


def _flash(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    if q.device.type == "cpu" and q.shape[-1] == v.shape[-1]:
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))  # [1, H, T, D]
        output, weight = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
        return output[0].transpose(0, 1), weight[0].T
    scores = torch.einsum("thd,shd->hts", q.float(), k.float()) * scale
    if causal:
        scores.masked_fill_(torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1), -torch.inf)
    output = torch.einsum("hts,shd->thd", scores.softmax(-1), v.float()).to(q.dtype)
    return output, scores.logsumexp(-1).T
