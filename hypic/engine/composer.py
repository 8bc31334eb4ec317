"""From a request to the sequence that the model runs: what is reused, what is computed, and where each piece stands.

Ownership: caches hand out leases on entries that never change; the composer copies keys and values into the
request's private memory and reads the operators in the one combine pass, after which the leases go back. Nothing that
runs shares memory with anything cached.

Every reused segment is [seam: computed][remainder: reused]. A segment at position 0 is treated alike: its seam runs
from the zero state that it was built from, so the result is the exact prefix, and is published as such. That holds for
entries that are stored without loss. Where they are not, the leading section, which all prompts behind it stand on, is
computed once and then found in the prefix tree, exactly; and a document at position 0 is composed like any other.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import torch

from hypic.arms import Arm
from hypic.cache.entry import SegmentEntry, StateEnd
from hypic.cache.memory import Cell
from hypic.cache.prefix_cache import EXACT, NO_MATCH, PrefixCache, PrefixMatch
from hypic.cache.sessions import Ticket
from hypic.cache.store import Lease, Store
from hypic.engine.arrivals import Arrivals
from hypic.kernels.chunk_scan.naive import Pair
from hypic.linear.operators import Operators
from hypic.models.contract import HybridModel
from hypic.plan import Plan, PlanRow, Reason, Source
from hypic.request import GenerationRequest
from hypic.segment import Namespace, Segment, TokenIds, segment_key, tokens_digest
from hypic.sequence import Active, Piece, Reused, Sequence, SequenceCache, Trace


@dataclass(frozen=True, eq=False)
class BuildTask:
    """A cold segment to prefill. anchor: the leading section it is built behind, or None."""

    key: bytes
    token_ids: TokenIds
    seam_tokens: int
    anchor: TokenIds | None = None
    salt: str = ""

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(eq=False)
class Reservation:
    """A planned request, and what it holds until its combine pass is over.

    entries: segment index -> entry to use. missing: segment index -> key of an entry that is still to come.
    arriving: the same of one that is being read from a slow tier.
    arrived_seconds: by the monotonic clock. ticket: of its session.
    """

    request: GenerationRequest
    namespace: Namespace
    rows: list[PlanRow]
    prefix: PrefixMatch = NO_MATCH
    entries: dict[int, SegmentEntry] = field(default_factory=dict)
    leases: list[Lease[SegmentEntry]] = field(default_factory=list)
    missing: dict[int, bytes] = field(default_factory=dict)
    arriving: dict[int, bytes] = field(default_factory=dict)
    entering: list[tuple[int, int]] = field(default_factory=list)  # (section, active piece that opens it)
    arrived_seconds: float = field(default_factory=time.monotonic)
    ticket: Ticket | None = None

    @property
    def ready(self) -> bool:
        """Whether everything that it waits for is at hand."""
        return not (self.missing or self.arriving)

    @property
    def ends_seconds(self) -> float:
        """When the request's time is over, by the clock of arrived_seconds."""
        return self.arrived_seconds + self.request.timeout_seconds

    @property
    def plan(self) -> Plan:
        return Plan(self.request.arm.name, tuple(self.rows))

    def release(self) -> None:
        """Give every lease back, once. What was composed stays valid: it is private."""
        self.prefix.release()
        for lease in self.leases:
            lease.release()
        self.entries = {}


@dataclass(frozen=True)
class _Placed:
    """Cached operators where their segment stands in a prompt. factor: what a strawman puts in the place of T: 1 keeps
    everything, 0 nothing."""

    model: HybridModel
    operators: Operators
    position: int
    factor: float | None

    def pair(self, layer: int) -> Pair:
        state = self.model.move_states(self.operators.states.layer(layer), self.position)
        if self.factor is not None:
            return torch.full(state.shape[:1], self.factor, device=state.device), state  # [H]
        return self.operators.transitions.layer(layer), state


class Composer:
    """Plans requests against the caches of one engine and builds their sequences."""

    def __init__(
        self,
        model: HybridModel,
        namespace: Namespace,
        segments: Store[SegmentEntry],
        prefixes: PrefixCache,
        min_segment_tokens: int,
        lossless: bool,
        arrivals: Arrivals,
    ) -> None:
        """lossless: whether entries hold operators as they were computed (`OperatorFormats.lossless`)."""
        self.model, self.spec = model, model.cache_spec()
        self.segments, self.prefixes, self.arrivals = segments, prefixes, arrivals
        self._namespace, self._min_segment_tokens, self.lossless = namespace, min_segment_tokens, lossless

    def reserve(self, request: GenerationRequest) -> Reservation:
        """Plan a request and lease what the plan promises. What only slow tiers have is noted in `arriving`; `fetch`
        begins to read it."""
        arm = request.arm
        reservation = Reservation(request, replace(self._namespace, salt=request.salt), [])
        if arm.reuse_prefix:
            provenances = (EXACT, arm.provenance) if arm.reuse_segments else (EXACT,)
            reservation.prefix = self.prefixes.match(reservation.namespace, request.segments, provenances)
        position = 0
        for index, segment in enumerate(request.segments):
            row = self._row(reservation, index, segment, position)
            reservation.rows.append(row)
            position += len(segment)
        return reservation

    def fetch(self, reservation: Reservation) -> None:
        """Begin to read what is to arrive from slow tiers."""
        for key in reservation.arriving.values():
            self.arrivals.begin(key)

    def arrive(self, reservation: Reservation) -> list[int]:
        """Take over what has been read; returns the segments of which nothing could be read, or placed: they are
        missing now."""
        over = [index for index, key in reservation.arriving.items() if not self.arrivals.flying(key)]
        for index in over:
            source, reason = self._held(reservation, index, reservation.arriving.pop(index))
            row = reservation.rows[index]
            tier = row.tier if source == "segment" else ""
            reservation.rows[index] = replace(row, source=source, reason=reason, tier=tier)
        return [index for index in over if index in reservation.missing]

    def task(self, reservation: Reservation, index: int) -> BuildTask:
        """How to build the missing entry of a segment."""
        request = reservation.request
        anchor = _anchor(request, index)
        return BuildTask(
            reservation.missing[index],
            request.segments[index].token_ids,
            request.arm.seam_tokens,
            None if anchor is None else anchor.token_ids,
            request.salt,
        )

    def sequence(self, reservation: Reservation) -> Sequence:
        """Private memory filled with what is reused, and the pieces to run. Needs every entry at hand."""
        assert not reservation.missing | reservation.arriving, (reservation.missing, reservation.arriving)
        request = reservation.request
        cache = SequenceCache.empty(self.spec, request.prompt_tokens + request.sampling.max_tokens)
        reservation.prefix.load(cache)
        pieces: list[Piece] = []
        active: list[TokenIds] = []
        active_pieces = 0
        for index in range(reservation.prefix.sections, len(request.segments)):
            segment, row = request.segments[index], reservation.rows[index]
            if row.computed_tokens:
                reservation.entering.append((index, active_pieces))
                active.append(segment.token_ids[: row.computed_tokens])
                pieces.append(Active(row.computed_tokens))
                active_pieces += 1
            if index in reservation.entries:
                self._place(cache, reservation.entries[index], row.position)
                pieces.append(self._reused(reservation.entries[index], request.arm, row.position))
        wanted = tuple(piece for section, piece in reservation.entering if self._worth_keeping(reservation, section))
        tokens = torch.cat([torch.from_numpy(ids) for ids in active]).long().to(self.spec.device)
        return Sequence(cache, tuple(pieces), tokens, Trace(want_entering=wanted))

    def publish(self, reservation: Reservation, sequence: Sequence) -> list[Cell]:
        """Remember the prefixes of a request whose pass succeeded: exact ones as such, composed ones as composed.
        Returns what of them the next request can reuse."""
        request, trace, cache = reservation.request, sequence.trace, sequence.cache
        if not request.arm.reuse_prefix:
            return []
        states: dict[str, dict[int, Callable[[], StateEnd]]] = {}
        deepest: dict[str, int] = {}
        for section, piece in reservation.entering:
            if section == 0 or piece not in trace.want_entering:
                continue
            rows = reservation.rows[1 if self.lossless else 0 : section]  # the first is exact where its entry is
            exact = all(row.source in ("prefix", "active") for row in rows)
            provenance = EXACT if exact and reservation.prefix.exact else request.arm.provenance
            end = reservation.rows[section].position
            if end:
                states.setdefault(provenance, {})[end] = partial(_state, trace, piece, cache)
                deepest[provenance] = section
        cells: list[Cell] = []
        for provenance, among in states.items():
            sections = request.segments[: deepest[provenance]]
            cells += self.prefixes.publish(reservation.namespace, sections, provenance, cache, among)
        return cells

    def _row(self, reservation: Reservation, index: int, segment: Segment, position: int) -> PlanRow:
        source, reason, key, computed, tier = self._source(reservation, index)
        seam = reservation.request.arm.seam_tokens if source in ("segment", "build") else 0
        return PlanRow(
            index=index,
            kind=segment.kind,
            label=segment.label,
            position=position,
            tokens=len(segment),
            source=source,
            reason=reason,
            seam_tokens=seam,
            computed_tokens=seam + computed,
            key=key.hex(),
            tier=tier,
        )

    def _source(self, reservation: Reservation, index: int) -> tuple[Source, Reason, bytes, int, str]:
        """Where a segment comes from, why it is not reused, its key, the tokens to compute if it is active, and the
        tier that has it."""
        request = reservation.request
        segment, arm = request.segments[index], request.arm
        if index < reservation.prefix.sections:
            return "prefix", "", b"", 0, reservation.prefix.tier
        if index == len(request.segments) - 1:
            return "active", "question", b"", len(segment), ""
        if not arm.reuse_segments:
            return "active", "arm", b"", len(segment), ""
        # A remainder shorter than the convolution's reach would leave what follows without its inputs.
        if len(segment) < max(self._min_segment_tokens, arm.seam_tokens + self.spec.conv_width):
            return "active", "too_short", b"", len(segment), ""
        if segment.kind == "leading" and not self.lossless:
            return "active", "leading", b"", len(segment), ""
        key = entry_key(request, reservation.namespace, index)
        tier = self.segments.tier(key)
        if self.arrivals.slow(key):
            reservation.arriving[index] = key
            return "segment", "", key, 0, tier
        source, reason = self._held(reservation, index, key)
        return source, reason, key, 0, tier if source == "segment" else ""

    def _held(self, reservation: Reservation, index: int, key: bytes) -> tuple[Source, Reason]:
        """Lease the entry of a segment, or note that it is missing, and why."""
        segment = reservation.request.segments[index]
        lease = self.segments.lease(key, accept=lambda entry: entry.matches(segment.token_ids))
        if lease is None:
            repeated = key in reservation.missing.values()
            reservation.missing[index] = key
            return "build", "repeated" if repeated else cast(Reason, self.segments.why_missing(key))
        reservation.leases.append(lease)
        reservation.entries[index] = lease.entry
        return "segment", ""

    def _place(self, cache: SequenceCache, entry: SegmentEntry, position: int) -> None:
        """Copy an entry's keys, rotated to where they stand now, and its values."""
        start = position + entry.seam_tokens
        place = slice(start, start + entry.remainder_tokens)
        positions = torch.arange(place.start, place.stop, device=self.spec.device)
        self.model.rotate_keys(entry.keys, positions, cache.keys[:, place])
        cache.values[:, place] = entry.values

    def _reused(self, entry: SegmentEntry, arm: Arm, position: int) -> Reused:
        """The entry as a piece whose segment begins at `position`."""
        factors = {"transition": None, "addition": 1.0, "last": 0.0}
        placed = _Placed(self.model, entry.operators, position, factors[arm.composition])
        return Reused(entry.remainder_tokens, placed, entry.conv_tails)

    def _worth_keeping(self, reservation: Reservation, section: int) -> bool:
        """Which boundaries are published: all of an exact request; of a composed one the end of the leading section,
        which is exact, and the last, where the next turn of the same conversation goes on."""
        request = reservation.request
        if section == 0 or not request.arm.reuse_prefix:
            return False
        return not request.arm.reuse_segments or section in (1, len(request.segments) - 1)


def entry_key(request: GenerationRequest, namespace: Namespace, index: int) -> bytes:
    """Key of the entry that a segment of a request would have. namespace: with the request's salt."""
    anchor = _anchor(request, index)
    digest = b"" if anchor is None else tokens_digest(anchor.token_ids)
    return segment_key(namespace, request.segments[index].token_ids, request.arm.seam_tokens, digest)


def _state(trace: Trace, piece: int, cache: SequenceCache) -> StateEnd:
    return StateEnd(*trace.entering(piece, cache))


def _anchor(request: GenerationRequest, index: int) -> Segment | None:
    anchored = request.arm.anchored and index > 0 and request.segments[0].kind == "leading"
    return request.segments[0] if anchored else None
