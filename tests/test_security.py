"""Nothing from outside is unpickled, evaluated or run: no source file has the means. And who can reach the server."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypic.config import ServerConfig

ROOT = Path(__file__).parent.parent
FOLDERS = ("kernels", "hypic", "workers", "router", "eval")
UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "jsonpickle"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load"}
NEEDS = {"torch.load": ("weights_only", True), "torch.jit.load": ("", None), "numpy.load": ("allow_pickle", False)}
NEVER = {"trust_remote_code": True, "allow_pickle": True, "shell": True, "weights_only": False}


def sources() -> list[Path]:
    found = {path.resolve() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    return sorted(found)


def name_of(node: ast.expr, aliases: dict[str, str]) -> str:
    """`np.load` as numpy.load, "" for what has no name."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value, aliases)}.{node.attr}"
    return ""


def unsafe(source: str) -> Iterator[str]:
    """Every use of what runs or unpickles what it is given."""
    tree, aliases = ast.parse(source), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                full = f"{module}.{alias.name}" if module else alias.name
                aliases[alias.asname or alias.name] = full
                if full.partition(".")[0] in UNSAFE_MODULES:
                    yield f"line {node.lineno}: imports {full}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = name_of(node.func, aliases)
        options = {option.arg: getattr(option.value, "value", "?") for option in node.keywords}
        if name in UNSAFE_CALLS:
            yield f"line {node.lineno}: calls {name}"
        wanted = NEEDS.get(name)
        if wanted is not None and options.get(wanted[0], "left out") is not wanted[1]:
            yield f"line {node.lineno}: {name} without {wanted[0]}={wanted[1]}"
        for option, value in NEVER.items():
            if option in options and options[option] in (value, "?"):
                yield f"line {node.lineno}: {option}={value}"


def test_no_file_runs_or_unpickles_what_it_reads() -> None:
    paths = sources()
    assert len(paths) > 100
    assert not [f"{path}, {found}" for path in paths for found in unsafe(path.read_text())]


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load(path)",
        "import torch as t\nt.load(path, weights_only=False)",
        "from torch import load\nload(path)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "import numpy as np\nnp.load(path)",
        "eval(text)",
        "from os import system\nsystem(text)",
        "import subprocess\nsubprocess.run(text, shell=True)",
        "AutoModel.from_pretrained(path, trust_remote_code=True)",
        "AutoModel.from_pretrained(path, trust_remote_code=asked)",
    ],
)
def test_each_of_them_would_be_found(source: str) -> None:
    assert list(unsafe(source))


def test_a_safe_load_is_taken() -> None:
    assert not list(unsafe("import torch\ntorch.load(path, weights_only=True)\nmodel.eval()\nre.compile(text)"))


def test_the_server_is_heard_on_this_machine_alone_unless_told_otherwise() -> None:
    from hypic.router.app import exposed

    assert not exposed(ServerConfig().host)
    assert exposed("0.0.0.0")
