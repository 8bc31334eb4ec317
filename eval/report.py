"""What a command hands back: tables for people, and one JSON object for scripts (DESIGN section 8).

A command module measures and returns a `Report`; `emit` prints it. Progress goes to stderr, so that stdout holds
the tables and, with --json, the JSON object as its last line.
"""

import json
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

from hypic.config import BUNDLED_MODEL

SERVER = "server"
"""The device of what a server somewhere has done."""


@dataclass(frozen=True)
class Table:
    """A table of text cells. Columns after the first `text_columns` hold figures and are right-aligned. note: how to
    read it, a sentence or two."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    text_columns: int = 1

    def __post_init__(self) -> None:
        wrong = [row for row in self.rows if len(row) != len(self.columns)]
        assert not wrong, f"{self.title}: rows {wrong} do not fit the columns {self.columns}"

    def markdown(self) -> str:
        """The table as GitHub Markdown under a heading."""
        ruler = ["---" if n < self.text_columns else "---:" for n in range(len(self.columns))]
        lines = [self.columns, ruler, *self.rows]
        body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        return f"## {self.title}\n\n{body}\n" + (f"\n{self.note}\n" if self.note else "")

    def rich(self) -> RichTable:
        """The table for a terminal. Texts are taken as they are: what a user wrote is never markup."""
        table = RichTable(
            title=Text(self.title),
            caption=Text(self.note) if self.note else None,
            title_justify="left",
            caption_justify="left",
        )
        for number, column in enumerate(self.columns):
            table.add_column(Text(column), justify="left" if number < self.text_columns else "right")
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table


@dataclass(frozen=True)
class Report:
    """The outcome of one command. command: as typed, such as "eval quality". model: path or a name for a generated
    one. device: "cpu", a torch device, or SERVER. results: the keys that DESIGN section 8 promises, and more."""

    command: str
    model: str
    device: str
    results: dict[str, Any]
    tables: tuple[Table, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The machine-readable envelope."""
        return {
            "command": f"hypic {self.command}",
            "commit": commit(),
            "device": _device(self.device),
            "model": "bundled recall model" if self.model == str(BUNDLED_MODEL) else self.model,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "results": self.results,
        }

    def markdown(self) -> str:
        """The tables with a head that says where the figures come from."""
        record = self.as_dict()
        facts = "\n".join(f"- {name}: {record[name]}" for name in ("model", "device", "commit", "date"))
        return "\n".join([f"# {record['command']}\n\n{facts}\n", *(table.markdown() for table in self.tables)])


def emit(report: Report, *, as_json: bool, out: Path | None, shown: bool = False) -> None:
    """Print the tables, write DIR/COMMAND.json and .md where `out` is given, and end with the JSON if asked.

    shown: the tables were printed while the command ran. Raises ValueError where results hold NaN or infinity, which
    JSON does not know.
    """
    line = json.dumps(report.as_dict(), allow_nan=False, ensure_ascii=False)
    console = Console()
    for table in () if shown else report.tables:
        console.print(table.rich())
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        stem = out / report.command.replace(" ", "-")
        stem.with_suffix(".json").write_text(line + "\n", encoding="utf-8")
        stem.with_suffix(".md").write_text(report.markdown(), encoding="utf-8")
        say(f"written: {stem}.json, {stem}.md")
    if as_json:
        print(line, flush=True)


def show(what: str | Table) -> None:
    """Print a line or a table on stdout at once, for commands that tell what they do while they do it."""
    if isinstance(what, Table):
        Console().print(what.rich())
    else:
        Console().print(Text(what), soft_wrap=True)


def say(text: str) -> None:
    """One line of progress on stderr."""
    Console(stderr=True).print(text, style="dim", markup=False, highlight=False)


@contextmanager
def progress(title: str, total: int, done: int = 0) -> Iterator["Advance"]:
    """A progress bar on stderr while the block runs; call what it yields once per unit of work. done: units that an
    earlier run did. The time that is left is estimated from this run's pace."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield Advance(bar, title, total, done)


class Advance:
    """Moves a progress bar on by one."""

    def __init__(self, bar: Progress, title: str, total: int, done: int) -> None:
        self._bar, self._task = bar, bar.add_task(title, total=total, completed=done)

    def __call__(self, title: str | None = None) -> None:
        self._bar.update(self._task, advance=1, description=title)

    def to(self, done: int) -> None:
        """Move it to so many units done."""
        self._bar.update(self._task, completed=done)


def commit() -> str:
    """The commit of the checkout, with a + where files differ from it; the version of an installed package."""
    folder = Path(__file__).resolve().parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=10", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return f"hypic {version('hypic')}"
    return described.stdout.strip()


def _device(device: str) -> str:
    """What computed: a GPU's name, or the processor and how many of its cores torch uses."""
    import torch

    if device == SERVER:
        return "the server's, which does not say"
    if device != "cpu":
        return torch.cuda.get_device_name(device)
    return f"cpu: {_processor()}, {torch.get_num_threads()} threads of {os.cpu_count()} cores"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
