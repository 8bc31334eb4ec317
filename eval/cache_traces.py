"""Hit rates of the cache on two real traces: how much of what was asked for again was still there.

RAGPulse asks for passages in any order, so it goes through the segment store; Mooncake continues conversations, so it
goes through the prefix tree. Payloads are stand-ins of the true number of bytes: what is kept and what goes is the
product's own code. Neither trace has text in it.
"""

import gzip
import heapq
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hypic.cache.eviction import CostAware, Policy
from hypic.cache.memory import Memory
from hypic.cache.sessions import Ticket
from hypic.cache.store import Lease, Store
from hypic.cache.tiers.ram import RamTier
from hypic.cache.tree.component import Shape
from hypic.cache.tree.growth import Offer, Span
from hypic.cache.tree.node import token_bytes
from hypic.cache.tree.tree import Tree

DATA = Path(__file__).resolve().parent / "data"

POLICIES = ("lru", "session", "cost")
"""Least recently used; the same with sessions' references going last; recompute seconds saved per byte."""

KV_BYTES_A_TOKEN, PAIR_BYTES = 20 * 1024, 30 * 1024**2
"""Of Qwen3.5-35B-A3B: keys and values of a token, and a segment's state and transition in the compact formats."""

IDLE_SECONDS = 1800.0
"""A session that was not heard of for so long has been closed by its client."""


@dataclass(frozen=True)
class Blob:
    """A payload that is only its size."""

    key: bytes
    nbytes: int
    tokens: int = 0

    def split(self, at_tokens: int) -> tuple["Blob", "Blob"]:
        left = self.nbytes * at_tokens // self.tokens
        return Blob(b"", left, at_tokens), Blob(b"", self.nbytes - left, self.tokens - at_tokens)


@dataclass(frozen=True)
class Request:
    """One line of a trace. ids: passages, or blocks of a prefix. tokens: of each."""

    seconds: float
    session: str
    ids: tuple[int, ...]
    tokens: tuple[int, ...]


def read_ragpulse(path: Path | None = None) -> list[Request]:
    """Requests in order of time, those without passages left out. path: None for the trace that is shipped."""
    head, rows = trace_lines(path or DATA / "ragpulse.jsonl.gz")
    lengths = {int(key): value for key, value in head["lengths"].items()}
    requests = [
        Request(row[0], str(row[1]), tuple(row[4]), tuple(lengths[passage] for passage in row[4])) for row in rows
    ]
    return sorted((request for request in requests if request.ids), key=lambda request: request.seconds)


def read_mooncake(path: Path | None = None) -> list[Request]:
    """Requests in order of time, whole blocks alone: one that is not full is another one once the text goes on. The
    trace names no sessions: a request belongs to the one whose prompt it goes on from, found by the deepest block
    that they share beyond the first, which all share."""
    head, rows = trace_lines(path or DATA / "mooncake.jsonl.gz")
    size = head["block_tokens"]
    owner: dict[int, str] = {}
    requests = []
    for number, row in enumerate(rows):
        runs = zip(row[3][::2], row[3][1::2], strict=True)
        ids = tuple(block for first, count in runs for block in range(first, first + count))
        ids = ids[: row[1] // size]
        if not ids:
            continue
        session = next((owner[block] for block in reversed(ids[1:]) if block in owner), str(number))
        owner.update(dict.fromkeys(ids[1:], session))
        requests.append(Request(row[0] / 1000, session, ids, (size,) * len(ids)))
    return requests


def passage_bytes(tokens: int) -> int:
    return tokens * KV_BYTES_A_TOKEN + PAIR_BYTES


def recompute_seconds(tokens: int, before: int = 0) -> float:
    """A prefill's cost as the cost model has it, linear and quadratic; the unit does not matter for an order."""
    return 4e-5 * tokens + 1e-10 * tokens * (2 * before + tokens)


def distinct_bytes_of_passages(requests: Sequence[Request]) -> int:
    sizes = {key: tokens for request in requests for key, tokens in zip(request.ids, request.tokens, strict=True)}
    return sum(passage_bytes(tokens) for tokens in sizes.values())


def memory_of(policy: str, device_bytes: int, host_bytes: int = 0) -> Memory:
    chosen: Policy | None = CostAware() if policy == "cost" else None
    lower = [RamTier("host", host_bytes)] if host_bytes else []
    return Memory([RamTier("device", device_bytes), *lower], chosen)


class SessionClock:
    """Opens sessions when they are heard of and closes them once they are idle."""

    def __init__(self, memory: Memory, enabled: bool) -> None:
        self._sessions, self._enabled = memory.sessions, enabled
        self._last: OrderedDict[str, float] = OrderedDict()

    def ticket(self, request: Request) -> Ticket | None:
        if not self._enabled:
            return None
        while self._last and request.seconds - next(iter(self._last.values())) > IDLE_SECONDS:
            self._sessions.close(self._last.popitem(last=False)[0])
        self._last[request.session] = request.seconds
        self._last.move_to_end(request.session)
        return self._sessions.open(request.session)


def passage_hit_rate(requests: Sequence[Request], policy: str, device_bytes: int, host_bytes: int = 0) -> float:
    """Share of passage tokens that were in the segment store when they were asked for, 0 to 1."""
    memory = memory_of(policy, device_bytes, host_bytes)
    store: Store[Blob] = Store(memory, seconds_of=lambda blob: recompute_seconds(blob.tokens))
    clock = SessionClock(memory, policy == "session")
    hit = total = 0
    for request in requests:
        ticket = clock.ticket(request)
        leases: list[Lease[Blob]] = []
        for passage, tokens in zip(request.ids, request.tokens, strict=True):
            key = passage.to_bytes(8, "little")
            total += tokens
            lease = store.lease(key)
            if lease is not None:
                leases.append(lease)
                hit += tokens
            else:
                store.insert(Blob(key, passage_bytes(tokens), tokens))
        memory.sessions.register(ticket, [lease.cell for lease in leases])
        for lease in leases:
            lease.release()
    store.check()
    return hit / total


def passage_bound(requests: Sequence[Request]) -> float:
    """With room for everything: all but the first reference of each passage."""
    seen: set[int] = set()
    hit = total = 0
    for request in requests:
        for passage, tokens in zip(request.ids, request.tokens, strict=True):
            total += tokens
            hit += tokens if passage in seen else 0
            seen.add(passage)
    return hit / total


def foresight_hit_rate(requests: Sequence[Request], device_bytes: int) -> float:
    """What a cache that knows the future keeps: whatever is asked for again furthest ahead goes (Belady), and what is
    further ahead than all that is kept is not taken in. Sizes being nearly equal, about the best there is: see
    `fractional_limit`."""
    references = [pair for r in requests for pair in zip(r.ids, r.tokens, strict=True)]
    following, later = [0] * len(references), dict[int, int]()
    for at in reversed(range(len(references))):
        following[at] = later.get(references[at][0], len(references) + at)
        later[references[at][0]] = at
    kept: dict[int, int] = {}
    ahead: list[tuple[int, int, int]] = []
    used = hit = 0
    for at, (passage, tokens) in enumerate(references):
        if passage in kept:
            hit += tokens
        else:
            used += passage_bytes(tokens)
        kept[passage] = following[at]
        heapq.heappush(ahead, (-following[at], passage, tokens))
        while used > device_bytes:
            when, victim, size = heapq.heappop(ahead)
            if kept.get(victim) == -when:
                del kept[victim]
                used -= passage_bytes(size)
    return hit / sum(tokens for _, tokens in references)


def fractional_limit(requests: Sequence[Request], device_bytes: int) -> float:
    """What no policy exceeds, with foresight or without (PFOO-L of Berger et al., SIGMETRICS 2018). A hit takes a
    passage's bytes from one reference to the next. The limit lets the budget of all times together be spent on any of
    these stays, on parts of them too, where it brings the most tokens."""
    references = [pair for r in requests for pair in zip(r.ids, r.tokens, strict=True)]
    last: dict[int, int] = {}
    stays: list[tuple[float, int, int]] = []
    for at, (passage, tokens) in enumerate(references):
        if passage in last:
            taken = passage_bytes(tokens) * (at - last[passage])
            stays.append((taken / tokens, taken, tokens))
        last[passage] = at
    left, hit = float(device_bytes * len(references)), 0.0
    for _, taken, tokens in sorted(stays):
        part = min(1.0, left / taken)
        hit += part * tokens
        left -= part * taken
    return hit / sum(tokens for _, tokens in references)


def prefix_hit_rate(requests: Sequence[Request], policy: str, device_bytes: int, host_bytes: int = 0) -> float:
    """Share of prompt tokens found in the prefix tree of a hybrid model: blocks of keys and values, a state at the end
    of each prompt and where two prompts part. One token of the tree stands for one block of the trace."""
    memory = memory_of(policy, device_bytes, host_bytes)
    size = requests[0].tokens[0]
    block_bytes = size * KV_BYTES_A_TOKEN
    tree = Tree(memory, Shape(state=True), lambda start, end: recompute_seconds((end - start) * size, start * size))
    clock = SessionClock(memory, policy == "session")
    offered = Span(0, lambda start, end: Blob(b"", (end - start) * block_bytes, end - start))
    hit = total = 0
    for request in requests:
        ticket = clock.ticket(request)
        text = token_bytes(np.array(request.ids, np.int32))
        match = tree.match(b"", text)
        receipt = tree.lookup(b"", text)
        found = receipt.tokens if receipt else 0
        hit, total = hit + found, total + len(request.ids)
        depths = sorted({depth for depth in (match.full_tokens, len(request.ids)) if depth > found})
        grown = tree.insert(b"", text, Offer(offered, None, dict.fromkeys(depths, _state)))
        if grown.node is not None:
            memory.sessions.register(ticket, tree.region(grown.node))
        if receipt:
            receipt.release()
    tree.check()
    return hit / total


def prefix_bound(requests: Sequence[Request]) -> float:
    """With room for everything, a state at every block."""
    seen: set[int] = set()
    hit = total = 0
    for request in requests:
        known = next((n for n, block in enumerate(request.ids) if block not in seen), len(request.ids))
        hit, total = hit + known, total + len(request.ids)
        seen.update(request.ids)
    return hit / total


def distinct_bytes_of_prefixes(requests: Sequence[Request]) -> int:
    """Of all blocks, and a state at the end of each prompt."""
    blocks = {block for request in requests for block in request.ids}
    ends = {request.ids[-1] for request in requests}
    return len(blocks) * requests[0].tokens[0] * KV_BYTES_A_TOKEN + len(ends) * PAIR_BYTES


HitRate = Callable[[Sequence[Request], str, int, int], float]


def sweep(
    requests: Sequence[Request], hit_rate: HitRate, distinct: int, parts: Sequence[int], host: bool
) -> Iterator[tuple[str, str, float]]:
    """(policy, budget, hit rate) for budgets of 1/part of the distinct bytes; with host, a tier below of all of them,
    whose budget is named "1/part+host"."""
    for part in parts:
        for policy in POLICIES:
            yield policy, f"1/{part}", hit_rate(requests, policy, distinct // part, 0)
        if host:
            yield "lru", f"1/{part}+host", hit_rate(requests, "lru", distinct // part, distinct)


def _state() -> Blob:
    return Blob(b"", PAIR_BYTES)


def trace_lines(path: Path) -> tuple[dict[str, Any], list[list[Any]]]:
    """The head of a trace, which tells its fields, and a list for each request."""
    with gzip.open(path, "rt") as file:
        head, *rows = [json.loads(line) for line in file]
    return head, rows
