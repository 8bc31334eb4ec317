"""`hypic eval report DIR`: what is in a folder of results, as Markdown and as one HTML page that needs nothing else."""

import html
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from hypic.eval.report import Report, Table, say
from hypic.eval.report_inputs import Folder, read_folder
from hypic.eval.report_parts import Picture, Section
from hypic.eval.report_sections import all_sections

_STYLE = """
:root { color-scheme: light dark;
  --text: #1c2126; --back: #ffffff; --soft: #5a646e; --rule: #d5dade; --shade: #f4f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e8ec; --back: #14181c; --soft: #9aa5af; --rule: #343c44; --shade: #1c2228; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; color: var(--text); background: var(--back);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { line-height: 1.2; } h2 { margin: 2.5rem 0 .5rem; border-top: 1px solid var(--rule); padding-top: 1.5rem; }
h3 { margin: 1.5rem 0 .3rem; font-size: 1rem; }
nav ul { padding-left: 1.2rem; } a { color: inherit; }
.table { overflow-x: auto; } table { border-collapse: collapse; font-size: .88rem; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--rule); text-align: left; white-space: nowrap; }
td.wide { white-space: normal; min-width: 11rem; }
th { background: var(--shade); } .figure { text-align: right; font-variant-numeric: tabular-nums; }
figure { margin: 1.2rem 0; } figure svg { display: block; width: 100%; max-width: 36rem; height: auto; }
figure svg text { font-family: system-ui, "Segoe UI", "DejaVu Sans", sans-serif !important; }
figcaption, .note { color: var(--soft); font-size: .85rem; max-width: 42rem; }
.missing { border-left: 3px solid var(--rule); padding: .3rem .8rem; color: var(--soft); }
code { background: var(--shade); padding: .1rem .3rem; }
"""

_WIDE = 24
"""A cell of more characters may break into lines."""


def run_eval_report(path: Path) -> Report:
    """Write report.md and report.html into the folder. Raises InvalidRequestError where there is nothing to report."""
    folder = read_folder(path)
    sections = all_sections(folder)
    (path / "report.html").write_text(page(folder, sections), encoding="utf-8")
    (path / "report.md").write_text(markdown(folder, sections), encoding="utf-8")
    say(f"written: {path}/report.html, {path}/report.md")
    results = {
        "sections": {section.title: not section.missing for section in sections},
        "figures": sum(len(section.pictures) for section in sections),
        "inputs": [result.file for result in folder.results],
        "foreign": list(folder.foreign),
    }
    return Report("eval report", "see each figure", "cpu", results, (_sources(folder), _contents(sections)))


def page(folder: Folder, sections: Sequence[Section]) -> str:
    """The HTML page: no script, no font, no picture from elsewhere."""
    entries = "".join(f'<li><a href="#{_anchor(s.title)}">{html.escape(s.title)}</a></li>' for s in sections)
    body = "\n".join(_section(section) for section in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>HYPIC evaluation report</title><style>{_STYLE}</style></head>\n<body>\n"
        "<h1>HYPIC evaluation report</h1>\n"
        f'<nav aria-label="Contents"><ul>{entries}</ul></nav>\n<main>\n{_table(_sources(folder))}\n{body}\n</main>\n'
        "</body></html>\n"
    )


def markdown(folder: Folder, sections: Sequence[Section]) -> str:
    """The same without pictures: captions say what they show, tables hold the numbers."""
    pieces = ["# HYPIC evaluation report\n\nThe plots are in report.html.\n", _sources(folder).markdown()]
    for section in sections:
        pieces.append(f"# {section.title}\n\n{section.text}\n")
        if section.missing:
            pieces.append(f"Not here: {section.missing}\n")
        pieces += [table.markdown() for table in section.tables]
        pieces += [f"Figure: {figure.caption}\n" for figure in section.pictures]
    return "\n".join(pieces)


def _section(section: Section) -> str:
    missing = f'<p class="missing">Not here: {_inline(section.missing)}</p>' if section.missing else ""
    figures = "\n".join(
        f'<figure id="{_anchor(section.title)}-{number}">{_labelled(picture, f"{_anchor(section.title)}-{number}")}'
        f"<figcaption>{html.escape(picture.caption)}</figcaption></figure>"
        for number, picture in enumerate(section.pictures)
    )
    tables = "\n".join(map(_table, section.tables))
    return (
        f'<section id="{_anchor(section.title)}"><h2>{html.escape(section.title)}</h2>\n'
        f"<p>{_inline(section.text)}</p>{missing}\n{figures}\n{tables}</section>"
    )


def _labelled(picture: Picture, name: str) -> str:
    """To a screen reader one image with a text, not its hundred shapes; with names of its own for what it refers to."""
    svg = re.sub(r'\bid="', f'id="{name}-', picture.svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{name}-", svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(picture.alt)}"', 1)


def _table(table: Table) -> str:
    def cells(tag: str, row: Iterable[str]) -> str:
        made = []
        for number, cell in enumerate(row):
            kind = "figure" if number >= table.text_columns else "wide" if len(cell) > _WIDE else ""
            made.append(f"<{tag}{f' class={kind!r}' if kind else ''}>{html.escape(cell)}</{tag}>")
        return f"<tr>{''.join(made)}</tr>"

    rows = "".join(cells("td", row) for row in table.rows)
    note = f'<p class="note">{html.escape(table.note)}</p>' if table.note else ""
    head = cells("th", table.columns)
    return (
        f'<h3>{html.escape(table.title)}</h3><div class="table" tabindex="0"><table><thead>{head}</thead>'
        f"<tbody>{rows}</tbody></table></div>{note}"
    )


def _inline(text: str) -> str:
    """Escaped, with `code` marked up."""
    pieces = html.escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if number % 2 else piece for number, piece in enumerate(pieces))


def _anchor(title: str) -> str:
    return "".join(char if char.isalnum() else "-" for char in title.lower())


def _sources(folder: Folder) -> Table:
    rows = tuple((r.command, r.commit, r.date[:10], r.model, r.device, r.file) for r in folder.results)
    left_out = f" Not results, left out: {', '.join(folder.foreign)}." if folder.foreign else ""
    columns = ("command", "commit", "date", "model", "device", "file")
    return Table(
        "Where the figures come from", columns, rows, f"A + behind a commit: files differed from it.{left_out}", 6
    )


def _contents(sections: Sequence[Section]) -> Table:
    rows = tuple((s.title, f"missing: {s.missing}" if s.missing else "yes", str(len(s.pictures))) for s in sections)
    return Table("Report", ("section", "here", "figures"), rows, text_columns=2)
