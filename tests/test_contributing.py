"""The examples of CONTRIBUTING.md work: written to files, they are found and pass the tests of what is here."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "CONTRIBUTING.md"
_BLOCK = re.compile(r"```python\n# hypic/(linear|models)/(\w+)\.py\n(.*?)```", re.DOTALL)
_CHECKS = {"linear": "tests/hypic/linear/test_families.py", "models": "tests/hypic/models/test_architectures.py"}

# Extends the packages that are searched, before any test asks what there is.
_PLUGIN = """
import hypic.linear, hypic.models
for package in (hypic.linear, hypic.models):
    package.__path__ = [*package.__path__, {folder!r} + "/" + package.__name__.rpartition(".")[2]]
"""


def test_page_is_short() -> None:
    assert len(PAGE.read_text().splitlines()) <= 80


@pytest.mark.parametrize("floor", _CHECKS)
def test_example_passes_the_conformance_tests(tmp_path: Path, floor: str) -> None:
    examples = [(name, code) for place, name, code in _BLOCK.findall(PAGE.read_text()) if place == floor]
    assert len(examples) == 1, "one example of each kind"
    name, code = examples[0]
    for place in _CHECKS:
        (tmp_path / place).mkdir()
    (tmp_path / floor / f"{name}.py").write_text(code)
    (tmp_path / "contributed.py").write_text(_PLUGIN.format(folder=str(tmp_path)))
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    arguments = ["-p", "contributed", "-p", "no:cacheprovider", "-q", "-k", f"[{name}] or [{name}- or -{name}]"]
    command = [sys.executable, "-m", "pytest", *arguments, _CHECKS[floor]]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None, done.stdout
    assert int(passed[1]) >= 10, done.stdout
