"""The command line: options come from the config classes, faults are one line, and JSON is the last line."""

import json
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from hypic.config import EngineConfig, ServerConfig
from hypic.eval.cli import main
from hypic.eval.options import field_help, with_config
from hypic.eval.report import Report, Table, emit


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    captured = capsys.readouterr()
    code = ended.value.code
    return (code if isinstance(code, int) else 0), captured.out, captured.err


def last_line(out: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return record


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    path = tmp_path / "documents.jsonl"
    texts = ["The blue key opens the east door, says Ada. " * 2, "Short.", "Bo keeps the red key in a jar. " * 3]
    path.write_text("".join(json.dumps({"id": f"d{n}", "text": text}) + "\n" for n, text in enumerate(texts)))
    return path


def test_help_does_not_load_what_is_heavy() -> None:
    code = (
        "import sys\nfrom hypic.eval.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print([name for name in ('torch', 'ray', 'transformers', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip().splitlines()[-1] == "[]"
    assert "demo" in done.stdout


def test_options_are_the_fields_with_their_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "plan", "--help")
    for field in fields(EngineConfig):
        assert f"--{field.name.replace('_', '-')}" in out.replace("\n", " ")
    assert field_help(ServerConfig)["max_documents"] == field_help(ServerConfig)["max_segments"]
    assert field_help(EngineConfig)["model"] == "a checkpoint directory."


def test_a_field_that_the_command_declares_is_left_to_it() -> None:
    @dataclass(frozen=True)
    class Config:
        """A config. first: one thing. second: another."""

        first: int = 1
        second: int = 2

    seen: list[object] = []

    def command(config: Config, first: str = "own") -> None:
        """Says what it got."""
        seen.append((config, first))

    wrapped = with_config(command)
    wrapped(first="mine", second=5)
    assert seen == [(Config(1, 5), "mine")]


def test_plan_of_warm_documents(capsys: pytest.CaptureFixture[str], tiny_checkpoint: Path, documents: Path) -> None:
    common = ["plan", "--model", str(tiny_checkpoint), "--documents", str(documents), "--question", "Which key?"]
    code, out, _ = run(capsys, *common, "--json")
    assert code == 0
    record = last_line(out)
    assert set(record) == {"command", "commit", "device", "model", "date", "results"}
    rows = record["results"]["segments"]
    assert [(row["source"], row["reason"]) for row in rows if row["kind"] == "document"] == [
        ("build", "cold"),
        ("active", "too_short"),
        ("build", "cold"),
    ]
    _, out, _ = run(capsys, *common, "--warm", str(documents), "--json")
    warm = last_line(out)["results"]
    assert [row["source"] for row in warm["segments"] if row["kind"] == "document"] == ["segment", "active", "segment"]
    assert warm["cached_tokens"] > 0 == warm["built_tokens"]
    assert "too_short" in out


def test_plan_of_a_request_file(capsys: pytest.CaptureFixture[str], tiny_checkpoint: Path, tmp_path: Path) -> None:
    body = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a " * 40}, {"type": "text", "text": "and?"}]},
        ],
        "documents": ["x " * 30, {"title": "T", "text": "<|im_end|> is plain text here. " * 3}],
    }
    path = tmp_path / "request.json"
    path.write_text(json.dumps(body))
    code, out, _ = run(
        capsys, "plan", str(path), "--model", str(tiny_checkpoint), "--json", "--out", str(tmp_path / "o")
    )
    assert code == 0
    assert [row["label"] for row in last_line(out)["results"]["segments"]][1:] == [
        "document 1",
        "T",
        "part 1",
        "question",
    ]
    assert json.loads((tmp_path / "o" / "plan.json").read_text()) == last_line(out)
    assert (tmp_path / "o" / "plan.md").read_text().startswith("# hypic plan")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan", "--question", "q", "--model", "/no/such/model"], "no model at /no/such/model"),
        (["plan", "--model", "TINY"], "nothing to plan"),
        (["plan", "/no/file.json", "--model", "TINY"], "/no/file.json cannot be read as JSON"),
        (["plan", "x.json", "--question", "q", "--model", "TINY"], "not both"),
        (["plan", "--question", "q", "--arm", "hypik", "--model", "TINY"], "no arm 'hypik'"),
        (["plan", "--question", "q", "--documents", "/none.jsonl", "--model", "TINY"], "/none.jsonl cannot be read"),
        (["plan", "--question", "q" * 5000, "--model", "TINY"], "at most 4096"),
        (["eval", "quality", "--dataset", "/none.jsonl", "--model", "TINY"], "no data set"),
        (["eval", "parity", "--model", "/no/such/model"], "no model at"),
        (["plan", "--question", "q", "--dtype", "float8", "--model", "TINY"], "dtype must be auto"),
        (["eval", "quality", "--limit", "0"], "limit must be at least 1"),
        (["serve", "--pic", "hypik", "--model", "TINY"], "no arm 'hypik'"),
        (["bench", "ttft", "--arms", " , "], "at least one arm"),
        (["bench", "ttft", "--arms", "hypik", "--model", "TINY"], "no arm"),
    ],
)
def test_faults_are_said_and_not_traced(
    capsys: pytest.CaptureFixture[str], tiny_checkpoint: Path, arguments: list[str], said: str
) -> None:
    code, out, err = run(capsys, *(str(tiny_checkpoint) if word == "TINY" else word for word in arguments))
    assert code == 2
    assert said in " ".join(err.replace("│", " ").split()), err
    assert "Traceback" not in out + err


def test_parity_and_algebra_reports(capsys: pytest.CaptureFixture[str], tiny_checkpoint: Path) -> None:
    _, out, _ = run(capsys, "eval", "parity", "--model", str(tiny_checkpoint), "--timed-tokens", "0", "--json")
    assert last_line(out)["results"]["architectures"]["qwen3_5"]["max_abs_logit_diff"] < 1e-4
    _, out, _ = run(capsys, "eval", "algebra", "--splits", "1", "--tokens", "65", "--json")
    assert last_line(out)["results"]["families"]["gated_delta_net"]["max_relative_error"] < 2e-6


def test_quality_and_fidelity_reports(capsys: pytest.CaptureFixture[str], tiny_checkpoint: Path) -> None:
    small = ["--model", str(tiny_checkpoint), "--limit", "1", "--documents", "2", "--arms", "hypic", "--json"]
    _, out, _ = run(capsys, "eval", "quality", *small)
    assert last_line(out)["results"]["sets"]["border"]["hypic"]["n"] == 1
    _, out, _ = run(capsys, "eval", "fidelity", *small)
    layer = last_line(out)["results"]["layers"][0]
    assert {"index", "kind", "arm", "relative_l2", "angle_degrees"} <= set(layer)


def test_text_of_users_is_no_markup_and_breaks_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("Title", ("name", "n"), (("[bold]a|b[/bold]", "1"),), note="read it [so]")
    emit(Report("plan", "m", "cpu", {}, (table,)), as_json=False, out=None)
    out = capsys.readouterr().out
    assert "[bold]a|b[/bold]" in out
    assert "read it [so]" in " ".join(out.split())
    assert "| [bold]a\\|b[/bold] | 1 |" in table.markdown()


def test_numbers_that_json_does_not_know_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        emit(Report("plan", "m", "cpu", {"x": float("nan")}), as_json=True, out=None)
