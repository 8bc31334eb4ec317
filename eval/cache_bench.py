"""What the cache's bookkeeping costs, and how much it keeps: the evidence of `hypic bench cache`.

Timings are of the product's own code with stand-ins for payloads: copying keys and values costs what memory bandwidth
says and is measured with the engine (`hypic bench compose`). Hit rates: see hypic.eval.cache_traces.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from hypic.cache.memory import Memory
from hypic.cache.store import Store
from hypic.cache.tree.component import Shape
from hypic.cache.tree.growth import Offer, Span
from hypic.cache.tree.node import token_bytes
from hypic.cache.tree.tree import Tree
from hypic.eval.cache_traces import (
    Blob,
    Request,
    distinct_bytes_of_passages,
    distinct_bytes_of_prefixes,
    foresight_hit_rate,
    fractional_limit,
    passage_bound,
    passage_hit_rate,
    prefix_bound,
    prefix_hit_rate,
    read_mooncake,
    read_ragpulse,
    sweep,
)
from hypic.segment import Namespace, TokenIds, segment_key

Progress = Callable[[str, int, int], None]
"""Called with the name of a part, how much of it is done, and of how much."""

TURNS, NODES, PROMPT_TOKENS, LEAVES = 200, 400, 128 * 1024, 50_000
WINDOW_TOKENS = 4096
LEAF_COUNTS = (1_000, 5_000, 20_000, 50_000)
NAMESPACE = Namespace("model", "tokenizer", "bfloat16")
SHAPES = {
    "full": Shape(),
    "full+window": Shape(window_tokens=WINDOW_TOKENS),
    "full+state": Shape(state=True),
    "full+window+state": Shape(window_tokens=WINDOW_TOKENS, state=True),
}


def run_cache_bench(
    full: bool = False,
    progress: Progress | None = None,
    ragpulse: Path | None = None,
    mooncake: Path | None = None,
) -> dict[str, Any]:
    """The results of DESIGN section 8 for `hypic bench cache`, and what they rest on. full: all of both traces, more
    budgets, a million entries. ragpulse, mooncake: traces in the form of those that are shipped, None for those.
    About half a minute, or some minutes if full."""
    report = progress or (lambda name, done, total: None)
    turns: dict[str, Any] = {}
    for done, (name, shape) in enumerate(SHAPES.items()):
        report("match, plan, commit", done, len(SHAPES))
        turns[name] = conversation(shape)
    evictions: dict[str, float] = {}
    for done, leaves in enumerate(LEAF_COUNTS):
        report("eviction", done, len(LEAF_COUNTS))
        evictions[str(leaves)] = evict_64_ms(leaves)
    report("directory", 0, 1)
    directory = directory_costs(1_000_000 if full else 200_000)
    rates, bounds = hit_rates(full, report, ragpulse, mooncake)
    return {
        "match_plan_p50_ms": turns["full+state"]["match_plan_p50_ms"],
        "evict_64_p50_ms": evictions,
        "hit_rate": rates,
        "hit_rate_bounds": bounds,
        "components": turns,
        "directory": directory,
        "prompt_tokens": PROMPT_TOKENS,
        "nodes": NODES,
        "leaves": LEAVES,
    }


def conversation(shape: Shape) -> dict[str, float]:
    """A conversation of 200 turns up to 128k tokens in a tree with 50,000 other leaves. Each turn adds a document and
    an answer: two nodes. Match and plan: the prompt's bytes, the lookup with its receipt, and the key and lease of the
    turn's document. Commit: two boundaries inserted, the receipt given back."""
    tree = crowded(LEAVES, shape)
    store: Store[Blob] = Store(tree.memory)
    ids = np.random.default_rng(0).integers(0, 150_000, PROMPT_TOKENS).astype(np.int32)
    step = PROMPT_TOKENS // NODES
    match_ms, commit_ms = [], []
    for turn in range(TURNS):
        known, document, end = 2 * turn * step, (2 * turn + 1) * step, (2 * turn + 2) * step
        prompt = ids[:end]
        started = time.perf_counter()
        text = token_bytes(prompt)
        receipt = tree.lookup(b"", text[: 4 * document])
        _lease_document(store, prompt[known:document])
        planned = time.perf_counter()
        assert (receipt.tokens if receipt else 0) == known
        tree.insert(b"", text, _offer(known, [document, end]), receipt)
        if receipt:
            receipt.release()
        committed = time.perf_counter()
        match_ms.append((planned - started) * 1e3)
        commit_ms.append((committed - planned) * 1e3)
    last_match, last_commit = _repeat_last_turn(tree, store, ids, step)
    return {
        "match_plan_p50_ms": last_match,
        "commit_p50_ms": last_commit,
        "match_plan_first_turns_p50_ms": median(match_ms[:20]),
        "match_plan_last_turns_p50_ms": median(match_ms[-20:]),
        "commit_first_turns_p50_ms": median(commit_ms[:20]),
        "commit_last_turns_p50_ms": median(commit_ms[-20:]),
    }


def crowded(leaves: int, shape: Shape) -> Tree:
    """A tree of that many leaves of 4 tokens, all in one namespace, under 100 shared beginnings."""
    tree = Tree(Memory.of_bytes(10**15), shape)
    for number in range(leaves):
        text = token_bytes(np.array([200_000 + number % 100, 7, 300_000 + number, 9], np.int32))
        tree.insert(b"", text, _offer(0, [4]))
    return tree


def evict_64_ms(leaves: int, repeats: int = 50) -> float:
    """Median time to make room for 64 tokens, each time in a tree that is full and whose leaves were used in another
    order than they came."""
    tree = crowded(leaves, Shape())
    order = np.random.default_rng(0).permutation(leaves)
    for number in order[: min(leaves, 5_000)]:
        text = token_bytes(np.array([200_000 + number % 100, 7, 300_000 + number, 9], np.int32))
        receipt = tree.lookup(b"", text)
        assert receipt is not None
        receipt.release()
    times = []
    for _ in range(min(repeats, leaves // 64)):
        started = time.perf_counter()
        freed = tree.memory.evict(64)
        times.append((time.perf_counter() - started) * 1e3)
        assert freed >= 64, freed
    return median(times)


def directory_costs(entries: int) -> dict[str, float]:
    """A store as large as a cluster's directory: what an entry costs to add, to find, and to replace when full."""
    store: Store[Blob] = Store(entries)
    keys = [number.to_bytes(32, "little") for number in range(entries + 10_000)]
    added = _each_us(lambda key: store.insert(Blob(key, 1)), keys[:entries])
    shuffled = [keys[at] for at in np.random.default_rng(0).permutation(entries)[:10_000]]
    found = _each_us(lambda key: _touch(store, key), shuffled)
    replaced = _each_us(lambda key: store.insert(Blob(key, 1)), keys[entries:])
    assert len(store) == entries
    return {"entries": entries, "insert_us": added, "lease_us": found, "replace_us": replaced}


def hit_rates(
    full: bool, report: Progress, ragpulse: Path | None, mooncake: Path | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(`trace.policy.budget` -> share of tokens, 0 to 1; what no policy could exceed). Budgets are parts of the
    distinct bytes of the trace; "+host" has a second tier with room for all of them."""
    passages, prompts = read_ragpulse(ragpulse), read_mooncake(mooncake)
    if not full:
        prompts = prompts[:3000]
    rates: dict[str, Any] = {}
    parts = (16, 8, 4, 2, 1) if full else (16, 4, 1)
    report("RAGPulse", 0, 2)
    distinct = distinct_bytes_of_passages(passages)
    rates["ragpulse"] = _nested(sweep(passages, passage_hit_rate, distinct, parts, host=True))
    report("Mooncake", 1, 2)
    distinct_prefixes = distinct_bytes_of_prefixes(prompts)
    rates["mooncake"] = _nested(sweep(prompts, prefix_hit_rate, distinct_prefixes, parts, host=True))
    bounds = {
        "ragpulse": {
            "unlimited": passage_bound(passages),
            "unlimited_as_ordered_prefix": ordered_prefix_bound(passages),
            "distinct_bytes": distinct,
            **{f"foresight_1/{part}": foresight_hit_rate(passages, distinct // part) for part in parts},
            **{f"limit_1/{part}": fractional_limit(passages, distinct // part) for part in parts},
        },
        "mooncake": {"unlimited": prefix_bound(prompts), "distinct_bytes": distinct_prefixes, "requests": len(prompts)},
    }
    return rates, bounds


def ordered_prefix_bound(requests: Sequence[Request]) -> float:
    """Of the same passages, what a prefix cache without limit could reuse: those in the order of an earlier prompt."""
    seen: set[tuple[int, ...]] = set()
    hit = total = 0
    for request in requests:
        for end, tokens in enumerate(request.tokens, 1):
            total += tokens
            hit += tokens if request.ids[:end] in seen else 0
        seen.update(request.ids[:end] for end in range(1, len(request.ids) + 1))
    return hit / total


def _repeat_last_turn(
    tree: Tree, store: Store[Blob], ids: TokenIds, step: int, repeats: int = 50
) -> tuple[float, float]:
    """(match and plan, commit) of the longest prompt, each time with a document that is new."""
    match_ms, commit_ms = [], []
    known = (NODES - 2) * step
    for number in range(50):
        prompt = ids[: NODES * step].copy()
        prompt[known:] = (prompt[known:] + number + 1) % 150_000
        started = time.perf_counter()
        text = token_bytes(prompt)
        receipt = tree.lookup(b"", text[: 4 * (known + step)])
        _lease_document(store, prompt[known : known + step])
        planned = time.perf_counter()
        assert receipt is not None
        assert receipt.tokens == known
        tree.insert(b"", text, _offer(known, [known + step, NODES * step]), receipt)
        receipt.release()
        commit_ms.append((time.perf_counter() - planned) * 1e3)
        match_ms.append((planned - started) * 1e3)
    return median(match_ms), median(commit_ms)


def _lease_document(store: Store[Blob], document: TokenIds) -> None:
    _touch(store, segment_key(NAMESPACE, document, 8))


def _touch(store: Store[Blob], key: bytes) -> None:
    with store.leased(key):
        pass


def _offer(start: int, depths: list[int]) -> Offer:
    span = Span(start, lambda a, b: Blob(b"", b - a, b - a))
    window = Span(max(0, start - WINDOW_TOKENS), span.cut)
    return Offer(span, window, dict.fromkeys(depths, lambda: Blob(b"", 100)))


def _each_us(call: Callable[[bytes], object], keys: Sequence[bytes]) -> float:
    started = time.perf_counter()
    for key in keys:
        call(key)
    return (time.perf_counter() - started) * 1e6 / len(keys)


def _nested(rows: Any) -> dict[str, dict[str, float]]:
    rates: dict[str, dict[str, float]] = {}
    for policy, budget, rate in rows:
        rates.setdefault(policy, {})[budget] = rate
    return rates
