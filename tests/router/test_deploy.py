"""The manifests can be read, and every `hypic serve` in them and in the page about them is a command that there is."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from hypic.eval.cli import app

DOCS = Path(__file__).parent.parent.parent / "docs"
CLUSTER = yaml.safe_load((DOCS / "deploy" / "ray-cluster.yaml").read_text())
JOB, SERVICE = yaml.safe_load_all((DOCS / "deploy" / "kuberay.yaml").read_text())


def commands() -> list[list[str]]:
    """The words behind `hypic serve`, wherever it stands."""
    page = re.findall(r"hypic (serve --[^'`\n]*)", (DOCS / "deploy.md").read_text())
    return [shlex.split(text)[1:] for text in (*page, JOB["spec"]["entrypoint"].removeprefix("hypic "))]


def test_the_commands_are_found() -> None:
    assert len(commands()) == 3
    assert "--max-requests" in commands()[-1]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_a_command_is_one_that_serve_takes(words: list[str]) -> None:
    serve: Any = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    context = serve.make_context("serve", list(words))
    assert context.params["host"] == "0.0.0.0"


def test_options_that_the_page_names_are_options_of_serve() -> None:
    serve: Any = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    known = {option for parameter in serve.params for option in parameter.opts}
    named = set(re.findall(r"`(--[a-z-]+)", (DOCS / "deploy.md").read_text()))
    assert "--address" in named
    assert named <= known, named - known


def test_there_is_a_cpu_for_every_worker_of_the_job() -> None:
    """Each takes one; the head has none for them."""
    words = commands()[-1]
    asked = sum(int(words[words.index(name) + 1]) for name in ("--scatter-workers", "--combine-workers"))
    spec = JOB["spec"]["rayClusterSpec"]
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    cpus = 0
    for group in spec["workerGroupSpecs"]:
        (container,) = group["template"]["spec"]["containers"]
        cpus += group["replicas"] * int(container["resources"]["limits"]["cpu"])
    assert cpus >= asked


def test_the_service_finds_the_head_where_it_listens() -> None:
    head = JOB["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    words = commands()[-1]
    port = int(words[words.index("--port") + 1])
    assert SERVICE["spec"]["selector"].items() <= head["metadata"]["labels"].items()
    assert SERVICE["spec"]["ports"][0]["targetPort"] == port
    assert port in [found["containerPort"] for found in head["spec"]["containers"][0]["ports"]]


def test_every_node_of_the_launcher_joins_the_head() -> None:
    port = re.search(r"--port=(\d+)", CLUSTER["head_start_ray_commands"][-1])
    assert port
    assert f"--address=$RAY_HEAD_IP:{port[1]}" in CLUSTER["worker_start_ray_commands"][-1]
    assert len(CLUSTER["provider"]["worker_ips"]) == CLUSTER["min_workers"] == CLUSTER["max_workers"]
