"""What the pages of docs/ show runs as it is written, against a real server."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import typer

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
EXAMPLE_URL = "http://127.0.0.1:8000"


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


def blocks(text: str, *languages: str) -> list[tuple[str, str]]:
    """Language and content of each block, in order."""
    return re.findall(rf"```({'|'.join(languages)})\n(.*?)```", text, re.DOTALL)


def shell(block: str, url: str, folder: Path = ROOT) -> str:
    """What the commands of a block print."""
    command = block.replace(EXAMPLE_URL, url).replace("curl -s", "curl -sS --fail-with-body -w '\\n'")
    hypic = f"hypic() {{ {sys.executable} -c 'from hypic.eval.cli import main; main()' \"$@\"; }}\n"
    done = subprocess.run(["bash", "-ec", hypic + command], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, (block, done.stdout, done.stderr)
    return done.stdout


def test_the_apis_curl_examples_answer(running: Any) -> None:
    assert shutil.which("curl"), "the examples are curl commands"
    printed = [shell(block, running.url) for _, block in blocks(page("api"), "bash")]
    answers = [json.loads(line) for text in printed for line in text.splitlines() if line.strip()]
    chat, marked, completion, generated, warmed, listed, deleted, opened, models, health, info, flushed = answers
    assert len(chat["hypic"]["plan"]["segments"]) == 4
    assert len(marked["choices"]) == 2
    assert all(choice["logprobs"]["content"] for choice in marked["choices"])
    assert completion["choices"][0]["text"]
    assert generated["text"]
    assert generated["meta_info"]["output_token_logprobs"]
    assert warmed["built"] + warmed["reused"] == 1
    assert listed["data"]
    assert deleted["deleted"]
    assert opened == "chat-42"
    assert models["data"][0]["id"] == running.model
    assert health["status"] == "ok"
    assert info["model"] == running.model
    assert flushed["segments"] >= 0


def test_the_apis_python_examples_run(running: Any) -> None:
    found = blocks(page("api"), "python")
    assert len(found) == 2
    names: dict[str, Any] = {}
    for _, block in found:
        exec(block.replace(EXAMPLE_URL, running.url), names)
        assert names["answer"].choices[0].message.content


def test_the_page_on_rag_runs_from_top_to_bottom(running: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    names: dict[str, Any] = {}
    found = blocks(page("rag"), "bash", "python")
    assert [language for language, _ in found] == ["bash", "python", "python", "python", "bash"]
    for language, block in found:
        if language == "bash":
            assert shell(block, running.url, tmp_path)
        else:
            exec(block.replace(EXAMPLE_URL, running.url), names)


def test_the_quickstart_reuses_what_it_warmed(running: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    warmed, asked, planned = [shell(block, running.url, tmp_path) for _, block in blocks(page("quickstart"), "bash")]
    counts = re.search(r"(\d+) built, (\d+) reused, 0 too_short, 0 failed", " ".join(warmed.split()))
    assert counts, warmed
    assert int(counts[1]) + int(counts[2]) == 2
    rows = json.loads(asked)["hypic"]["plan"]["segments"]
    assert [row["source"] for row in rows if row["label"] in ("Key plan", "Shift notes")] == ["segment"] * 2
    assert "Shift notes" in planned or "log-7" in planned


def test_the_keys_of_the_security_page_are_read(tmp_path: Path) -> None:
    from hypic.router.keys import ApiKeys

    ((_, block),) = blocks(page("security"), "bash")
    key = shell(f'{block}\necho "$key"', EXAMPLE_URL, tmp_path).strip()
    tenant = ApiKeys.load(tmp_path / "keys.toml").tenant(key)
    assert tenant is not None
    assert (tenant.name, tenant.operator) == ("acme", True)


@pytest.mark.parametrize("name", [path.stem for path in sorted((ROOT / "docs").glob("*.md"))])
def test_commands_that_are_only_shown_have_the_options_that_they_name(name: str) -> None:
    """Those that start a server or take long: parsed as the command line parses them, and not run."""
    from hypic.eval.cli import app

    for _, block in blocks(page(name), "console"):
        for line in re.findall(r"^\$ (?:\S*/)?hypic (.*?)(?: #.*)?$", block, re.MULTILINE):
            arguments, command = line.split(), typer.main.get_command(app)
            while isinstance(command, click.Group):
                command = command.commands[arguments.pop(0)]
            command.make_context("hypic", arguments)


def test_every_field_route_and_status_is_described() -> None:
    from hypic.router.api import ROUTERS
    from hypic.router.bodies.chat import ChatBody
    from hypic.router.bodies.completions import CompletionBody
    from hypic.router.bodies.generate import GenerateBody
    from hypic.router.faults import ANSWERS

    told = page("api")
    for body in (ChatBody, CompletionBody, GenerateBody):
        for field in body.model_fields:
            assert f"`{field}" in told, field
    for router in ROUTERS:
        for route in router.routes:
            path = route.path.replace("{segment_id}", "{id}")  # type: ignore[attr-defined]
            assert path in told, route
    for status in ANSWERS:
        assert f"| {status} |" in told, status
