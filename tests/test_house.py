"""The house keeps its size: functions of one screen, files of one idea, and no folder for leftovers."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ["kernels", "hypic", "workers", "router", "eval", "tests"]
MAX_FUNCTION_LINES = 50
MAX_FILE_LINES = 450
LEFTOVERS = {"utils", "util", "common", "helpers", "misc", "base"}


def files() -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.resolve().is_relative_to(ROOT / folder):
                yield path


def code_lines(function: ast.AST) -> int:
    """Lines of a function without its docstring."""
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


@pytest.mark.parametrize("path", list(files()), ids=lambda path: str(path.relative_to(ROOT)))
def test_file_is_one_idea(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert len(path.read_text().splitlines()) <= MAX_FILE_LINES, f"{path} is too long"
    assert path.stem not in LEFTOVERS, f"{path} has a name that says nothing"
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = [
        f"{path}:{f.lineno} {f.name} {code_lines(f)} lines" for f in functions if code_lines(f) > MAX_FUNCTION_LINES
    ]
    assert not long, "\n".join(long)
    assert ast.get_docstring(tree) or not path.read_text().strip(), f"{path} does not say what lives in it"
