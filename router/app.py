"""The HTTP server on Ray Serve: one ingress replica in front of the workers, and the life of `hypic serve`."""

import contextlib
import ipaddress
import logging
import signal
import socket
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, cast

import httpx
from fastapi import FastAPI
from ray import serve
from rich.console import Console

from hypic.config import ClusterConfig, EngineConfig, ServerConfig
from hypic.errors import HypicError
from hypic.router.api import build_api
from hypic.router.cluster import RayWorkers
from hypic.router.dispatcher import Dispatcher
from hypic.router.keys import ApiKeys
from hypic.router.observers import check_observers
from hypic.router.placement import Policy
from hypic.router.request_log import relayed
from hypic.router.service import ServedModel, Service, default_sampling
from hypic.tokenizer import PromptTokenizer
from hypic.workers.spawn import WorkerNames, connect

APPLICATION = "hypic"

HEAD = "node:__internal_head__"
"""What Ray's head node has alone. The router stays there, beside Serve's proxy: no other node's end takes it along."""

SPARE_REQUESTS = 64
"""So many more than the server takes reach it, to be refused, or to ask for its health; Serve has the rest wait."""

STOP_SECONDS = 30.0
"""How long an end waits for a start that is under way, and a start for one answer."""


def model_id(engine: EngineConfig) -> str:
    """The name under which a checkpoint is served: its directory's."""
    return engine.model.resolve().name


class HttpServer:
    """HTTP in front of spawned workers, for the length of a with block; needs Ray.

    Entering starts it beside whatever else is starting; `wait` gives the URL once requests are answered.
    """

    def __init__(self, names: WorkerNames, engine: EngineConfig, cluster: ClusterConfig, server: ServerConfig) -> None:
        self._names, self._engine, self._cluster, self._server = names, engine, cluster, server
        self._started: Future[None] = Future()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._start, name="serve", daemon=True)

    def __enter__(self) -> "HttpServer":
        """Raises HypicError where the port is taken."""
        if not self._cluster.address:
            check_port(self._server)
        self._thread.start()
        return self

    def __exit__(self, *fault: object) -> None:
        """Take the application off a cluster that lives on; one that was started here takes it along as it ends."""
        self._stopping.set()
        self._thread.join(timeout=STOP_SECONDS)  # Ray must not go away under a start that is under way
        if self._cluster.address:
            serve.delete(APPLICATION)

    def wait(self) -> str:
        """The URL, once requests are answered. Raises what kept the server from starting."""
        self._started.result()
        url = f"http://{self._server.host}:{self._server.port}"
        while httpx.get(f"{url}/health", timeout=STOP_SECONDS).status_code != 200:
            time.sleep(0.1)
        return url

    def _start(self) -> None:
        for name in ("ray.serve", "ray"):
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            serve.start(http_options={"host": self._server.host, "port": self._server.port})
            if self._stopping.is_set():
                return
            application = _application(self._names, self._engine, self._cluster, self._server)
            serve.run(application, name=APPLICATION, route_prefix="/")
            self._started.set_result(None)
        except Exception as error:  # `wait` raises it
            self._started.set_exception(error)


def serve_forever(engine: EngineConfig, cluster: ClusterConfig, server: ServerConfig) -> None:
    """Start everything, say where it listens, and serve until SIGINT or SIGTERM."""
    console, began = Console(stderr=True), time.perf_counter()
    if not cluster.address:
        check_port(server)
    if server.api_keys is not None:
        ApiKeys.load(server.api_keys)  # what is wrong with them is told before anything starts
    elif exposed(server.host):
        console.print(_warning(server.host), soft_wrap=True)
    check_observers(server, joins=bool(cluster.address))

    def progress(text: str) -> None:
        console.print(f"[dim]{time.perf_counter() - began:5.1f} s[/dim]  {text}", highlight=False)

    progress(f"starting Ray for {engine.model}")
    with (
        relayed(server.request_log) as log,
        RayWorkers(engine, cluster, progress) as ray,
        HttpServer(ray.workers.names, engine, cluster, replace(server, request_log=log)) as http,
    ):
        ray.wait()
        url = http.wait()
        console.print(_banner(url, model_id(engine)), highlight=False, soft_wrap=True)
        _until_told()
        progress("stopping")


def _until_told() -> None:
    """Until SIGINT or SIGTERM."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    stopped.wait()


def _application(
    names: WorkerNames, engine: EngineConfig, cluster: ClusterConfig, server: ServerConfig
) -> serve.Application:
    """The ingress: one replica, restarted by Serve if it dies, which then finds the workers by their names."""

    keys = None if server.api_keys is None else ApiKeys.load(server.api_keys)

    def build() -> FastAPI:
        scatter, combine = connect(names)
        tokenizer = PromptTokenizer.load(engine.model)
        created = int(time.time())

        def load(max_tokens: int) -> ServedModel:
            return ServedModel(
                model_id(engine), tokenizer, max_tokens, server.pic, created, *default_sampling(engine.model)
            )

        service = Service(Dispatcher(scatter, combine, cast(Policy, cluster.placement)), load, server, keys)
        return build_api(service, send_request_id=False)  # the proxy does

    ingress: Any = serve.deployment(
        serve.ingress(build)(),
        name="router",
        num_replicas=1,
        max_ongoing_requests=server.max_requests + SPARE_REQUESTS,
        ray_actor_options={"num_cpus": 0, "resources": {HEAD: 0.001}},
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=2.0,
        logging_config={"enable_access_log": False, "log_level": "ERROR"},
    )
    return cast(serve.Application, ingress.bind())


def check_port(server: ServerConfig) -> None:
    """Raises HypicError where the port is taken."""
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((server.host, server.port))
        except OSError as error:
            raise HypicError(
                f"cannot listen on {server.host}:{server.port}: {error.strerror}; choose another --port"
            ) from error


def exposed(host: str) -> bool:
    """Whether others than this machine can reach a server that listens there."""
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def _warning(host: str) -> str:
    return (
        f"[bold red]Listening on {host} without API keys:[/bold red] whoever reaches this machine can use the server, "
        "and shares its cache with everybody else. Give it --api-keys FILE, or put a gateway in front of it."
    )


def _banner(url: str, model: str) -> str:
    return (
        f"\n[bold]HYPIC serves {model} at {url}[/bold]   (API: {url}/docs, Ctrl-C stops)\n\n"
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{{\n"
        '    "documents": \\[{"text": "The locker set aside for Malik Thorne stays olive. Rain was forecast."}],\n'
        '    "messages": \\[{"role": "user", "content": "Which locker belongs to Malik Thorne?"}],\n'
        '    "max_tokens": 16, "hypic": {"explain": true}}\'\n'
    )
