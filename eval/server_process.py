"""`hypic serve` as a process of its own, for the length of a with block."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import httpx

from hypic.config import ClusterConfig, EngineConfig
from hypic.errors import HypicError

START_SECONDS, STOP_SECONDS = 300.0, 30.0

_SERVE = "from hypic.eval.cli import main; main()"

_POLITE = "import os; os.nice(5); "
"""The server and its workers give way to the client, which has to keep its schedule on the same cores."""


@dataclass(frozen=True)
class Served:
    """A server that takes requests. pid: of its process, whose descendants are Ray and the workers."""

    url: str
    pid: int


@contextmanager
def serving(engine: EngineConfig, cluster: ClusterConfig) -> Iterator[Served]:
    """A server with these settings on a free port. Raises HypicError with its last words where it ends
    instead of serving."""
    port = _free_port()
    command = [sys.executable, "-c", _POLITE + _SERVE, *serve_command(engine, cluster, port)]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            yield Served(_wait(server, f"http://127.0.0.1:{port}", log), server.pid)
        finally:
            _stop(server)


def serve_command(engine: EngineConfig, cluster: ClusterConfig, port: int) -> list[str]:
    """The words behind `hypic` that start a server with these settings."""
    return ["serve", "--port", str(port), *_options(engine), *_options(cluster)]


def check_serving(url: str) -> None:
    """Raises HypicError where nothing that can answer is at a URL."""
    try:
        state = httpx.get(f"{url}/health", timeout=10.0)
    except httpx.HTTPError as error:
        raise HypicError(f"no server answers at {url}: {error}") from error
    if state.status_code != 200:
        raise HypicError(f"the server at {url} cannot take requests: {state.text[:300]}")


def _wait(server: "subprocess.Popen[bytes]", url: str, log: Any) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise HypicError(f"hypic serve ended with status {server.returncode}: {_last_words(log)}")
        try:
            if httpx.get(f"{url}/health", timeout=5.0).status_code == 200:
                return url
        except httpx.HTTPError:  # it does not listen yet
            pass
        time.sleep(0.2)
    raise HypicError(f"hypic serve is not ready after {START_SECONDS:.0f} s: {_last_words(log)}")


def _stop(server: "subprocess.Popen[bytes]") -> None:
    """As with Ctrl-C, so that Ray ends too; by force, its whole process group, if that does not help."""
    if server.poll() is None:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _last_words(log: Any) -> str:
    log.seek(0)
    return str(log.read().decode(errors="replace")[-1000:].strip())


def _options(config: EngineConfig | ClusterConfig) -> list[str]:
    """A config as options of the command line, those at their defaults left out."""
    changed = [(field.name, getattr(config, field.name)) for field in fields(config)]
    defaults = {field.name: field.default for field in fields(config)}
    return [
        word
        for name, value in changed
        if value != defaults[name]
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]


def _free_port() -> int:
    """A port that nobody listens on, and that nobody is given meanwhile: below those that systems hand out, above those
    that Ray takes for its workers."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):  # taken: another is drawn
            probe.bind(("127.0.0.1", random.randrange(20_000, 32_000)))
            return int(probe.getsockname()[1])
