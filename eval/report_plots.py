"""Plots as SVG text to stand inside a page: colours that read on light and dark, text in the page's own colour.

Each function draws one kind of plot from plain numbers; what they mean is the caller's.
"""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

_TEXT = "#0a0b0c"
"""Drawn in this colour, which nothing else has; the page's text colour takes its place."""

_PALETTE = ("#3f87d9", "#e0793a", "#3aa76d", "#c9525f", "#9471cf", "#a98728", "#7d8790", "#2aa3ad")
_ARM_COLOURS = {
    "full": "#7d8790",
    "prefix": "#e0793a",
    "hypic": "#3f87d9",
    "anchored": "#9471cf",
    "transition": "#3aa76d",
    "addition": "#c9525f",
    "last_state": "#a98728",
}
_WIDTH_INCHES = 4.7

_LEGEND_CHARACTERS = 52
"""What fits into that width, the marks of a legend counted as five."""

Points = Sequence[tuple[float, float]]


def lines(
    series: Mapping[str, Points],
    x_label: str,
    y_label: str,
    *,
    logarithmic: str = "",
    limit: tuple[str, float] | None = None,
    integers: bool = False,
) -> str:
    """A line for each series. logarithmic: the axes that are, such as "xy". limit: a named horizontal line."""
    with _drawing(3.3) as (drawing, axes):
        for number, (name, points) in enumerate(series.items()):
            x, y = zip(*points, strict=True)
            marker = "osD^vPX*"[number % 8]
            width = max(1.1, 2.6 - 0.35 * number)  # lines that coincide are all seen
            style = {"marker": marker, "markersize": 3 + width, "linewidth": width, "color": colour(name, number)}
            axes.plot(x, y, label=name, **style)
        if limit:
            axes.axhline(limit[1], linestyle="--", linewidth=1.2, color=_TEXT)
            axes.annotate(limit[0], (0.01, limit[1]), xycoords=("axes fraction", "data"), xytext=(2, 3),
                          textcoords="offset points", color=_TEXT)  # fmt: skip
        _scales(axes, logarithmic)
        if integers:
            ticks = sorted({x for points in series.values() for x, _ in points})
            axes.xaxis.set_major_locator(FixedLocator(ticks) if len(ticks) <= 12 else MaxNLocator(12, integer=True))
        axes.set(xlabel=x_label, ylabel=y_label)
        _legend(drawing, axes)
        return _svg(drawing)


def scatter(
    points: Mapping[str, tuple[float, float]], x_label: str, y_label: str, *, y_margin: float, logarithmic: str = ""
) -> str:
    """A named point each. y_margin: room above and below, in the axis's units, so that small differences look small."""
    with _drawing(3.3) as (drawing, axes):
        for number, (name, (x, y)) in enumerate(points.items()):
            marker, width = "osD^vPX*"[number % 8], max(5.0, 12.0 - 2 * number)  # points that coincide are all seen
            axes.plot([x], [y], marker, markersize=width, color=colour(name, number), label=name)
        axes.margins(0.12)
        heights = [y for _, y in points.values()]
        axes.set_ylim(min(heights) - y_margin, max(heights) + y_margin)
        _scales(axes, logarithmic)
        axes.set(xlabel=x_label, ylabel=y_label)
        _legend(drawing, axes)
        return _svg(drawing)


def bars(values: Mapping[str, float], x_label: str, *, logarithmic: bool = False, form: str = "{:.3g}") -> str:
    """A horizontal bar each, with its value behind it."""
    with _drawing(0.8 + 0.36 * len(values)) as (drawing, axes):
        names = list(values)
        colours = [colour(name, number) for number, name in enumerate(names)]
        drawn = axes.barh(names, list(values.values()), color=colours, height=0.66)
        axes.bar_label(drawn, [form.format(value) for value in values.values()], padding=4, color=_TEXT)
        axes.invert_yaxis()
        axes.margins(x=0.18)
        if logarithmic:
            axes.set_xscale("log")
            axes.set_xlim(min(values.values()) / 2, max(values.values()) * 4)
            axes.xaxis.set_major_formatter(FuncFormatter(_plain))
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(x_label)
        return _svg(drawing)


def stacked(rows: Mapping[str, Mapping[str, float]], x_label: str, marks: Mapping[str, float], mark_label: str) -> str:
    """Horizontal bars made of parts. marks: by row, a value to compare its bar with."""
    with _drawing(1.2 + 0.34 * len(rows)) as (drawing, axes):
        names, parts = list(rows), list(dict.fromkeys(part for row in rows.values() for part in row))
        left = [0.0] * len(names)
        for number, part in enumerate(parts):
            widths = [rows[name].get(part, 0.0) for name in names]
            axes.barh(names, widths, left=left, height=0.62, color=_PALETTE[number % len(_PALETTE)], label=part)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        at = [(marks[name], place) for place, name in enumerate(names) if name in marks]
        if at:
            x, y = zip(*at, strict=True)
            axes.plot(x, y, "|", markersize=13, markeredgewidth=2, color=_TEXT, label=mark_label)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(x_label)
        _legend(drawing, axes)
        return _svg(drawing)


def colour(name: str, number: int) -> str:
    """The same for an arm in every plot."""
    return _ARM_COLOURS.get(name, _PALETTE[number % len(_PALETTE)])


@contextmanager
def _drawing(height_inches: float) -> Iterator[tuple[Drawing, Any]]:
    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "hypic",
        "font.size": 9,
        "text.color": _TEXT,
        "axes.labelcolor": _TEXT,
        "axes.edgecolor": _TEXT,
        "xtick.color": _TEXT,
        "ytick.color": _TEXT,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#808080",
        "grid.alpha": 0.3,
        "grid.linewidth": 0.6,
        "legend.frameon": False,
    }
    with mpl.rc_context(settings):
        drawing = Drawing(figsize=(_WIDTH_INCHES, height_inches), layout="constrained")
        drawing.patch.set_alpha(0.0)
        axes = drawing.add_subplot()
        axes.patch.set_alpha(0.0)
        yield drawing, axes


def _scales(axes: Any, logarithmic: str) -> None:
    for letter, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if letter in logarithmic:
            getattr(axes, f"set_{letter}scale")("log")
            low, high = axis.get_data_interval()
            if high / low < 100:
                axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0) if high / low < 10 else (1.0, 2.0, 5.0)))
            axis.set_major_formatter(FuncFormatter(_plain))
            axis.set_minor_formatter(NullFormatter())


def _plain(value: float, _: object = None) -> str:
    return f"{value:g}" if 1e-3 <= abs(value) < 1e5 else f"{value:.0e}"


def _legend(drawing: Drawing, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    ncols = max(1, min(4, len(labels), _LEGEND_CHARACTERS // (5 + max(map(len, labels)))))
    drawing.legend(handles, labels, loc="outside upper center", ncols=ncols, columnspacing=1.2)


def _svg(drawing: Drawing) -> str:
    """Without what only a file of its own needs, and nothing in it that a browser would fetch."""
    buffer = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    drawing.savefig(buffer, format="svg", metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :].strip().replace(_TEXT, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    return re.sub(r' (?:width|height)="[^"]*pt"', "", text, count=2)
