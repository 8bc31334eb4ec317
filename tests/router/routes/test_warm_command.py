"""`hypic warm` against a server: what it finds, what it tells, and how it ends."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_service import CHAT, QUESTION, app_over, cached_tokens, listening

from hypic.eval import warming
from hypic.eval.cli import main
from hypic.router.service import ServedModel
from hypic.workers.combine import CombineWorker

TEXTS = [f"document {number} of those that are warmed from the command line" for number in range(5)]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
    """Exit status, the results, and what stderr says."""
    with pytest.raises(SystemExit) as ended:
        main(["warm", *arguments, "--json"])
    said = capsys.readouterr()
    lines = said.out.splitlines()
    status = ended.value.code
    assert isinstance(status, int)
    return status, json.loads(lines[-1])["results"] if lines else None, said.err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two texts, three documents in JSON lines, and a file that is no text."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.txt").write_text(TEXTS[0])
    (tmp_path / "b.md").write_text(TEXTS[1])
    rows = [{"text": text, "title": "T", "id": f"row {n}"} for n, text in enumerate(TEXTS[2:4])] + [{"text": "short"}]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "picture.png").write_bytes(b"\xff\xfe")
    return tmp_path


def test_documents_of_a_directory_are_warm_afterwards(
    url: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warming, "BATCH_DOCUMENTS", 2)
    status, results, _ = run(capsys, str(folder), "--url", url, "--salt", "cli")
    assert (status, results["built"], results["too_short"], results["failed"]) == (0, 4, 1, 0)
    assert [row["status"] for row in results["documents"]] == ["built"] * 3 + ["too_short", "built"]
    assert results["documents"][0]["label"] == str(folder / "b.md")
    documents = [{"text": TEXTS[0]}, {"text": TEXTS[2], "title": "T"}]
    body = {"messages": QUESTION, "max_tokens": 1, "documents": documents, "cache_salt": "cli"}
    assert cached_tokens(httpx.post(url + CHAT, json=body, timeout=60).json()) > 100
    assert run(capsys, str(folder), "--url", url, "--salt", "cli")[1]["reused"] == 4


def test_one_that_is_refused_does_not_keep_the_others(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": TEXTS[4]}, {"text": "x" * 1_600_000, "id": "huge"}, {"text": "long " * 2000, "id": "long"}]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    status, results, _ = run(capsys, str(tmp_path / "d.jsonl"), "--url", url)
    assert (status, results["built"], results["failed"]) == (1, 1, 2)
    assert "UTF-8 bytes up to" in results["documents"][1]["error"]
    assert "more than" in results["documents"][2]["error"]


def test_what_keeps_it_from_working_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], combine: CombineWorker, model: ServedModel
) -> None:
    from hypic.router.keys import ApiKeys, Tenant

    file = tmp_path / "a.txt"
    file.write_text(TEXTS[0])
    for arguments, told in (
        ([str(file), "--url", "http://127.0.0.1:9"], "hypic serve"),
        ([str(tmp_path / "none")], "neither a file nor a directory"),
        ([str(tmp_path), "--url", "nowhere"], "--url"),
    ):
        status, _, error = run(capsys, *arguments)
        assert status == 2
        assert told in error
        assert "Traceback" not in error
    (tmp_path / "empty").mkdir()
    assert "no documents" in run(capsys, str(tmp_path / "empty"))[2]
    with listening(app_over(combine, [], model, keys=ApiKeys({"0" * 64: Tenant("a")}))) as guarded:
        status, _, error = run(capsys, str(file), "--url", guarded, "--api-key", "wrong")
    assert (status, "--api-key" in error) == (2, True)
