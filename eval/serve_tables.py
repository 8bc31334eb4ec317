"""Tables of `hypic bench serve`."""

from collections.abc import Iterator
from typing import Any

from hypic.eval.report import Table

_FIELDS = (
    ("successful requests", "completed", "{:d}"),
    ("failed requests", "failed", "{:d}"),
    ("duration (s)", "duration_seconds", "{:.1f}"),
    ("input tokens", "prompt_tokens", "{:d}"),
    ("cached tokens", "cached_tokens", "{:d}"),
    ("generated tokens", "output_tokens", "{:d}"),
    ("request throughput (req/s)", "request_throughput", "{:.2f}"),
    ("request goodput (req/s)", "request_goodput", "{:.2f}"),
    ("output token throughput (tok/s)", "output_throughput", "{:.1f}"),
)
_TIMES = (
    ("TTFT", "ttft_ms"),
    ("TPOT", "tpot_ms"),
    ("ITL", "itl_ms"),
    ("E2EL", "e2el_ms"),
    ("client lag", "client_lag_ms"),
)


def serve_tables(results: dict[str, Any]) -> Iterator[Table]:
    """What is sustained, the fields of serving benchmarks at that rate, and every point of each ladder."""
    yield _sustained(results)
    best = {name: best_point(arm) for name, arm in results["arms"].items()}
    rows = [(label, *(form.format(point[key]) for point in best.values())) for label, key, form in _FIELDS]
    rows += [
        (f"{statistic} {label} (ms)", *(f"{point[key][statistic]:.1f}" for point in best.values()))
        for label, key in _TIMES
        for statistic in ("mean", "median", "p99")
    ]
    note = "At the highest rate that each arm sustained (at its lowest one where it sustained none)."
    yield Table("Serving benchmark", ("", *best), tuple(rows), note)
    yield _ladder(results)


def best_point(arm: dict[str, Any]) -> dict[str, Any]:
    """The point at the sustainable rate; the one at the lowest rate where none was sustained."""
    points: list[dict[str, Any]] = sorted(arm["points"], key=lambda point: float(point["qps"]))
    return next((point for point in points if point["qps"] == arm["sustainable_qps"]), points[0])


def _sustained(results: dict[str, Any]) -> Table:
    rows = []
    for name, arm in results["arms"].items():
        point, failing, ratio = best_point(arm), arm["first_failing_qps"], results["ratio_to_prefix"].get(name)
        rows.append(
            (
                name,
                f"{arm['sustainable_qps']:.2f}",
                "none failed" if failing is None else f"{failing:.2f}",
                "-" if ratio is None else f"{ratio:.2f}",
                f"{arm['unloaded_ttft_p50_ms']:.0f}",
                f"{point['ttft_ms']['p90']:.0f}",
                f"{100 * point['cached_share']:.0f} %",
                f"{100 * results['gate'][name]:.0f} %",
            )
        )
    limit = (
        f"{100 * results['attained_share']:.0f} % of first tokens within {results['ttft_limit_ms']:.0f} ms "
        f"({results['ttft_limit_rule']}), no failure, no growing queue."
    )
    note = (
        f"Sustainable: {limit} {results['trace']}, {results['arrivals']} arrivals, prompts at "
        f"{results['prompt_scale']:g} and answers at {results['output_scale']:g} of the trace's lengths. As full: "
        "share of answers without load that are those of a full recompute."
    )
    columns = (
        "arm",
        "sustainable QPS",
        "fails at",
        "x prefix",
        "unloaded TTFT p50",
        "TTFT p90 there",
        "cached",
        "as full",
    )
    return Table("Sustainable rate", columns, tuple(rows), note)


def _ladder(results: dict[str, Any]) -> Table:
    rows = tuple(
        (
            name,
            "held" if point["held"] else point["reason"],
            f"{point['qps']:.2f}",
            *(f"{point['ttft_ms'][key]:.0f}" for key in ("median", "p90", "p99")),
            f"{100 * point['attained']:.0f} %",
            f"{point['ttft_growth']:.2f}",
            f"{point['request_goodput']:.2f}",
        )
        for name, arm in results["arms"].items()
        for point in sorted(arm["points"], key=lambda point: float(point["qps"]))
    )
    columns = ("arm", "outcome", "QPS", "TTFT p50 ms", "p90", "p99", "in time", "growth s/s", "goodput")
    return Table("Ladders", columns, rows, "Every rate that was tried; each arm saw the same requests.", text_columns=2)
