"""Which combine worker has which segment, as far as this router has seen. A hint, never a promise: it may be stale, and
the worker's own plan decides what is reused."""

from collections import OrderedDict
from collections.abc import Iterable

from hypic.request import GenerationRequest
from hypic.segment import tokens_digest

REMEMBERED_SEGMENTS = 65_536


class Directory:
    """Holders of segments by content, bounded, least recently seen forgotten first."""

    def __init__(self) -> None:
        self._holders: OrderedDict[bytes, set[str]] = OrderedDict()

    def add(self, request: GenerationRequest, worker: str) -> None:
        """A worker has answered a request: it now holds the request's segments."""
        for digest in _digests(request):
            self._holders.setdefault(digest, set()).add(worker)
            self._holders.move_to_end(digest)
        while len(self._holders) > REMEMBERED_SEGMENTS:
            self._holders.popitem(last=False)

    def forget(self, worker: str) -> None:
        """A worker is gone, and what it held with it."""
        for holders in self._holders.values():
            holders.discard(worker)

    def best(self, request: GenerationRequest, workers: Iterable[str]) -> dict[str, int]:
        """Tokens of the request's documents that each worker is thought to hold."""
        held = dict.fromkeys(workers, 0)
        for digest, tokens in _digests(request).items():
            for worker in self._holders.get(digest, set()) & held.keys():
                held[worker] += tokens
        return held


def _digests(request: GenerationRequest) -> dict[bytes, int]:
    """A name for each document (who may share it, how it is reused, its tokens) and its length. Not of what opens the
    prompt: a template that all requests share would draw them all to one worker."""
    scope = f"{request.salt}\0{request.arm.provenance}\0".encode()
    documents = [segment for segment in request.segments if segment.kind == "document"]
    return {scope + tokens_digest(segment.token_ids): len(segment) for segment in documents}
