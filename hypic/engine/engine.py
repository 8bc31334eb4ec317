"""One model, its caches, and the loop that turns requests into tokens: no Ray, no HTTP, one thread.

Life of a request: `submit` plans it and leases what is cached; cold segments are built here (`build_here`) or brought
from elsewhere (`deliver`), each once however many requests wait for it; then one combine pass, in chunks where it is
long, yields the first token, and the request decodes in a continuous batch with the others. `step` does one round of
all that.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from hypic.arms import ARMS
from hypic.cache.entry import SegmentEntry
from hypic.cache.eviction import prefill_seconds
from hypic.cache.prefix_cache import PrefixCache
from hypic.cache.store import Store
from hypic.cache.tiers.stack import TierSettings, open_memory
from hypic.config import EngineConfig
from hypic.engine.admission import check_request, check_room, overdue, seconds_left
from hypic.engine.arrivals import Arrivals
from hypic.engine.builder import anchor_memory, build_segments, packed
from hypic.engine.composer import BuildTask, Composer, Reservation
from hypic.engine.decoding import decode
from hypic.engine.drift import DriftProbe, DriftReport
from hypic.engine.generation import Choice, Generation
from hypic.engine.inventory import Inventory
from hypic.engine.kernel_check import refuse_wrong_kernels
from hypic.engine.prefill import Prefill
from hypic.engine.scheduler import CachedShareFirst, Candidate, SchedulingPolicy
from hypic.errors import InvalidRequestError
from hypic.linear.operators import OperatorFormats
from hypic.models.fingerprint import model_fingerprint
from hypic.models.load import load_model
from hypic.plan import Plan
from hypic.request import GenerationRequest, TokenOutput, Usage
from hypic.segment import Namespace, Segment
from hypic.sequence import Sequence
from hypic.tokenizer import PromptTokenizer

_CHECKED_CELLS = 2000
"""Up to so many cached things all are looked at whenever the engine goes idle: some milliseconds."""


@dataclass
class _Pending:
    """A cold segment on its way: who waits for it, and whether this engine is to build it."""

    task: BuildTask
    waiting: list[Reservation] = field(default_factory=list)
    here: bool = False


class Engine:
    """Runs requests on one model."""

    def __init__(self, config: EngineConfig) -> None:
        """Raises ModelNotFoundError, UnsupportedModelError or CheckpointError where the model cannot be loaded, and
        WrongKernelError where kernels of its device are not to be trusted."""
        if config.threads:
            torch.set_num_threads(config.threads)
        self.config = config
        dtype = None if config.dtype == "auto" else getattr(torch, config.dtype)
        self.model = load_model(config.model, dtype, config.device)
        refuse_wrong_kernels(self.model.cache_spec())
        self.tokenizer = PromptTokenizer.load(config.model)
        form = self.model.family.form if self.model.family else None
        self.formats = OperatorFormats.for_form(form, config.transition_tolerance, config.state_format)
        self.namespace = Namespace(
            model=model_fingerprint(config.model),
            tokenizer=self.tokenizer.fingerprint,
            dtype=str(self.model.cache_spec().dtype).removeprefix("torch."),
            formats=self.formats.name,
        )
        below = TierSettings(
            host_bytes=config.host_cache_bytes,
            url=config.cache_url,
            disk_bytes=config.disk_cache_bytes,
            write="through" if config.cache_write == "through" else "back",
            policy=config.cache_policy,
        )
        self.memory = open_memory(config.cache_bytes, below, config.device)
        self.segments: Store[SegmentEntry] = Store(
            self.memory, seconds_of=lambda entry: prefill_seconds(0, len(entry.token_ids))
        )
        self.prefixes = PrefixCache(self.memory, prefill_seconds)
        self.segments.restore()
        self.prefixes.tree.restore()
        self.inventory = Inventory(self.segments)
        self.arrivals = Arrivals(self.segments)
        self.scheduling: SchedulingPolicy = CachedShareFirst()
        self.clock: Callable[[], float] = time.monotonic
        self.composer = Composer(
            self.model,
            self.namespace,
            self.segments,
            self.prefixes,
            config.min_segment_tokens,
            self.formats.lossless,
            self.arrivals,
        )
        self.drift = DriftProbe(self.model)
        self._pending: dict[bytes, _Pending] = {}
        self._waiting: dict[str, Reservation] = {}
        self._prefills: dict[str, Prefill] = {}  # begun, of requests that wait for their first token
        self._running: dict[str, Generation] = {}
        self._unpublished: list[tuple[Reservation, Sequence]] = []

    @property
    def max_tokens(self) -> int:
        """Longest text that the model reads, prompt and answer together."""
        return int(self.model.config.max_position_embeddings)

    @property
    def vocabulary(self) -> int:
        """How many token ids there are."""
        return int(self.model.config.vocab_size)

    @property
    def idle(self) -> bool:
        return not (self._pending or self._waiting or self._running or self._unpublished or self.arrivals)

    @property
    def ready(self) -> bool:
        """Whether `step` has anything to do now; if not, everything at hand waits for a delivery."""
        return (
            bool(self._running or self._unpublished)
            or self.arrivals.landed
            or any(pending.here for pending in self._pending.values())
            or any(reservation.ready for reservation in self._waiting.values())
            or self.seconds_left == 0.0
        )

    @property
    def seconds_left(self) -> float | None:
        """Until the first request is out of time, which `step` then drops; None where none has a limit."""
        return seconds_left(self._open(), self.clock())

    def plan(self, request: GenerationRequest) -> Plan:
        """What would be done for a request now, without doing it."""
        check_request(request, self.vocabulary, self.max_tokens)
        reservation = self.composer.reserve(request)
        reservation.release()
        return reservation.plan

    def submit(self, request: GenerationRequest) -> tuple[BuildTask, ...]:
        """Take a request. Returns the cold segments that nobody builds yet: the caller has each of them built here or
        delivers it. Raises InvalidRequestError, PromptTooLongError or, where too many wait, OverloadedError; nothing is
        kept of a refused request."""
        check_request(request, self.vocabulary, self.max_tokens)
        if request.request_id in self._waiting or request.request_id in self._running:
            raise InvalidRequestError(f"request id {request.request_id!r} is in use")
        now = self.clock()
        check_room([waiting.arrived_seconds for waiting in self._waiting.values()], self.config.max_waiting, now)
        self.drift.give_way()
        reservation = self.composer.reserve(request)
        reservation.arrived_seconds = now
        if request.session_id:
            reservation.ticket = self.memory.sessions.ticket(_session(request.session_id, request.salt))
        self.inventory.note(request.salt, reservation.rows)
        self._waiting[request.request_id] = reservation
        self.composer.fetch(reservation)
        return tuple(self._await(reservation, list(reservation.missing)))

    def _await(self, reservation: Reservation, indices: list[int]) -> list[BuildTask]:
        """Have a request wait for missing segments; returns those that nobody builds yet."""
        new: list[BuildTask] = []
        for index in indices:
            key = reservation.missing[index]
            if key not in self._pending:
                self._pending[key] = _Pending(self.composer.task(reservation, index))
                new.append(self._pending[key].task)
            elif reservation.rows[index].builds:
                reservation.rows[index] = replace(reservation.rows[index], reason="in_flight")
            if reservation not in self._pending[key].waiting:
                self._pending[key].waiting.append(reservation)
        return new

    def build_here(self, keys: Iterable[bytes]) -> None:
        """Have this engine build pending segments itself, in its next steps."""
        for key in keys:
            if key in self._pending:
                self._pending[key].here = True

    def deliver(self, entry: SegmentEntry) -> None:
        """Take in a built segment and hand it to whoever waits for it. A second copy of one already here is dropped."""
        self.segments.insert(entry)
        pending = self._pending.pop(entry.key, None)
        for reservation in pending.waiting if pending else ():
            same = [index for index, key in reservation.missing.items() if key == entry.key]
            ours = [index for index in same if entry.matches(reservation.request.segments[index].token_ids)]
            others = [index for index in same if index not in ours]  # of another text whose key collides
            self.build_here(task.key for task in self._await(reservation, others))
            for index in ours:
                del reservation.missing[index]
                lease = self.segments.lease(entry.key)
                if lease is not None:
                    reservation.leases.append(lease)
                reservation.entries[index] = entry  # without a lease where the store has no room for it

    @torch.inference_mode()
    def build(self, tasks: list[BuildTask]) -> list[SegmentEntry]:
        """Prefill cold segments. Keeps nothing: publishing is `deliver`'s."""
        anchors = {
            task.anchor.tobytes(): anchor_memory(self.model, self.prefixes, self.namespace, task.anchor, task.salt)
            for task in tasks
            if task.anchor is not None
        }
        batches = packed(tasks, self.config.max_build_tokens)
        return [entry for batch in batches for entry in build_segments(self.model, batch, self.formats, anchors)]

    @torch.inference_mode()
    def step(self) -> list[TokenOutput]:
        """One round: a batch of builds, one token for each running request, one chunk of a combine pass. A request that
        fails yields an output that says so and takes no other with it; an exception out of here is a fault of the
        engine's own books, after which no request may go on."""
        self._publish()
        self._take_in()
        outputs = [self._fail(late, error) for late, error in overdue(self._open(), self.clock())]
        outputs += self._build_pending()
        outputs += self._decode()
        if (ready := self._next()) is not None:
            outputs += self._combine(ready)
        if self.idle:
            self._check_idle()
        return outputs

    def probe_drift(self) -> DriftReport:
        """Measure a piece more of what reuse costs in quality, if there is nothing else to do."""
        if self.idle:
            self.drift.step()
        return self.drift.report()

    def abort(self, request_id: str) -> None:
        """Forget a request, in whatever phase it is. Unknown ids are ignored: it may just have finished."""
        self._running.pop(request_id, None)
        self._prefills.pop(request_id, None)
        reservation = self._waiting.pop(request_id, None)
        if reservation is None:
            return
        for key in set(reservation.missing.values()):
            pending = self._pending[key]
            pending.waiting = [other for other in pending.waiting if other is not reservation]
            if not pending.waiting:
                del self._pending[key]
        reservation.release()

    def open_session(self, session_id: str, salt: str = "") -> None:
        """Begin a session, again if it was closed. One that was never closed begins with its first request."""
        self.memory.sessions.open(_session(session_id, salt))

    def close_session(self, session_id: str, salt: str = "") -> bool:
        """Keep what a session referred to no longer than anything else; False where it was not open. Its requests go
        on, and those that come late do not open it again."""
        return self.memory.sessions.close(_session(session_id, salt))

    def generate(self, request: GenerationRequest) -> Iterator[TokenOutput]:
        """Run a request to its end in this process, building cold segments here. Raises GenerationError if it
        fails, DeadlineError if it is out of time."""
        tasks = self.submit(request)
        self.build_here(task.key for task in tasks)
        finished = False
        try:
            while not finished:
                if not self.ready:
                    self.arrivals.take_in(wait=True)
                for output in self.step():
                    if output.request_id == request.request_id:
                        if output.finish_reason == "error":
                            raise output.fault
                        finished = output.ends_request
                        yield output
        finally:
            self.abort(request.request_id)
            self._publish()

    def flush(self) -> int:
        """Drop everything cached that nothing running holds, in all tiers; returns how many segments went."""
        self.prefixes.clear()
        return self.segments.clear()

    def warm(self, segments: list[Segment], arm: str = "hypic", salt: str = "") -> list[BuildTask]:
        """Tasks for documents that have no entry yet, so that they can be built before anybody asks."""
        question = Segment("question", segments[0].token_ids[:1])
        request = GenerationRequest("warm", (*segments, question), ARMS[arm], salt=salt)
        reservation = self.composer.reserve(request)
        reservation.release()
        tasks = {key: self.composer.task(reservation, index) for index, key in reservation.missing.items()}
        return list(tasks.values())

    def check(self) -> None:
        """Integrity of the books; at idle nothing is leased."""
        self.memory.check([*self.segments.cells, *self.prefixes.tree.cells()])
        self.segments.check_counts(len(self.arrivals))
        self.prefixes.tree.check()
        if self.idle:
            assert not self.memory.leases, f"leases {self.memory.leases_of} are held though nothing runs"

    def _check_idle(self) -> None:
        """The whole check where it takes no time that the next request would notice, else that nothing is leased."""
        if sum(self.memory.counts.values()) <= _CHECKED_CELLS:
            self.check()
        assert not self.memory.leases, f"leases {self.memory.leases_of} are held though nothing runs"

    def _take_in(self) -> None:
        """Hand what was read from slow tiers to who waits for it; what could not be read is built here."""
        self.arrivals.take_in()
        for reservation in self._waiting.values():
            if reservation.arriving:
                missing = self.composer.arrive(reservation)
                self.build_here(task.key for task in self._await(reservation, missing))

    def _build_pending(self) -> list[TokenOutput]:
        """Build the next batch of the segments that are ours to build; one that fails alone fails who waits for it.
        While anybody decodes it is no larger than a chunk of a combine pass, unless one segment is."""
        here = [pending.task for pending in self._pending.values() if pending.here]
        if not here:
            return []
        most = self.config.max_build_tokens
        batch = packed(here, min(most, self.config.max_prefill_tokens) if self._running else most)[0]
        try:
            entries = self.build(batch)
        except Exception as error:  # of one segment, which must not take the others with it
            if len(batch) > 1:
                return [output for task in batch for output in self._build_alone(task)]
            waiting = self._pending[batch[0].key].waiting.copy()
            return [self._fail(reservation, error) for reservation in waiting]
        for entry in entries:
            self.deliver(entry)
        return []

    def _build_alone(self, task: BuildTask) -> list[TokenOutput]:
        if task.key not in self._pending:
            return []  # who waited for it has failed with another segment
        try:
            self.deliver(self.build([task])[0])
        except Exception as error:  # told to each request that waits for it
            return [self._fail(reservation, error) for reservation in self._pending[task.key].waiting.copy()]
        return []

    def _combine(self, reservation: Reservation) -> list[TokenOutput]:
        """The next chunk of a request's pass over its active tokens; after the last, the first token of each choice."""
        request = reservation.request
        if request.build_only:
            return [self._built(reservation)]
        try:
            prefill = self._prefills.get(request.request_id)
            if prefill is None:
                sequence = self.composer.sequence(reservation)
                prefill = Prefill(self.model, sequence, self.config.max_prefill_tokens)
                self._prefills[request.request_id] = prefill
            logits = prefill.step()
        except Exception as error:  # of this request: whatever was shared is immutable, so the others go on
            return [self._fail(reservation, error)]
        if logits is None:
            return []
        del self._waiting[request.request_id], self._prefills[request.request_id]
        plan = reservation.plan
        self.drift.keep(request, plan, reservation.prefix.exact, logits)
        ends = reservation.ends_seconds
        generation = Generation(request, prefill.sequence.cache, plan, Usage.of(plan), self.tokenizer, ends)
        reservation.release()
        self._running[request.request_id] = generation
        outputs = self._advance([(generation, choice, logits) for choice in generation.choices])
        if all(output.finish_reason != "error" for output in outputs):
            self._unpublished.append((reservation, prefill.sequence))
        seconds = time.perf_counter() - prefill.began
        return [replace(output, combine_seconds=seconds) for output in outputs]

    def _built(self, reservation: Reservation) -> TokenOutput:
        """The last word of a request that wants nothing but its segments built."""
        request, plan = reservation.request, reservation.plan
        del self._waiting[request.request_id]
        reservation.release()
        return TokenOutput(request.request_id, None, "", Usage.of(plan), plan, "stop", ends_request=True)

    def _open(self) -> list[Reservation | Generation]:
        """Requests in any phase."""
        return [*self._waiting.values(), *self._running.values()]

    def _fail(self, failed: Reservation | Generation, error: Exception) -> TokenOutput:
        """End a request, in whatever phase it is. Its last output."""
        usage = failed.usage if isinstance(failed, Generation) else Usage.of(failed.plan)
        self.abort(failed.request.request_id)
        return TokenOutput.failed(failed.request, usage, failed.plan, error)

    def _publish(self) -> None:
        """Remember the prefixes of finished combine passes, after their first tokens are out."""
        unpublished, self._unpublished = self._unpublished, []
        for reservation, sequence in unpublished:
            prefix = self.composer.publish(reservation, sequence)
            segments = [lease.cell for lease in reservation.leases]
            self.memory.sessions.register(reservation.ticket, [*segments, *prefix])

    def _next(self) -> Reservation | None:
        """Which of the waiting requests that have everything at hand is computed now. A pass that has begun has its
        place among those that run; between its chunks another may be chosen, by the same rule as before it began."""
        taken = sum(len(generation.open) for generation in self._running.values())
        taken += sum(self._waiting[name].request.choices for name in self._prefills)
        room = taken < self.config.max_running
        ready = {
            name: reservation
            for name, reservation in self._waiting.items()
            if reservation.ready and (room or name in self._prefills)
        }
        candidates = []
        for name, reservation in ready.items():
            begun, total = self._prefills.get(name), reservation.request.prompt_tokens
            left = begun.left_tokens if begun else reservation.plan.computed_tokens
            candidates.append(Candidate(name, total, total - left, reservation.arrived_seconds))
        chosen = self.scheduling.choose(candidates)
        return None if chosen is None else ready[chosen.request_id]

    def _decode(self) -> list[TokenOutput]:
        running = [(generation, choice) for generation in self._running.values() for choice in generation.open]
        if not running:
            return []
        outcomes = decode(self.model, [choice for _, choice in running])
        return self._advance([(*one, outcome) for one, outcome in zip(running, outcomes, strict=True)])

    def _advance(self, outcomes: list[tuple[Generation, Choice, Tensor | Exception]]) -> list[TokenOutput]:
        """The next token of each choice, by its logits; whose logits or text fail ends, the others go on."""
        outputs = []
        for generation, choice, outcome in outcomes:
            if self._running.get(generation.request.request_id) is not generation:
                continue  # another choice of it has failed
            try:
                if isinstance(outcome, Exception):
                    raise outcome
                output = generation.advance(choice, outcome)
            except Exception as error:  # of this request alone
                output = self._fail(generation, error)
            if output.ends_request:
                self._running.pop(generation.request.request_id, None)
            outputs.append(output)
        return outputs


def _session(session_id: str, salt: str) -> str:
    """Tenants may name their sessions alike; the length in front keeps the two names apart."""
    return f"{len(salt)}:{salt}{session_id}"
