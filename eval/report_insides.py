"""Chapters of the evaluation report on what lies beneath: drift, seams, operators, caches, agreement with others."""

from typing import Any

from hypic.eval.report import Table
from hypic.eval.report_inputs import Folder
from hypic.eval.report_parts import Chapter, NotThereError, Picture, caption, flat, needed
from hypic.eval.report_plots import bars, lines

_TINY = 1e-9
"""What a logarithmic axis shows of an exact layer."""


def _drift(folder: Folder) -> tuple[list[Picture], list[Table]]:
    result = needed(folder, "eval fidelity")
    rows: list[dict[str, Any]] = result.results["layers"]
    arms = list(dict.fromkeys(str(row["arm"]) for row in rows))
    series = {
        arm: sorted((float(row["index"]), max(_TINY, float(row["relative_l2"]))) for row in rows if row["arm"] == arm)
        for arm in arms
    }
    said = "; ".join(f"{arm} {points[-1][1]:.2g} in the last layer" for arm, points in series.items())
    kinds = {int(row["index"]): str(row["kind"]) for row in rows}
    order = ", ".join(f"{index} {kind}" for index, kind in sorted(kinds.items()))
    text = (
        "How far each layer's memory of the documents is from that of a full recompute, relative L2, logarithmic. The "
        f"first layer shows an arm's own error, deeper ones what adds up. Layers: {order}."
    )
    svg = lines(series, "layer", "relative L2 distance to full", logarithmic="y", integers=True)
    by_place = {(int(row["index"]), str(row["arm"])): float(row["relative_l2"]) for row in rows}
    table_rows = tuple(
        (str(index), kind, *(f"{by_place[index, arm]:.2e}" for arm in arms)) for index, kind in sorted(kinds.items())
    )
    table = Table("Relative L2 by layer", ("layer", "kind", *arms), table_rows, text_columns=2)
    return [Picture(svg, f"Drift by layer: {said}.", caption(text, result))], [table]


def _seam(folder: Folder) -> tuple[list[Picture], list[Table]]:
    result = needed(folder, "eval fidelity")
    rows: list[dict[str, Any]] = result.results.get("seams") or []
    if not rows:
        raise NotThereError(f"{result.file} holds no sweep of seams; run `hypic eval fidelity` again.")
    divergence: dict[str, list[tuple[float, float]]] = {}
    layers: dict[str, list[tuple[float, float]]] = {}
    for row in sorted(rows, key=lambda row: row["w"]):
        divergence.setdefault(_built(row), []).append((float(row["w"]), max(_TINY, float(row["kl_nats"]))))
        for layer in () if row["anchored"] else row["layers"]:
            distance = max(_TINY, float(layer["relative_l2"]))
            layers.setdefault(f"layer {layer['index']}", []).append((float(row["w"]), distance))
    shown = (
        (
            divergence,
            "KL divergence from full (nats)",
            "Divergence of the next-token distributions from full recompute",
        ),
        (layers, "relative L2 distance to full", "Distance of each layer's memory from full recompute"),
    )
    pictures = []
    for series, y_label, what in shown:
        said = "; ".join(f"{name} {points[0][1]:.2g} to {points[-1][1]:.2g}" for name, points in series.items())
        svg = lines(series, "seam tokens", y_label, logarithmic="y", integers=True)
        text = f"{what}, by the number of tokens that are computed afresh; logarithmic."
        pictures.append(Picture(svg, f"{what}, least to widest seam: {said}.", caption(text, result)))
    return pictures, [_seam_table(rows)]


def _seam_table(rows: list[dict[str, Any]]) -> Table:
    cells = tuple(
        (
            _built(row),
            str(row["w"]),
            f"{row['kl_nats']:.4f}",
            *(f"{layer['relative_l2']:.2e}" for layer in (row["layers"][0], row["layers"][-1])),
        )
        for row in rows
    )
    note = "Anchored: segments are built behind the system text."
    return Table("Width of the seam", ("built", "seam tokens", "KL nats", "first layer", "last layer"), cells, note)


def _built(row: dict[str, Any]) -> str:
    return "anchored" if row["anchored"] else "hypic"


def _compose(folder: Folder) -> tuple[list[Picture], list[Table]]:
    result = needed(folder, "bench compose")
    values = {
        "reuse one more document": float(result.results["warm_segment_ms"]),
        "recompute it": float(result.results["recompute_segment_ms"]),
    }
    ratio = values["recompute it"] / values["reuse one more document"]
    text = f"What one more document adds to a prompt: recomputing takes {ratio:.0f} times as long as reusing it."
    svg = bars(values, "ms, logarithmic", logarithmic=True)
    said = ", ".join(f"{name} {value:.2f} ms" for name, value in values.items())
    return [Picture(svg, f"One more document: {said}.", caption(text, result))], [
        _plain_table("Compose", result.results)
    ]


def _transition(folder: Folder) -> tuple[list[Picture], list[Table]]:
    result = needed(folder, "bench transition")
    pictures = []
    for geometry, formats in result.results["bytes_per_segment"].items():
        mebibytes = {str(name): float(value) / 2**20 for name, value in formats.items()}
        said = ", ".join(f"{name} {value:.1f} MiB" for name, value in mebibytes.items())
        text = f"What the operators of one segment take at the geometry {geometry}, by format."
        svg = bars(mebibytes, "MiB a segment", form="{:.1f}")
        pictures.append(Picture(svg, f"Bytes a segment, {geometry}: {said}.", caption(text, result)))
    rest = {name: value for name, value in result.results.items() if name != "bytes_per_segment"}
    return pictures, [_plain_table("Transition operators", rest)]


def _cache(folder: Folder) -> tuple[list[Picture], list[Table]]:
    result = needed(folder, "bench cache")
    pictures, tables = [], []
    for trace, policies in result.results["hit_rate"].items():
        budgets = list(dict.fromkeys(budget for row in policies.values() for budget in row if "host" not in budget))
        shares = {budget: 1 / float(budget.partition("/")[2]) for budget in budgets}
        series = {
            policy: sorted((100 * shares[budget], 100 * float(row[budget])) for budget in budgets if budget in row)
            for policy, row in policies.items()
        }
        said = "; ".join(f"{policy} {points[0][1]:.0f} to {points[-1][1]:.0f} %" for policy, points in series.items())
        text = f"Tokens found in the cache, trace {trace}, against its size in percent of all distinct bytes."
        svg = lines(series, "size of the cache (%)", "hit rate (% of tokens)", logarithmic="x")
        pictures.append(Picture(svg, f"Hit rates on {trace}: {said}.", caption(text, result)))
        rows = tuple(
            (policy, *(f"{100 * row[b]:.1f}" if b in row else "-" for b in budgets)) for policy, row in policies.items()
        )
        tables.append(Table(f"Hit rate on {trace} (%)", ("policy", *budgets), rows))
    return pictures, tables


def _agreement(folder: Folder) -> tuple[list[Picture], list[Table]]:
    """Either of the two commands may be missing; the other is shown."""
    shown = (
        ("eval algebra", "families", "max_relative_error", "Composed state against a float64 token loop, relative"),
        ("eval parity", "architectures", "max_abs_logit_diff", "Logits against transformers, largest difference"),
    )
    pictures, tables = [], []
    for command, group, key, text in shown:
        result = folder.newest(command)
        if result is None:
            continue
        values = {str(name): max(_TINY, float(row[key])) for name, row in result.results[group].items()}
        limit = f", at most {result.results['limit']:g} is wanted" if "limit" in result.results else ""
        svg = bars(values, "logarithmic", logarithmic=True, form="{:.1e}")
        said = ", ".join(f"{name} {value:.1e}" for name, value in values.items())
        pictures.append(Picture(svg, f"{text}: {said}.", caption(f"{text}{limit}; logarithmic.", result)))
        rows = tuple((name, f"{value:.2e}") for name, value in values.items())
        tables.append(Table(text, (group, key), rows))
    if not pictures:
        raise NotThereError("run `hypic eval algebra` and `hypic eval parity` with `--out` to this folder.")
    return pictures, tables


def _others(folder: Folder) -> tuple[list[Picture], list[Table]]:
    """What no other chapter shows, value by value."""
    known = {f"hypic {command}" for chapter in CHAPTERS for command in chapter.needs} | _SHOWN_ELSEWHERE
    rest = [result for result in folder.results if result.command not in known]
    if not rest:
        raise NotThereError("nothing else was in the folder; `hypic bench kernels` and others would be shown here.")
    return [], [_plain_table(result.source, result.results) for result in rest]


def _plain_table(title: str, values: dict[str, Any]) -> Table:
    return Table(title, ("value", "is"), tuple(flat(values)))


_SHOWN_ELSEWHERE = {f"hypic {name}" for name in ("eval algebra", "eval parity", "eval quality")} | {
    f"hypic bench {name}" for name in ("ttft", "serve", "scatter")
}

CHAPTERS = (
    Chapter(
        "Seam",
        "The first tokens of each reused document are computed afresh under what now precedes it. How many are enough?",
        ("eval fidelity",),
        _seam,
    ),
    Chapter(
        "Drift by layer",
        "Composition is exact within a layer. A document prefilled alone never saw what precedes it, so the inputs of "
        "deeper layers differ: that is drift, and no composition takes it away.",
        ("eval fidelity",),
        _drift,
    ),
    Chapter("One more document", "The price of a warm document in a prompt.", ("bench compose",), _compose),
    Chapter("Transition operators", "What they cost to make and to keep.", ("bench transition",), _transition),
    Chapter("Cache", "How much of two real traces is kept, by policy and size.", ("bench cache",), _cache),
    Chapter("Agreement", "Is it right? Algebra alone, and the whole forward.", (), _agreement),
    Chapter("Other results", "Everything else in the folder.", (), _others),
)
