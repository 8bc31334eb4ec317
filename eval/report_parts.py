"""Pieces of the evaluation report: sections with pictures and tables, and what is said where an input is missing."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hypic.eval.report import Table
from hypic.eval.report_inputs import Folder, Result


@dataclass(frozen=True)
class Picture:
    """svg: to stand in the page. alt: what it shows, in words and figures. caption: how to read it, and its sources."""

    svg: str
    alt: str
    caption: str


@dataclass(frozen=True)
class Section:
    """missing: which command makes what is not here, "" where all is."""

    title: str
    text: str
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    missing: str = ""


Fill = Callable[[Folder], tuple[list[Picture], list[Table]]]


class NotThereError(Exception):
    """A section cannot be filled; the message says what makes its input."""


@dataclass(frozen=True)
class Chapter:
    """How a section is made. needs: the commands whose results it shows."""

    title: str
    text: str
    needs: tuple[str, ...]
    fill: Fill

    def section(self, folder: Folder) -> Section:
        """Filled, or saying why it is not: a command that did not run, or a result of another form."""
        absent = [command for command in self.needs if folder.newest(command) is None]
        if absent:
            return Section(self.title, self.text, missing=f"run {_commands(absent)} with `--out` to this folder.")
        try:
            pictures, tables = self.fill(folder)
        except NotThereError as error:
            return Section(self.title, self.text, missing=str(error))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            what = f"the results of {_commands(self.needs)} have another form ({type(error).__name__}: {error})"
            return Section(self.title, self.text, missing=f"{what}; run it again.")
        return Section(self.title, self.text, tuple(pictures), tuple(tables))


def needed(folder: Folder, command: str) -> Result:
    """The newest result of a command that a chapter needs."""
    found = folder.newest(command)
    assert found is not None, f"a chapter uses {command!r} and does not name it in its needs"
    return found


def caption(text: str, *results: Result) -> str:
    """The text and where its figures come from."""
    return f"{text} ({'; '.join(result.source for result in results)}.)"


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Names and texts of all plain values, nested ones by dotted names; lists by their length."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            yield f"{prefix}{name}", f"{len(value)} entries"
        else:
            yield f"{prefix}{name}", f"{value:.4g}" if isinstance(value, float) else str(value)


def _commands(names: tuple[str, ...] | list[str]) -> str:
    return " and ".join(f"`hypic {name}`" for name in names)
