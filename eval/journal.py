"""Results on disk as they are measured, so that a long run can be stopped at any moment and taken up again.

A journal is a file of JSON lines: a header that says what was measured on what, then one record a result. A run with
another header is refused: its results would not belong together.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hypic.errors import InvalidRequestError


class Journal:
    """An open journal. records: what earlier runs left in it, in order."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        """Open or begin the file. Raises InvalidRequestError where it is no journal, or one of another run."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        wanted = json.loads(json.dumps(header))
        lines = _whole_lines(path)
        self.records: list[dict[str, Any]] = []
        if lines:
            _require_same(path, lines[0], wanted)
            self.records = lines[1:]
        else:
            self._write([wanted], "w")

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Add records; they are on disk when this returns."""
        self._write(records, "a")

    def _write(self, records: Sequence[Mapping[str, Any]], mode: str) -> None:
        text = "".join(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records)
        with self.path.open(mode, encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file; what a killed run left of its last line is cut off."""
    if not path.exists():
        return []
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        with path.open("r+b") as file:
            file.truncate(end)
    try:
        text = content[:end].decode("utf-8", "surrogatepass")
        records = [json.loads(line) for line in text.split("\n") if line]
    except ValueError as error:
        raise InvalidRequestError(
            f"{path} is no journal of results ({error}); remove it or name another folder"
        ) from error
    return records


def _require_same(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    names = [name for name in {**found, **wanted} if found.get(name) != wanted.get(name)]
    if names:
        apart = "; ".join(f"{name} was {found.get(name)!r}, is {wanted.get(name)!r}" for name in names)
        raise InvalidRequestError(
            f"{path} holds results of another run: {apart}. Run as before to go on with it, name another folder, or "
            "remove the file to begin anew"
        )
