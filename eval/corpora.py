"""Where rows of a data set come from: a local file or folder, the sample that is shipped, or the Hugging Face hub.

JSON lines are read here, so that a bad line is named; everything else goes through the library `datasets`, which also
keeps what it once downloaded for use without a network. What a row means is left to `hypic.eval.adapters`.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypic.errors import InvalidRequestError

HOTPOTQA = Path(__file__).resolve().parent / "data" / "hotpotqa.jsonl"

_SPLITS = ("validation", "test", "train")  # what is asked for where nothing is said, first found first
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]*){0,2}")


@dataclass(frozen=True)
class HubSet:
    """A data set on the hub. config, split: "" for the only one, or the first of validation, test, train. revision: ""
    for the newest."""

    name: str
    config: str = ""
    split: str = ""
    revision: str = ""

    def __str__(self) -> str:
        return ":".join(part for part in (self.name, self.config, self.split) if part)


HUB: dict[str, HubSet] = {
    "triviaqa": HubSet("mandarjoshi/trivia_qa", "rc", "validation"),
    "musique": HubSet("dgslibisey/MuSiQue", "", "validation"),
    "govreport": HubSet("ccdv/govreport-summarization", "", "test"),
    "multinews": HubSet("alexfabbri/multi_news", "", "test", "refs/convert/parquet"),  # elsewhere it is a script
}
"""Names that stand for a data set of the hub; hotpotqa is the shipped sample."""

Rows = Sequence[Mapping[str, Any]]


def open_rows(dataset: str) -> tuple[str, Rows]:
    """Name and rows of a data set: hotpotqa (the shipped sample), a name in HUB, a local .jsonl or .parquet file, a
    folder (of `save_to_disk`, or of such files), or OWNER/NAME[:CONFIG[:SPLIT]] on the hub.

    Raises InvalidRequestError that says what was looked for, where, and how to supply a file.
    """
    path = HOTPOTQA if dataset == "hotpotqa" else Path(dataset)
    if path.is_file():
        return path.stem, _read_file(path)
    if path.is_dir():
        return path.name, _read_folder(path)
    if dataset in HUB:
        return dataset, _from_hub(HUB[dataset], f"the data set {dataset}")
    if _HUB_NAME.fullmatch(dataset) and not path.suffix:
        found = HubSet(*dataset.split(":"))
        return found.name.partition("/")[2], _from_hub(found, f"{dataset}, which is no file or folder here")
    raise InvalidRequestError(
        f"there is no data set {dataset!r}: use recall, hotpotqa (a sample that is shipped), {', '.join(HUB)} (from "
        "the Hugging Face hub), OWNER/NAME:CONFIG:SPLIT of another one there, or a file of JSON lines or Parquet"
    )


def read_records(path: Path, required: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines, each with the required keys. Raises InvalidRequestError with the line."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{path} cannot be read as text: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise InvalidRequestError(f"{path}:{number} is not JSON: {error}") from error
        missing = not isinstance(record, dict) or [key for key in required if key not in record]
        if missing:
            raise InvalidRequestError(f"{path}:{number} must be an object with {', '.join(required) or 'columns'}")
        yield record


def _read_file(path: Path) -> Rows:
    if path.suffix != ".parquet":
        return list(read_records(path, ()))
    library = _library()
    try:
        rows: Rows = library.load_dataset("parquet", data_files=str(path), split="train")
    except Exception as error:  # of pyarrow, of the library, of the file system: told as they are
        raise InvalidRequestError(f"{path} cannot be read as Parquet: {error}") from error
    return rows


def _read_folder(path: Path) -> Rows:
    library = _library()
    saved = any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))
    try:
        found = library.load_from_disk(str(path)) if saved else library.load_dataset(str(path))
    except Exception as error:  # as above
        raise InvalidRequestError(
            f"{path} is a folder, but holds neither what `save_to_disk` of datasets writes nor files of JSON lines or "
            f"Parquet that it can read: {error}"
        ) from error
    return _one_split(found, "", str(path))


def _from_hub(wanted: HubSet, told: str) -> Rows:
    library = _library()
    try:
        found = library.load_dataset(wanted.name, wanted.config or None, revision=wanted.revision or None)
    except Exception as error:  # no network, no such name, a script that is no longer run, a full disk: told as it is
        raise InvalidRequestError(
            f"{told} was looked for as {wanted} on the Hugging Face hub and in its cache "
            f"({library.config.HF_DATASETS_CACHE}), and could not be read: {error}. Run this once where there is a "
            "network, or download the data set elsewhere and give --dataset a file (JSON lines or Parquet, in its "
            "published columns) or a folder that `save_to_disk` wrote"
        ) from error
    return _one_split(found, wanted.split, str(wanted))


def _one_split(found: Any, split: str, told: str) -> Rows:
    """The split asked for, or the first usual one. A data set without splits is taken as it is."""
    if not isinstance(found, dict):
        rows: Rows = found
        return rows
    wanted = [split] if split else [*_SPLITS, *found]
    for name in wanted:
        if name in found:
            rows = found[name]
            return rows
    raise InvalidRequestError(f"{told} has no split {split!r}, only {', '.join(found)}")


def _library() -> Any:
    """Hugging Face datasets, which is an extra: most runs need the shipped data alone."""
    try:
        import datasets  # type: ignore[import-untyped]
    except ImportError as error:
        raise InvalidRequestError(
            f"reading this data set needs the package datasets ({error}): pip install 'hypic[eval]', or give --dataset "
            "a file of JSON lines"
        ) from error
    datasets.disable_progress_bars()
    return datasets
