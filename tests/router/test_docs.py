"""What docs/api.md shows runs as it is written, against a real server."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.cluster

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
EXAMPLE_URL = "http://127.0.0.1:8000"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def shell(block: str, url: str) -> list[Any]:
    """What each command of a block answers."""
    command = block.replace(EXAMPLE_URL, url).replace("curl -s", "curl -sS --fail-with-body -w '\\n'")
    done = subprocess.run(["bash", "-ec", command], capture_output=True, text=True)
    assert done.returncode == 0, (block, done.stdout, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines() if line.strip()]


def test_curl_examples_answer(running: Any) -> None:
    assert shutil.which("curl"), "the examples are curl commands"
    answers = [answer for block in blocks("bash") for answer in shell(block, running.url)]
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


def test_python_examples_run(running: Any) -> None:
    found = blocks("python")
    assert len(found) == 2
    names: dict[str, Any] = {}
    for block in found:
        exec(block.replace(EXAMPLE_URL, running.url), names)
        assert names["answer"].choices[0].message.content


def test_every_field_route_and_status_is_described() -> None:
    from hypic.router.api import ROUTERS
    from hypic.router.bodies.chat import ChatBody
    from hypic.router.bodies.completions import CompletionBody
    from hypic.router.bodies.generate import GenerateBody
    from hypic.router.faults import ANSWERS

    for body in (ChatBody, CompletionBody, GenerateBody):
        for field in body.model_fields:
            assert f"`{field}" in PAGE, field
    for router in ROUTERS:
        for route in router.routes:
            path = route.path.replace("{segment_id}", "{id}")  # type: ignore[attr-defined]
            assert path in PAGE, route
    for status in ANSWERS:
        assert f"| {status} |" in PAGE, status
