"""Attention in Triton, for queries at any positions of many texts at once: prefill, seams and decoding are one kernel.

Work falls into tiles: consecutive queries of one span, all heads of a group side by side as rows, so that each key is
read once for all of them. Seams and single tokens have few rows and long texts; there the keys are split among programs
too, and a second kernel joins what they found. Each text has keys and values of its own, found by their addresses: no
row is padded, and nothing is copied together first.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hypic.kernels.attention.naive import Span, check_spans

_ROWS, _WIDE_ROWS = 64, 32
"""Queries times heads of a group in a tile; the second where a head has more than 128 dimensions."""

_PROGRAMS = 264
"""Two for each multiprocessor of an H100 or H200: with fewer tiles than that, keys are split."""

_LEAST_KEYS = 256
"""Of a split: with fewer, joining costs more than it saves."""

LOG2E = tl.constexpr(1.4426950408889634)
"""Exponentials are powers of two: one instruction."""


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    spans: tuple[Span, ...],
    scale: float,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """As in `naive.py`."""
    return attention_batch(q, [k], [v], [spans], scale, window, sinks)


@torch.no_grad()
def attention_batch(
    q: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    spans: Sequence[tuple[Span, ...]],
    scale: float,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """As in `naive.py`. Keys, and values, of all texts must have the same strides, as views of like memories have;
    ValueError if not. Scores and sums are float32; products of float32 are three products of TF32, which keep all but
    its last two bits or so."""
    check_spans(q, keys, values, spans)
    for name, tensors in (("keys", keys), ("values", values)):
        layouts = {(tensor.stride(), tensor.dtype) for tensor in tensors}
        if len(layouts) > 1 or tensors[0].stride(2) != 1:
            raise ValueError(f"{name} of one batch must have one dtype and layout, heads contiguous; found {layouts}")
    output = q.new_empty(q.shape[0], q.shape[1], values[0].shape[2])
    if q.shape[0]:
        heads, kv_heads = q.shape[1], keys[0].shape[1]
        group = triton.next_power_of_2(heads // kv_heads)
        rows = _ROWS if _narrow(keys[0], values[0]) else _WIDE_ROWS
        tiles = _tiles(tuple(spans), max(1, rows // group), q.device)
        places = torch.tensor([[k.data_ptr(), v.data_ptr()] for k, v in zip(keys, values, strict=True)])
        reach = tiles.last if window is None else min(tiles.last, window + _ROWS)
        splits = max(1, min(_PROGRAMS // (len(tiles.rows) * kv_heads), reach // _LEAST_KEYS))
        work = _Work(q.contiguous(), keys[0], values[0], places.to(q.device), tiles, group, splits)
        _launch(work, scale, window, sinks, output)
    return output


def _product_type(dtype: torch.dtype) -> tl.dtype:
    """What is multiplied: as it comes, but Triton's interpreter takes the bits of bfloat16 for integers."""
    if dtype == torch.bfloat16 and triton.knobs.runtime.interpret:
        return tl.float32
    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}.get(dtype, tl.float32)


def _narrow(k: Tensor, v: Tensor) -> bool:
    return max(k.shape[2], v.shape[2]) <= 128


class _Tiles(NamedTuple):
    """rows: text, first packed query, how many, and the position of the first, int64 `[tiles, 4]`. most: queries of a
    tile. last: one past the last position."""

    rows: Tensor
    most: int
    last: int


@lru_cache(maxsize=16)
def _tiles(spans: tuple[tuple[Span, ...], ...], tokens: int, device: torch.device) -> _Tiles:
    """Tiles of at most so many queries. One table serves all layers of a forward."""
    rows: list[tuple[int, int, int, int]] = []
    packed = 0
    for number, text in enumerate(spans):
        for position, count in text:
            cuts = [*range(0, count, tokens), count]
            rows += [(number, packed + at, end - at, position + at) for at, end in pairwise(cuts)]
            packed += count
    table = torch.tensor(rows, dtype=torch.int64).to(device)
    return _Tiles(table, max(row[2] for row in rows), max(row[2] + row[3] for row in rows))


class _Work(NamedTuple):
    """q, contiguous. k, v: of one text, for their layout. places: addresses of the keys and values of each text, int64
    `[N, 2]`. group: heads of a group, rounded up to a power of two. splits: of the keys."""

    q: Tensor
    k: Tensor
    v: Tensor
    places: Tensor
    tiles: _Tiles
    group: int
    splits: int


def _launch(work: _Work, scale: float, window: int | None, sinks: Tensor | None, output: Tensor) -> None:
    """One launch, or where keys are split another one, that joins their parts."""
    q, k, v, splits = work.q, work.k, work.v, work.splits
    tokens, heads, key_dim, value_dim = *q.shape, v.shape[2]
    parts = q.new_empty(splits, tokens, heads, value_dim, dtype=torch.float32) if splits > 1 else output
    weights = q.new_empty(splits, tokens, heads, 2, dtype=torch.float32) if splits > 1 else output
    first = max(16, triton.next_power_of_2(key_dim + 1) // 2)  # 192 is 128 and 64: less is wasted than on 256
    narrow, sink = _narrow(k, v), q if sinks is None else sinks
    _attend[(len(work.tiles.rows), k.shape[1], splits)](
        q,
        k,
        v,
        work.places,
        work.tiles.rows,
        sink,
        parts,
        weights,
        tokens,
        heads,
        heads // k.shape[1],
        key_dim,
        value_dim,
        *k.stride()[:2],
        *v.stride()[:2],
        scale * LOG2E.value,
        window or 0,
        splits,
        WINDOW=window is not None,
        SINKS=sinks is not None,
        SPLIT=splits > 1,
        ROWS=max(16, triton.next_power_of_2(work.tiles.most) * work.group),
        GROUP=work.group,
        KEYS=64 if narrow else 32,
        FIRST=first,
        SECOND=max(16, triton.next_power_of_2(key_dim - first)) if key_dim > first else 0,
        VALUES=max(16, triton.next_power_of_2(value_dim)),
        PRODUCT=_product_type(q.dtype),
        num_warps=4 if narrow else 8,
        num_stages=2 if narrow else 1,
    )
    if splits > 1:
        shape = (tokens, heads, value_dim, splits)
        values = triton.next_power_of_2(value_dim)
        _join[(tokens, heads)](parts, weights, sink, output, *shape, SINKS=sinks is not None, VALUES=values)


# fmt: off
@triton.jit
def _attend(
    q, k, v, places, tiles, sinks, parts, weights, tokens, heads, group_heads, key_dim, value_dim,
    k_token, k_head, v_token, v_head, scale, window, splits,
    WINDOW: tl.constexpr, SINKS: tl.constexpr, SPLIT: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr,
    KEYS: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, VALUES: tl.constexpr, PRODUCT: tl.constexpr,
):
    # fmt: on
    tile = tiles + 4 * tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    text, packed, count, position = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    keys = tl.load(places + 2 * text).to(k.dtype) + kv_head * k_head
    values = tl.load(places + 2 * text + 1).to(v.dtype) + kv_head * v_head
    token, member = tl.arange(0, ROWS) // GROUP, tl.arange(0, ROWS) % GROUP
    valid = (token < count) & (member < group_heads)
    place = (packed + token) * heads + kv_head * group_heads + member  # of the row in q and output

    begin, end = position * 0, position + count
    if WINDOW:
        begin = tl.maximum(begin, position - window + 1)
    if SPLIT:
        share = tl.cdiv(tl.cdiv(end - begin, KEYS), splits) * KEYS
        begin += tl.program_id(2) * share
        end = tl.minimum(end, begin + share)
    top, total, read = _read(
        q + place * key_dim, valid, position + token, keys, values, begin, end, key_dim, value_dim, k_token, v_token,
        scale, window, WINDOW, ROWS, KEYS, FIRST, SECOND, VALUES, PRODUCT,
    )  # fmt: skip

    if SPLIT:
        place += tl.program_id(2).to(tl.int64) * tokens * heads
        tl.store(weights + 2 * place, top, mask=valid)
        tl.store(weights + 2 * place + 1, total, mask=valid)
    else:
        if SINKS:
            sink = tl.load(sinks + kv_head * group_heads + member, mask=valid, other=0.0).to(tl.float32) * LOG2E
            higher = tl.maximum(top, sink)
            total = total * tl.exp2(top - higher) + tl.exp2(sink - higher)
            read = read * tl.exp2(top - higher)[:, None]
        read = read / tl.where(total > 0, total, 1.0)[:, None]  # rows that are none have seen nothing
    channel = tl.arange(0, VALUES)
    inside = valid[:, None] & (channel < value_dim)[None, :]
    tl.store(parts + place[:, None] * value_dim + channel[None, :], read, mask=inside)


# fmt: off
@triton.jit
def _read(
    own, valid, at, keys, values, begin, end, key_dim, value_dim, k_token, v_token, scale, window,
    WINDOW: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr,
    VALUES: tl.constexpr, PRODUCT: tl.constexpr,
):
    """Online softmax of rows at positions `at` over keys begin to end - 1: the highest score, and relative to it the
    sums of exponentials and of values."""
    # fmt: on
    channel, rest = tl.arange(0, FIRST), FIRST + tl.arange(0, SECOND if SECOND else 1)
    query = _load(own, valid, channel, key_dim).to(PRODUCT)
    query_rest = query
    if SECOND:
        query_rest = _load(own, valid, rest, key_dim).to(PRODUCT)
    top = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    read = tl.zeros([ROWS, VALUES], dtype=tl.float32)
    for start in range(begin, end, KEYS):
        key = start + tl.arange(0, KEYS).to(tl.int64)
        there = key < end
        block = _load(keys + key * k_token, there, channel, key_dim).to(PRODUCT)
        scores = tl.dot(query, tl.trans(block), input_precision="tf32x3")
        if SECOND:
            block_rest = _load(keys + key * k_token, there, rest, key_dim).to(PRODUCT)
            scores = tl.dot(query_rest, tl.trans(block_rest), scores, input_precision="tf32x3")
        seen = there[None, :] & (key[None, :] <= at[:, None])
        if WINDOW:
            seen = seen & (key[None, :] > at[:, None] - window)
        scores = tl.where(seen, scores * scale, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        finite = tl.where(higher == float("-inf"), 0.0, higher)  # nothing seen yet
        shares = tl.exp2(scores - finite[:, None])
        shrink = tl.exp2(top - finite)
        total = total * shrink + tl.sum(shares, 1)
        value = _load(values + key * v_token, there, tl.arange(0, VALUES), value_dim).to(PRODUCT)
        read = tl.dot(shares.to(PRODUCT), value, read * shrink[:, None], input_precision="tf32x3")
        top = higher
    return top, total, read


@triton.jit
def _load(rows, there, channel, width):
    """Channels of rows by their addresses, zero where there is no row or no channel: `[rows, channels]`."""
    return tl.load(rows[:, None] + channel[None, :], mask=there[:, None] & (channel < width)[None, :], other=0.0)


@triton.jit
def _join(
    parts,
    weights,
    sinks,
    output,
    tokens,
    heads,
    value_dim,
    splits,
    SINKS: tl.constexpr,
    VALUES: tl.constexpr,
):
    head = tl.program_id(1)
    place = tl.program_id(0).to(tl.int64) * heads + head
    channel = tl.arange(0, VALUES)
    inside = channel < value_dim
    top = tl.load(weights + 2 * place)
    for split in range(1, splits):
        top = tl.maximum(top, tl.load(weights + 2 * (place + tl.cast(split, tl.int64) * tokens * heads)))
    total = top * 0.0
    if SINKS:
        sink = tl.load(sinks + head).to(tl.float32) * LOG2E
        top = tl.maximum(top, sink)
        total = tl.exp2(sink - top)
    read = tl.zeros([VALUES], dtype=tl.float32)
    for split in range(splits):
        part = place + tl.cast(split, tl.int64) * tokens * heads
        weight = tl.exp2(tl.load(weights + 2 * part) - top)
        total += tl.load(weights + 2 * part + 1) * weight
        read += tl.load(parts + part * value_dim + channel, mask=inside, other=0.0) * weight
    tl.store(output + place * value_dim + channel, read / total, mask=inside)
