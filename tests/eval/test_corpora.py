"""Where rows come from: files, folders and the hub, the last without a network."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import Dataset, DatasetDict

from hypic.errors import InvalidRequestError
from hypic.eval.corpora import HUB, open_rows
from hypic.eval.workloads import question_sets

ROWS = [{"document": f"One {n}. ||||| Two {n}.", "summary": f"both {n}"} for n in range(4)]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved", "splits", "files"])
def test_local_files_and_folders_hold_the_same_rows(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "news"
    rows = Dataset.from_list(ROWS)
    if kind == "jsonl":
        path = tmp_path / "news.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif kind == "parquet":
        path = tmp_path / "news.parquet"
        rows.to_parquet(path)
    elif kind == "saved":
        rows.save_to_disk(path)
    elif kind == "splits":
        DatasetDict({"train": Dataset.from_list(ROWS[:1]), "test": rows}).save_to_disk(path)
    else:
        path.mkdir()
        rows.to_parquet(path / "test.parquet")
    name, found = open_rows(str(path))
    assert name == "news"
    assert [dict(row) for row in found] == ROWS
    (questions,) = question_sets(str(path), 2, None, seed=0).values()
    assert [len(question.sections) for question in questions] == [2, 2]
    assert questions[0].metric == "rouge_l"


def test_what_is_read_is_what_the_hub_would_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load(name: str, config: str | None, revision: str | None) -> DatasetDict:
        asked.append((name, config, revision))
        return DatasetDict({"validation": Dataset.from_list(ROWS), "test": Dataset.from_list(ROWS[:2])})

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert (len(open_rows("triviaqa")[1]), len(open_rows("multinews")[1])) == (4, 2)
    assert open_rows("some/Set")[0] == "Set"
    assert len(open_rows("some/Set:config:test")[1]) == 2
    assert asked == [
        ("mandarjoshi/trivia_qa", "rc", None),
        ("alexfabbri/multi_news", None, "refs/convert/parquet"),
        ("some/Set", None, None),
        ("some/Set", "config", None),
    ]
    with pytest.raises(InvalidRequestError, match="no split 'dev', only validation, test"):
        open_rows("some/Set::dev")


def test_a_missing_data_set_says_what_was_looked_for_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    for name in HUB:
        with pytest.raises(InvalidRequestError) as refused:
            open_rows(name)
        said = str(refused.value)
        assert f"the data set {name} was looked for as {HUB[name]}" in said
        assert str(datasets.config.HF_DATASETS_CACHE) in said
        assert "give --dataset a file" in said
    with pytest.raises(InvalidRequestError, match="some/where, which is no file or folder here"):
        open_rows("some/where")
    with pytest.raises(InvalidRequestError, match=r"no data set '/none\.jsonl': use recall, hotpotqa"):
        open_rows("/none.jsonl")


def test_files_that_hold_no_rows_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InvalidRequestError, match="cannot be read as Parquet"):
        open_rows(str(tmp_path / "x.parquet"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidRequestError, match="holds neither"):
        open_rows(str(tmp_path / "empty"))
    (tmp_path / "x.jsonl").write_text('{"question": "q", "documents": [], "answers": ["a"]}\n')
    with pytest.raises(InvalidRequestError, match="none of the 1 rows"):
        question_sets(str(tmp_path / "x.jsonl"), 1, None, seed=0)
