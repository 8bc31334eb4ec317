"""What became of each HTTP request, told once to whoever counts, logs or traces.

`Watch` opens an `Observation` for a request and closes it when the last byte is out, whatever happened in between:
refusals, faults, streams and clients that went away included. Routes begin a `Run` in it for each generation. What is
told is an `Ended`; observers only read it, and one that fails harms no request.
"""

import logging
import time
from array import array
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Literal, Protocol

from fastapi import Depends, Request
from starlette.types import Scope

from hypic.errors import HypicError
from hypic.request import FinishReason, GenerationRequest, TokenOutput, Usage
from hypic.router.dispatcher import Dispatcher
from hypic.router.record import RequestRecord

Outcome = Literal["ok", "refused", "failed", "cancelled"]

CLIENT_GONE = 499
"""Status of a request whose client left before it was answered, as proxies log it."""

_KEY = "hypic.observation"

_log = logging.getLogger(__name__)


@dataclass
class Run:
    """One generation of a request. finishes: of each choice that has ended. gaps_seconds: between the tokens of each
    choice. error: a code, "" for none. over: whether anything can still come."""

    request: GenerationRequest
    record: RequestRecord = field(default_factory=RequestRecord)
    usage: Usage | None = None
    finishes: list[FinishReason] = field(default_factory=list)
    gaps_seconds: "array[float]" = field(default_factory=lambda: array("d"))
    total_seconds: float = 0.0
    error: str = ""
    over: bool = False
    _last: dict[int, float] = field(default_factory=dict)

    async def outputs(self, dispatcher: Dispatcher) -> AsyncGenerator[TokenOutput, None]:
        """As `Dispatcher.generate`."""
        began = time.perf_counter()
        try:
            async with aclosing(dispatcher.generate(self.request, self.record)) as outputs:
                async for output in outputs:
                    self._take(output)
                    yield output
        except Exception as error:
            self.error = error_code(error)
            raise
        finally:
            self.total_seconds, self.over = time.perf_counter() - began, True

    def _take(self, output: TokenOutput) -> None:
        now, self.usage = time.perf_counter(), output.usage
        if output.finish_reason is not None:
            self.finishes.append(output.finish_reason)
        if output.token_id is not None:
            if (before := self._last.get(output.choice)) is not None:
                self.gaps_seconds.append(now - before)
            self._last[output.choice] = now


@dataclass(frozen=True)
class Ended:
    """An HTTP request that is over. route: the template of its path, "" where there is none. status: as sent, or
    CLIENT_GONE. code: of the error, "" for none; a stream may have one and the status 200. began_at: Unix time. trace:
    the W3C trace context it came with."""

    request_id: str
    method: str
    route: str
    tenant: str
    status: int
    code: str
    outcome: Outcome
    began_at: float
    total_seconds: float
    trace: Mapping[str, str]
    runs: tuple[Run, ...]


class Observer(Protocol):
    """Whoever wants to know of requests."""

    def ended(self, ended: Ended) -> None:
        """Called once a request, in the event loop: it must return at once."""
        ...

    def close(self) -> None:
        """Write out what is held back."""
        ...


@dataclass
class Observation:
    """A request that is not over yet. complete: its answer is out as a whole."""

    request_id: str
    trace: Mapping[str, str] = field(default_factory=dict)
    began_at: float = field(default_factory=time.time)
    status: int = 0
    code: str = ""
    complete: bool = False
    runs: list[Run] = field(default_factory=list)
    _began: float = field(default_factory=time.perf_counter)

    def begin(self, request: GenerationRequest) -> Run:
        """A generation that belongs to this request."""
        run = Run(request)
        self.runs.append(run)
        return run

    def end(self, method: str, route: str, tenant: str) -> Ended:
        """What became of it."""
        return Ended(
            request_id=self.request_id,
            method=method,
            route=route,
            tenant=tenant,
            status=self.status or CLIENT_GONE,
            code=self.code,
            outcome=self._outcome(),
            began_at=self.began_at,
            total_seconds=time.perf_counter() - self._began,
            trace=self.trace,
            runs=tuple(self.runs),
        )

    def _outcome(self) -> Outcome:
        if 400 <= self.status < 500:
            return "refused"
        if self.code or self.status >= 500:
            return "failed"
        return "ok" if self.complete else "cancelled"


class Observations:
    """The requests that are open, and who is told of those that are not."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self.observers = list(observers)
        self._open: dict[int, Observation] = {}

    def add(self, observation: Observation) -> None:
        """A request has come in."""
        self._open[id(observation)] = observation

    def remove(self, observation: Observation, ended: Ended) -> None:
        """It is over: tell everybody."""
        del self._open[id(observation)]
        for observer in self.observers:
            try:
                observer.ended(ended)
            except Exception as error:  # of the observer, which is no concern of the request's
                _log.error("an observer of requests failed", exc_info=error)

    @property
    def runs(self) -> list[Run]:
        """Generations that go on."""
        return [run for observation in self._open.values() for run in observation.runs if not run.over]

    def close(self) -> None:
        """Have every observer write out what it holds back."""
        for observer in self.observers:
            observer.close()


def error_code(error: Exception) -> str:
    """What clients read as `code`."""
    return error.code if isinstance(error, HypicError) else "internal_error"


def observe(scope: Scope, observation: Observation) -> None:
    """Leave an observation where whatever serves the request finds it."""
    scope[_KEY] = observation


def observation_of(scope: Scope) -> Observation:
    """The observation of a request."""
    observation: Observation = scope[_KEY]
    return observation


def _observation(request: Request) -> Observation:
    return observation_of(request.scope)


ObservationDep = Annotated[Observation, Depends(_observation)]
