"""Chapters of the evaluation report on what users see: quality, times, load, cold prompts."""

from typing import Any

from hypic.eval.report import Table
from hypic.eval.report_inputs import Folder, Result
from hypic.eval.report_parts import Chapter, NotThereError, Picture, caption, needed
from hypic.eval.report_plots import bars, lines, scatter, stacked

_MAX_SCATTER_ROWS = 12


def _pareto(folder: Folder) -> tuple[list[Picture], list[Table]]:
    quality, ttft = needed(folder, "eval quality"), needed(folder, "bench ttft")
    points = {
        arm: (float(times["p50_ms"]), float(quality.results["means"][arm]["score"]))
        for arm, times in ttft.results["arms"].items()
        if arm in quality.results["means"]
    }
    if not points:
        raise NotThereError("`hypic eval quality` and `hypic bench ttft` have no arm in common; name the same ones.")
    said = "; ".join(f"{arm} {score:.1f} points at {ms:.0f} ms" for arm, (ms, score) in points.items())
    text = (
        f"Left and up is better: mean score over the sets of {quality.results.get('dataset', 'the data set')} against "
        f"the median TTFT of a warm prompt of {ttft.results.get('prompt_tokens', '?')} tokens."
    )
    if quality.model != ttft.model:
        text += " The two are of different models: times need a model for which arithmetic takes the time."
    svg = scatter(points, "warm TTFT, median (ms)", "score (0 to 100)", y_margin=5.0, logarithmic="x")
    rows = tuple((arm, f"{score:.1f}", f"{ms:.1f}") for arm, (ms, score) in points.items())
    return [Picture(svg, f"Score against TTFT: {said}.", caption(text, quality, ttft))], [
        Table("Score and time", ("arm", "score", "TTFT p50 ms"), rows)
    ]


def _quality(folder: Folder) -> tuple[list[Picture], list[Table]]:
    pictures, tables = [], []
    for result in folder.all("eval quality"):
        name = str(result.results.get("dataset", "data set"))
        means = {arm: float(row["score"]) for arm, row in result.results["means"].items()}
        said = ", ".join(f"{arm} {score:.1f}" for arm, score in means.items())
        text = f"Mean score over the sets of {name}, by arm."
        svg = bars(means, "score (0 to 100)", form="{:.1f}")
        pictures.append(Picture(svg, f"Scores on {name}: {said}.", caption(text, result)))
        tables.append(_score_table(name, result))
    return pictures, tables


def _score_table(name: str, result: Result) -> Table:
    rows = []
    for set_name, arms in result.results["sets"].items():
        for arm, row in arms.items():
            low, high = row["interval"]
            lost = f"{row['lost_points']:+.1f} ({row['lost_percent']:+.1f} %)"
            score = f"{row['score']:.1f} [{low:.1f}, {high:.1f}]"
            rows.append((set_name, arm, str(row["n"]), score, lost, str(row["changed"])))
    columns = ("set", "arm", "questions", "score [95 %]", "lost against full", "answers changed")
    note = "Interval: bootstrap, of the score itself; the loss is paired, and is less uncertain than the scores."
    return Table(f"Scores on {name}", columns, tuple(rows), note, text_columns=2)


def _ttft(folder: Folder) -> tuple[list[Picture], list[Table]]:
    result = needed(folder, "bench ttft")
    arms: dict[str, dict[str, Any]] = result.results["arms"]
    medians = {arm: float(row["p50_ms"]) for arm, row in arms.items()}
    said = ", ".join(f"{arm} {ms:.0f} ms" for arm, ms in medians.items())
    text = (
        f"Median time to the first token, {result.results.get('documents', '?')} documents, "
        f"{result.results.get('prompt_tokens', '?')} tokens, shuffled anew for each request; logarithmic."
    )
    if "speedup" in result.results:
        text += f" hypic is {result.results['speedup']:.1f} times as fast as prefix."
    svg = bars(medians, "ms, logarithmic", logarithmic=True, form="{:.0f}")
    rows = tuple(
        (arm, *(f"{row[key]:.1f}" for key in ("p50_ms", "p99_ms")), str(row["tokens_computed"]))
        for arm, row in arms.items()
    )
    table = Table("Warm TTFT", ("arm", "p50 ms", "p99 ms", "tokens computed"), rows)
    return [Picture(svg, f"Warm TTFT: {said}.", caption(text, result))], [table]


def _load(folder: Folder) -> tuple[list[Picture], list[Table]]:
    result = needed(folder, "bench serve")
    found, limit = result.results, float(result.results["ttft_limit_ms"])
    ladders = {
        arm: sorted((float(p["qps"]), float(p["ttft_ms"]["p90"])) for p in row["points"])
        for arm, row in found["arms"].items()
    }
    said = ", ".join(f"{arm} {row['sustainable_qps']:.2f} requests a second" for arm, row in found["arms"].items())
    text = (
        f"TTFT of nine requests of ten against the offered rate, trace {found.get('trace', '?')} over HTTP; prompts at "
        f"{found.get('prompt_scale', '?')} and answers at {found.get('output_scale', '?')} of the trace's lengths. "
        f"Sustained within the limit of {limit:.0f} ms: {said}."
    )
    named_limit = ("limit", limit)
    svg = lines(ladders, "offered requests a second", "TTFT p90 (ms)", logarithmic="xy", limit=named_limit)
    return [Picture(svg, f"QPS against TTFT. Sustained: {said}.", caption(text, result))], [_load_table(found)]


def _load_table(found: dict[str, Any]) -> Table:
    rows = []
    for arm, row in found["arms"].items():
        for point in sorted(row["points"], key=lambda point: float(point["qps"])):
            times = (f"{point['ttft_ms'][key]:.0f}" for key in ("median", "p90", "p99"))
            goodput, cached = f"{point['request_goodput']:.2f}", f"{100 * point['cached_share']:.0f} %"
            outcome = "held" if point["held"] else str(point["reason"])
            rows.append((arm, outcome, f"{point['qps']:.2f}", *times, goodput, cached))
    columns = ("arm", "outcome", "QPS", "TTFT p50 ms", "p90", "p99", "goodput", "cached")
    return Table("Every rate that was tried", columns, tuple(rows), text_columns=2)


def _scatter(folder: Folder) -> tuple[list[Picture], list[Table]]:
    result = needed(folder, "bench scatter")
    runs: list[dict[str, Any]] = result.results["runs"]
    pictures = []
    for mix in dict.fromkeys(str(run["mix"]) for run in runs):
        own = [run for run in runs if str(run["mix"]) == mix][:_MAX_SCATTER_ROWS]
        rows = {_run_name(run): _phases(run) for run in own}
        marks = {_run_name(run): float(run["lower_bound_ms"]) for run in own}
        said = "; ".join(f"{_run_name(run)}: {run['ttft_ms']:.0f} ms" for run in own)
        svg = stacked(rows, "ms to the first token", marks, "lower bound")
        text = f"Where the time of a cold prompt goes, mix {mix}, by workers and policy; mark: least possible dispatch."
        pictures.append(Picture(svg, f"Cold TTFT, mix {mix}: {said}.", caption(text, result)))
    table_rows = tuple(
        (
            str(run["mix"]),
            _run_name(run),
            *(f"{run[key]:.0f}" for key in ("ttft_ms", "dispatch_ms", "transfer_ms", "combine_ms", "lower_bound_ms")),
        )
        for run in runs
    )
    columns = ("mix", "run", "TTFT ms", "dispatch", "transfer", "combine", "lower bound")
    note = "Transfers overlap with builds: their sum is not a part of the TTFT."
    return pictures, [Table("Cold prompts", columns, table_rows, note, text_columns=2)]


def _run_name(run: dict[str, Any]) -> str:
    return f"{run['workers']} {run['policy']}{', simulated' if run['simulated'] else ''}"


def _phases(run: dict[str, Any]) -> dict[str, float]:
    dispatch, combine = float(run["dispatch_ms"]), float(run["combine_ms"])
    return {"dispatch": dispatch, "combine": combine, "other": max(0.0, float(run["ttft_ms"]) - dispatch - combine)}


CHAPTERS = (
    Chapter(
        "Quality against time",
        "Is reuse worth it? Full recompute is the reference for quality, prefix reuse for time.",
        ("eval quality", "bench ttft"),
        _pareto,
    ),
    Chapter(
        "Quality",
        "Answers of each arm to the same questions. `full` recomputes everything; what another arm loses against it is "
        "the price of its reuse.",
        ("eval quality",),
        _quality,
    ),
    Chapter(
        "Warm time to the first token",
        "All documents are cached, their order is new: what a prefix cache cannot reuse.",
        ("bench ttft",),
        _ttft,
    ),
    Chapter(
        "Load",
        "Requests a second that each arm sustains, with the same requests from a real trace.",
        ("bench serve",),
        _load,
    ),
    Chapter(
        "Cold prompts on several workers",
        "Documents that nobody has cached are prefilled in parallel, then combined in one pass.",
        ("bench scatter",),
        _scatter,
    ),
)
