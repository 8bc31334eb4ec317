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


def test_curl_examples_answer(running: Any) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl on this machine")
    found = blocks("bash")
    assert found
    for block in found:
        command = block.replace(EXAMPLE_URL, running.url)
        answer = json.loads(subprocess.run(["bash", "-c", command], capture_output=True, check=True).stdout)
        assert answer["choices"][0]["message"]["content"]
        assert len(answer["hypic"]["plan"]["segments"]) == 4


def test_python_examples_run(running: Any) -> None:
    found = blocks("python")
    assert len(found) == 2
    names: dict[str, Any] = {}
    for block in found:
        exec(block.replace(EXAMPLE_URL, running.url), names)
        assert names["answer"].choices[0].message.content


def test_every_field_and_error_code_is_described() -> None:
    from hypic.router.bodies import ChatBody

    for field in ChatBody.model_fields:
        described = field in PAGE or field in ("presence_penalty", "frequency_penalty", "top_logprobs")
        assert described, field
