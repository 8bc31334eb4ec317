"""`hypic bench cache`: the report around `hypic.eval.cache_bench`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypic.eval.cache_bench import run_cache_bench
from hypic.eval.report import Report, Table, say

_HIT_RATE_NOTE = (
    "Budgets: parts of the distinct bytes; +host: a tier below that holds all. Without a limit {:.1f} % are found: "
    "the rest is asked for the first time. Foresight: what is asked for again furthest ahead goes first, which no "
    "cache can know. Limit: what no cache exceeds, whatever it knows (PFOO-L)."
)


def report_cache(full: bool, ragpulse: Path | None, mooncake: Path | None) -> Report:
    """Bookkeeping costs and hit rates. ragpulse, mooncake: traces like the shipped samples, None for those."""
    results = run_cache_bench(full, lambda name, done, total: say(f"{name} ({done + 1}/{total})"), ragpulse, mooncake)
    return Report("bench cache", "no model", "cpu", results, tuple(_tables(results)))


def _tables(results: dict[str, Any]) -> Iterator[Table]:
    keys = ("match_plan_p50_ms", "commit_p50_ms", "match_plan_first_turns_p50_ms", "match_plan_last_turns_p50_ms")
    yield Table(
        f"A turn at {results['prompt_tokens']} tokens, {results['nodes']} nodes, {results['leaves']} other leaves (ms)",
        ("components", "match + plan", "commit", "first turns", "last turns"),
        tuple((name, *(f"{row[key]:.3f}" for key in keys)) for name, row in results["components"].items()),
        "Medians. Match and plan: at most 1 ms is wanted. First and last turns: match and plan early and late in the "
        "conversation.",
    )
    yield Table(
        "Evicting 64 tokens",
        ("leaves", "p50 (ms)"),
        tuple((leaves, f"{value:.3f}") for leaves, value in results["evict_64_p50_ms"].items()),
        "The cost must not depend on the number of leaves.",
    )
    for trace, policies in results["hit_rate"].items():
        budgets = list(dict.fromkeys(budget for row in policies.values() for budget in row))
        bounds = results["hit_rate_bounds"][trace]
        shown = dict(policies)
        for name in ("foresight", "limit"):
            row = {budget: bounds[f"{name}_{budget}"] for budget in budgets if f"{name}_{budget}" in bounds}
            shown |= {name: row} if row else {}
        yield Table(
            f"Hit rate on {trace} (% of tokens)",
            ("policy", *budgets),
            tuple(
                (name, *(f"{100 * row[budget]:.1f}" if budget in row else "-" for budget in budgets))
                for name, row in shown.items()
            ),
            _HIT_RATE_NOTE.format(100 * bounds["unlimited"]),
        )
