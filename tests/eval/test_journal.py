"""The journal: what is on disk counts, of a killed run nothing half-written, and never the results of another run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hypic.config import EngineConfig
from hypic.engine.engine import Engine
from hypic.errors import InvalidRequestError
from hypic.eval import quality
from hypic.eval.journal import Journal
from hypic.eval.quality import JOURNAL, run_quality
from hypic.eval.settings import QualityConfig

HEADER = {"model": "m", "seed": 0}


def test_records_come_back_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "new" / "j.jsonl", HEADER)
    assert journal.records == []
    journal.append([{"a": 1}, {"text": "zwei\n三 \ud83d"}])
    journal.append([{"b": 0.1}])
    assert Journal(journal.path, HEADER).records == [{"a": 1}, {"text": "zwei\n三 \ud83d"}, {"b": 0.1}]


def test_half_a_line_is_cut_off_and_written_again(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    Journal(path, HEADER).append([{"a": 1}, {"a": 2}])
    whole = path.read_bytes()
    for length in range(len(whole) - 1, len(json.dumps(HEADER)), -1):
        path.write_bytes(whole[:length])
        journal = Journal(path, HEADER)
        assert journal.records == [{"a": 1}, {"a": 2}][: whole[:length].count(b"\n") - 1]
        journal.append([{"a": 3}])
        assert Journal(path, HEADER).records == [*journal.records, {"a": 3}]


def test_another_header_is_refused_and_names_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    Journal(path, HEADER).append([{"a": 1}])
    with pytest.raises(InvalidRequestError, match=r"another run: seed was 0, is 1; arms was None, is \['full'\]"):
        Journal(path, HEADER | {"seed": 1, "arms": ["full"]})
    assert Journal(path, HEADER).records == [{"a": 1}], "what was refused changed nothing"
    path.write_text("not json\n")
    with pytest.raises(InvalidRequestError, match="no journal"):
        Journal(path, HEADER)


ARMS = ["hypic", "addition"]
QUESTIONS = 18
TOTAL = QUESTIONS * 3


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> QualityConfig:
    """Three groups of short questions."""
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    records = [
        {"question": f"Which {n}?", "documents": [f"Text {n}.{m} is of use." for m in range(2)], "answers": ["it"]}
        for n in range(QUESTIONS)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return QualityConfig(str(path), seed=3)


def _results(path: Path, config: QualityConfig, out: Path | None) -> dict[str, Any]:
    return run_quality(Engine(EngineConfig(model=path, threads=1)), config, ARMS, out).results


@pytest.fixture(scope="module")
def uninterrupted(tiny_checkpoint: Path, config: QualityConfig) -> dict[str, Any]:
    return _results(tiny_checkpoint, config, None)


def test_a_killed_run_goes_on_and_ends_as_if_it_had_not_been_killed(
    tiny_checkpoint: Path, config: QualityConfig, tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    """SIGKILL as soon as some results are on disk; nothing in the process can tidy up."""
    path = tmp_path / JOURNAL
    options = ["--dataset", config.dataset, "--seed", "3", "--arms", ",".join(ARMS), "--threads", "1"]
    command = ["eval", "quality", "--model", str(tiny_checkpoint), *options, "--out", str(tmp_path)]
    code = "import sys\nfrom hypic.eval.cli import main\nmain(sys.argv[1:])"
    process = subprocess.Popen([sys.executable, "-c", code, *command], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not path.exists() or path.read_bytes().count(b"\n") < 2:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline, "no result in two minutes"
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = path.read_bytes().count(b"\n") - 1
    assert 0 < done < TOTAL, "it was killed on the way"
    assert not (tmp_path / "eval-quality.json").exists()
    assert _results(tiny_checkpoint, config, tmp_path) == uninterrupted
    assert path.read_bytes().count(b"\n") - 1 == TOTAL, "no result is there twice"


def test_what_is_done_is_not_run_again_and_an_interrupt_says_how_to_go_on(
    tiny_checkpoint: Path,
    config: QualityConfig,
    tmp_path: Path,
    uninterrupted: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_group = quality._run_group
    ran: list[int] = []

    def interrupted(*arguments: Any) -> Any:
        if len(ran) == 2:
            raise KeyboardInterrupt
        ran.append(arguments[5].start)
        return run_group(*arguments)

    monkeypatch.setattr(quality, "_run_group", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _results(tiny_checkpoint, config, tmp_path)
    said = " ".join(capsys.readouterr().err.split())
    assert f"stopped with {16 * 3} of {TOTAL} answers done; the same command goes on from" in said
    path = tmp_path / JOURNAL
    path.write_bytes(path.read_bytes()[:-20])  # as if killed while it wrote: the second group is not whole
    ran.clear()
    monkeypatch.setattr(quality, "_run_group", lambda *found: ran.append(found[5].start) or run_group(*found))
    assert _results(tiny_checkpoint, config, tmp_path) == uninterrupted
    assert ran == [8, 16]
    assert f"{8 * 3} of {TOTAL} answers are in" in " ".join(capsys.readouterr().err.split())


def test_another_seed_model_or_arm_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    engine = Engine(EngineConfig(model=tiny_checkpoint, threads=1))
    small = QualityConfig(limit=1, documents=2)
    first = run_quality(engine, small, ["prefix"], tmp_path).results
    assert run_quality(engine, small, ["prefix"], tmp_path).results == first
    for config, arms, named in (
        (QualityConfig(limit=1, documents=2, seed=1), ["prefix"], "questions was"),
        (QualityConfig(limit=1, documents=2, cold_share=1.0), ["prefix"], "options was"),
        (small, ["hypic"], "arms was"),
    ):
        with pytest.raises(InvalidRequestError, match=f"another run: .*{named}"):
            run_quality(engine, config, arms, tmp_path)
    other = Engine(EngineConfig(model=tiny_checkpoint, threads=1, dtype="bfloat16"))
    with pytest.raises(InvalidRequestError, match="engine was"):
        run_quality(other, small, ["prefix"], tmp_path)
