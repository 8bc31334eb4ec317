"""The one thread that may touch an engine: it takes orders from anywhere, and steps while there is something to do."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from hypic.cache.books import TierUse
from hypic.config import EngineConfig
from hypic.engine.composer import BuildTask
from hypic.engine.engine import Engine
from hypic.errors import UnavailableError
from hypic.request import GenerationRequest, TokenOutput

ResultT = TypeVar("ResultT")

Listener = Callable[[TokenOutput | Exception], None]
"""Told each output of its request, or why there will be none. Runs in the engine's thread: it must only hand the
message on."""


@dataclass(frozen=True)
class _Order:
    """Something to do between two steps. Its result and its exceptions are the future's."""

    future: "Future[Any]"
    work: Callable[[Engine], Any]

    def carry_out(self, engine: Engine) -> None:
        if not self.future.set_running_or_notify_cancel():
            return  # whoever gave it has gone
        try:
            self.future.set_result(self.work(engine))
        except Exception as error:  # whatever it is belongs to the caller
            self.future.set_exception(error)

    def refuse(self, reason: str) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(UnavailableError(reason))


class EngineLoop:
    """An engine in a thread of its own. All methods may be called from any thread."""

    def __init__(self, config: EngineConfig) -> None:
        """Returns at once; `started` holds the engine once it is loaded, or why it could not be."""
        self.started: Future[Engine] = Future()
        self.last_error = ""
        self._ended = ""
        self._inbox: SimpleQueue[_Order | None] = SimpleQueue()
        self._listeners: dict[str, Listener] = {}
        # The engine is loaded in the thread that runs it: torch counts its threads for each calling thread.
        self._thread = threading.Thread(target=self._run, args=(config,), name="engine", daemon=True)
        self._thread.start()

    def call(self, work: Callable[[Engine], ResultT]) -> "Future[ResultT]":
        """Run something between two steps. Its exceptions are the future's; so is UnavailableError once the thread has
        ended."""
        order = _Order(Future(), work)
        self._inbox.put(order)
        if self._ended:  # it may have missed this one
            self._refuse_rest()
        return order.future

    def open(self, request: GenerationRequest, listener: Listener) -> "Future[tuple[BuildTask, ...]]":
        """Submit a request; its outputs go to `listener` until one ends it or an exception comes."""

        def submit(engine: Engine) -> tuple[BuildTask, ...]:
            tasks = engine.submit(request)
            self._listeners[request.request_id] = listener
            return tasks

        return self.call(submit)

    def abort(self, request_id: str) -> "Future[bool]":
        """Drop a request and its listener, without a last word. False if it was over already."""

        def drop(engine: Engine) -> bool:
            engine.abort(request_id)
            return self._listeners.pop(request_id, None) is not None

        return self.call(drop)

    def check_running(self) -> None:
        """Raises UnavailableError once the thread has ended."""
        if self._ended:
            raise UnavailableError(self._ended)

    def stop(self) -> None:
        """End the thread after the orders given so far."""
        self._inbox.put(None)
        self._thread.join(timeout=10)

    def _run(self, config: EngineConfig) -> None:
        try:
            engine = Engine(config)
        except Exception as error:  # told to whoever waits for the start
            self.started.set_exception(error)
            self._ended = f"the engine of this worker could not be loaded: {error}"
            self._refuse_rest()
            return
        engine.arrivals.on_landed = lambda: self._inbox.put(_Order(Future(), lambda engine: None))
        self.started.set_result(engine)
        try:
            while self._obey(engine):
                if engine.ready:
                    self._step(engine)
        finally:
            self._ended = "the engine of this worker has stopped"
            self._refuse_rest()
            for request_id in list(self._listeners):
                self._tell(engine, request_id, UnavailableError(self._ended))

    def _obey(self, engine: Engine) -> bool:
        """Carry out every order at hand, sleeping for one if there is nothing else to do before a request is out of
        time. False at the end."""
        try:
            order = self._inbox.get(block=not engine.ready, timeout=engine.seconds_left)
            while order is not None:
                order.carry_out(engine)
                order = self._inbox.get_nowait()
        except Empty:
            return True
        return False

    def _refuse_rest(self) -> None:
        """Answer what nobody will carry out, so that nobody waits for it."""
        while True:
            try:
                order = self._inbox.get_nowait()
            except Empty:
                return
            if order is not None:
                order.refuse(self._ended)

    def _step(self, engine: Engine) -> None:
        try:
            outputs = engine.step()
        except Exception as error:  # no request may go on from a state that nobody vouches for
            self.last_error = f"{type(error).__name__}: {error}"
            self._fail_all(engine, error)
            return
        for output in outputs:
            self._tell(engine, output.request_id, output)
            if output.ends_request:
                self._listeners.pop(output.request_id, None)

    def _fail_all(self, engine: Engine, error: Exception) -> None:
        for request_id in list(self._listeners):
            engine.abort(request_id)
            self._tell(engine, request_id, error)
            self._listeners.pop(request_id, None)

    def _tell(self, engine: Engine, request_id: str, message: TokenOutput | Exception) -> None:
        """Pass a message on. A request whose listener cannot hear any more is dropped; the others go on."""
        listener = self._listeners.get(request_id)
        if listener is None:
            return
        try:
            listener(message)
        except RuntimeError:  # its event loop is closed
            engine.abort(request_id)
            self._listeners.pop(request_id, None)


def store_stats(engine: Engine) -> tuple[dict[str, Any], dict[str, Any], tuple[TierUse, ...]]:
    """Counts of the segment store and of the prefix store, as plain values, and what each tier holds."""
    return asdict(engine.segments.stats), asdict(engine.prefixes.stats), tuple(engine.memory.use())
