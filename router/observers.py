"""Who observes requests beside the metrics: what the configuration asks for."""

import importlib
from pathlib import Path

from hypic.config import ServerConfig
from hypic.errors import HypicError
from hypic.router.metrics import Metrics
from hypic.router.observation import Observer
from hypic.router.request_log import STDOUT, RequestLog


def observers_for(config: ServerConfig, metrics: Metrics, version: str) -> list[Observer]:
    """The metrics first, then the log and the traces where they are wanted. Raises HypicError where the log cannot be
    written."""
    found: list[Observer] = [metrics]
    if config.request_log:
        found.append(RequestLog(config.request_log, metrics.dropped_lines.inc))
    if config.otlp_endpoint:
        from hypic.router.tracing import Tracing

        found.append(Tracing(config.otlp_endpoint, version))
    return found


def check_observers(config: ServerConfig, joins: bool) -> None:
    """Raises HypicError for what would fail later, out of sight. joins: whether the cluster is one that runs elsewhere
    too."""
    if config.otlp_endpoint:
        try:
            importlib.import_module("hypic.router.tracing")
        except ImportError as error:
            raise HypicError(f"--otlp-endpoint needs OpenTelemetry: pip install 'hypic[otel]' ({error})") from error
    if config.request_log == STDOUT and joins:
        raise HypicError(
            "--request-log - needs a cluster of this machine alone: name a file, written where the router is"
        )
    if config.request_log and not joins and config.request_log != STDOUT:
        try:
            Path(config.request_log).open("a").close()
        except OSError as error:
            told = f"cannot write the request log {config.request_log}: {error.strerror}; name another file"
            raise HypicError(told) from error
