"""Which combine worker has which segment, in which tier, and which worker has lately read which prompt.

Segments are told by the workers themselves, as numbered changes: a gap in the numbers, or a new process (epoch), and
the worker is asked for all that it holds. So a router that starts anew, or misses something, comes back to the truth.
Even then this is a hint and never a promise: it may be stale, and who holds a segment confirms it with a lease.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np

from hypic.cache.changes import Change
from hypic.engine.composer import entry_key
from hypic.request import GenerationRequest
from hypic.segment import Namespace
from hypic.workers.ports import Changes, Holdings

BLOCK_TOKENS = 256
"""Prompts are remembered in blocks of so many tokens: shorter beginnings, as of a template, draw nobody anywhere."""

REMEMBERED_BLOCKS = 65_536


@dataclass
class _Known:
    """What a worker has said. sequence: of the last change taken in; while not whole, of the last one heard of."""

    epoch: int = 0
    sequence: int = 0
    whole: bool = False
    held: dict[bytes, Change] = field(default_factory=dict)


class Directory:
    """Holders of segments by key. Takes messages in any order, twice, or not at all."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._holders: dict[bytes, set[str]] = {}
        self._prompts: OrderedDict[bytes, set[str]] = OrderedDict()

    def position(self, worker: str) -> tuple[int, int]:
        """(epoch, sequence) after which changes of a worker are wanted; (0, 0) of one that has said nothing."""
        known = self._known.get(worker, _Known())
        return known.epoch, known.sequence

    def apply(self, worker: str, news: Changes) -> bool:
        """Take in what a worker says has changed. False where that leaves something unknown: it must then be asked for
        all that it holds. What is old is ignored."""
        known = self._known.setdefault(worker, _Known())
        end = news.after + len(news.changes)
        if news.epoch < known.epoch:
            return known.whole
        if news.epoch > known.epoch:
            self._drop(worker, known)
            self._known[worker] = _Known(news.epoch, end)
            return False
        if not known.whole or news.after > known.sequence:
            known.whole, known.sequence = False, max(end, known.sequence)
            return False
        for change in news.changes[known.sequence - news.after :]:
            self._change(worker, known, change)
        known.sequence = max(end, known.sequence)
        return True

    def replace(self, worker: str, holdings: Holdings) -> None:
        """Take in all that a worker holds, unless more recent things are known already."""
        known = self._known.get(worker, _Known())
        if holdings.epoch < known.epoch or (
            holdings.epoch == known.epoch and known.whole and holdings.sequence < known.sequence
        ):
            return
        self._drop(worker, known)
        fresh = self._known[worker] = _Known(holdings.epoch, holdings.sequence, whole=True)
        for change in holdings.held:
            self._change(worker, fresh, change)

    def forget(self, worker: str) -> None:
        """A worker is gone, and what it held with it."""
        known = self._known.get(worker, _Known())
        self._drop(worker, known)
        known.whole = False
        for workers in self._prompts.values():
            workers.discard(worker)

    def holders(self, key: bytes) -> dict[str, Change]:
        """Which workers are thought to have a segment."""
        return {worker: self._known[worker].held[key] for worker in self._holders.get(key, ())}

    def held_by(self, worker: str) -> dict[bytes, str]:
        """Tier of each segment that a worker is thought to have."""
        return {key: change.tier for key, change in self._known.get(worker, _Known()).held.items()}

    def read(self, request: GenerationRequest, worker: str) -> None:
        """A worker has answered a request: it is likely to keep the prompt as a prefix."""
        for block in _blocks(request):
            self._prompts.setdefault(block, set()).add(worker)
            self._prompts.move_to_end(block)
        while len(self._prompts) > REMEMBERED_BLOCKS:
            self._prompts.popitem(last=False)

    def best(self, request: GenerationRequest, namespace: Namespace, workers: Iterable[str]) -> dict[str, int]:
        """Tokens of a request's prompt that each worker is thought to have: as documents anywhere, or as a prefix,
        whichever is more. namespace: of the workers."""
        documents = dict.fromkeys(workers, 0)
        prefixes = documents.copy()
        for key, tokens in _documents(request, namespace).items():
            for worker in self._holders.get(key, set()) & documents.keys():
                documents[worker] += tokens
        for number, block in enumerate(_blocks(request)):
            for worker in self._prompts.get(block, set()) & documents.keys():
                prefixes[worker] = (number + 1) * BLOCK_TOKENS
        return {worker: max(documents[worker], prefixes[worker]) for worker in documents}

    def _change(self, worker: str, known: _Known, change: Change) -> None:
        if change.tier:
            known.held[change.key] = change
            self._holders.setdefault(change.key, set()).add(worker)
        elif known.held.pop(change.key, None):
            self._discard(worker, change.key)

    def _drop(self, worker: str, known: _Known) -> None:
        for key in known.held:
            self._discard(worker, key)
        known.held.clear()

    def _discard(self, worker: str, key: bytes) -> None:
        self._holders[key].discard(worker)
        if not self._holders[key]:
            del self._holders[key]


def _documents(request: GenerationRequest, namespace: Namespace) -> dict[bytes, int]:
    """Key and length of each document. Not of what opens the prompt: a template that all requests share would draw them
    all to one worker."""
    if not request.arm.reuse_segments:
        return {}
    own = replace(namespace, salt=request.salt)
    documents = [(index, segment) for index, segment in enumerate(request.segments) if segment.kind == "document"]
    return {entry_key(request, own, index): len(segment) for index, segment in documents}


def _blocks(request: GenerationRequest) -> list[bytes]:
    """A name for each leading run of whole blocks, with whoever may share it and how it is reused."""
    if not request.arm.reuse_prefix:
        return []
    provenance = request.arm.provenance if request.arm.reuse_segments else "exact"
    running = blake2b(f"{request.salt}\0{provenance}\0".encode(), digest_size=16)
    tokens = np.concatenate([segment.token_ids for segment in request.segments]).astype("<i4")
    names = []
    for end in range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS):
        running.update(tokens[end - BLOCK_TOKENS : end].tobytes())
        names.append(running.digest())
    return names
