"""A line of JSON for every HTTP request: who, how long, what was reused and why not, by whom, and what went wrong.

Never in it: text of prompts, documents and answers, names that clients give (documents, sessions, salts), keys of
segments and of the API, and messages of errors, which may quote any of these.
"""

import json
import logging
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import QueueListener, WatchedFileHandler
from pathlib import Path
from queue import Full, Queue
from typing import Any

from hypic.errors import HypicError
from hypic.router.observation import Ended, Run

STDOUT = "-"

HELD_LINES = 10_000
"""Lines that may wait for a slow disk; beyond that they are dropped and counted."""

_TOKENS = ("prompt_tokens", "cached_tokens", "computed_tokens", "built_tokens", "completion_tokens")

_LAST_LINE = "\0\n"


class RequestLog:
    """Observes requests, and writes them down from a thread of its own. The file may be moved away at any time."""

    def __init__(self, path: str, dropped: Callable[[], None]) -> None:
        """dropped: called for each line that is lost. Raises HypicError where the file cannot be written."""
        self._dropped = dropped
        self._queue: Queue[Any] = Queue(HELD_LINES)
        try:
            handler = WatchedFileHandler(path, encoding="utf-8")
        except OSError as error:
            raise HypicError(f"cannot write the request log {path}: {error.strerror}; name another file") from error
        self._listener = QueueListener(self._queue, handler)
        self._handler = handler
        self._listener.start()

    def ended(self, ended: Ended) -> None:
        """See `Observer`."""
        try:
            self._queue.put_nowait(logging.makeLogRecord({"msg": json.dumps(line_of(ended))}))
        except Full:
            self._dropped()

    def close(self) -> None:
        """See `Observer`."""
        self._listener.stop()
        self._handler.close()


def line_of(ended: Ended) -> dict[str, Any]:
    """What is written of a request."""
    totals = {name: sum(getattr(run.usage, name) for run in ended.runs if run.usage) for name in _TOKENS}
    return {
        "time": datetime.fromtimestamp(ended.began_at, UTC).isoformat(timespec="milliseconds"),
        "request_id": ended.request_id,
        "tenant": ended.tenant,
        "method": ended.method,
        "route": ended.route,
        "status": ended.status,
        "outcome": ended.outcome,
        "error": ended.code,
        "seconds": _rounded(ended.total_seconds),
        **totals,
        "generations": [_generation(run) for run in ended.runs],
    }


def _generation(run: Run) -> dict[str, Any]:
    record, rows = run.record, run.record.plan.rows if run.record.plan else ()
    times = ("reserve_seconds", "dispatch_seconds", "transfer_seconds", "combine_seconds", "ttft_seconds")
    return {
        "id": run.request.request_id,
        "arm": run.request.arm.name,
        "warm_up": run.request.build_only,
        "finished": run.finishes,
        "error": run.error,
        "worker": record.combine_worker,
        "attempts": record.attempts,
        "segments": Counter(f"{row.source}/{row.reason or 'none'}" for row in rows),
        **{name: _rounded(getattr(record, name)) for name in times},
        "seconds": _rounded(run.total_seconds),
        "builds": [
            {
                "worker": build.worker,
                "tokens": build.tokens,
                "predicted_seconds": _rounded(build.predicted_seconds),
                "build_seconds": _rounded(build.build_seconds),
                "transfer_seconds": _rounded(build.transfer_seconds),
                "bytes": build.payload_bytes,
                "pulled": build.pulled,
                "fallback": build.cause,
            }
            for build in record.builds
        ],
    }


def _rounded(seconds: float) -> float:
    return round(seconds, 6)


@contextmanager
def relayed(path: str) -> Iterator[str]:
    """Where another process of this machine writes the log: the path itself, or for `-` a pipe to our stdout (what a
    process of Ray writes to its own goes to Ray's logs)."""
    if path != STDOUT:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="hypic-") as folder:
        pipe = Path(folder) / "request-log"
        os.mkfifo(pipe, 0o600)
        both_ends = os.open(pipe, os.O_RDWR)  # so that opening either end waits for nobody

        def relay() -> None:
            with open(both_ends, encoding="utf-8", errors="replace", closefd=False) as lines:
                for line in iter(lines.readline, _LAST_LINE):
                    sys.stdout.write(line)
                    sys.stdout.flush()

        thread = threading.Thread(target=relay, name="request-log", daemon=True)
        thread.start()
        try:
            yield str(pipe)
        finally:
            os.write(both_ends, _LAST_LINE.encode())
            thread.join(timeout=5)
            os.close(both_ends)
