"""What `--out` wrote: the results in a folder, by command."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypic.errors import InvalidRequestError

_ENVELOPE = ("command", "commit", "device", "model", "date", "results")


@dataclass(frozen=True)
class Result:
    """One file. command: as typed, with "hypic"."""

    file: str
    command: str
    commit: str
    device: str
    model: str
    date: str
    results: dict[str, Any]

    @property
    def source(self) -> str:
        """Where the figures come from, for a caption."""
        return f"{self.command}: model {self.model}, device {self.device}, commit {self.commit}, {self.date[:10]}"


@dataclass(frozen=True)
class Folder:
    """Results by command, the newest of each first, and files that are none."""

    results: tuple[Result, ...]
    foreign: tuple[str, ...]

    def all(self, command: str) -> Sequence[Result]:
        return [result for result in self.results if result.command == f"hypic {command}"]

    def newest(self, command: str) -> Result | None:
        return next(iter(self.all(command)), None)


def read_folder(path: Path) -> Folder:
    """Every *.json in a folder. Raises InvalidRequestError where there is no folder or no result in it, and for a file
    that is not JSON."""
    if not path.is_dir():
        raise InvalidRequestError(f"{path} is no folder: give one that commands wrote to with --out")
    found, foreign = [], []
    for file in sorted(path.glob("*.json")):
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise InvalidRequestError(f"{file} is not JSON: {error}; remove it, or run its command again") from error
        if (
            isinstance(record, dict)
            and all(name in record for name in _ENVELOPE)
            and isinstance(record["results"], dict)
        ):
            texts = {name: str(record[name]) for name in _ENVELOPE[:-1]}
            found.append(Result(file=file.name, results=record["results"], **texts))
        else:
            foreign.append(file.name)
    if not found:
        raise InvalidRequestError(
            f"no results in {path}: run commands with --out {path} first, such as hypic eval quality --out {path}"
        )
    return Folder(tuple(sorted(found, key=lambda result: result.date, reverse=True)), tuple(foreign))
