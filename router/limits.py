"""Whether a request is within the server's limits, before and while its text becomes tokens."""

from collections.abc import Sequence

import numpy as np

from hypic.config import ServerConfig
from hypic.errors import PromptTooLongError
from hypic.router.bodies.shared import DocumentBody
from hypic.router.faults import ParameterError
from hypic.router.service import ServedModel, Service
from hypic.segment import Document, TokenIds
from hypic.token_cache import TokenCache
from hypic.tokenizer import TextPart

CACHED_CHARS = 256
"""Texts shorter than that are encoded as quickly as they are found."""


def at_most(name: str, found: int, limit: int, what: str = "") -> None:
    """Raises ParameterError where a field has more than the server takes."""
    if found > limit:
        raise ParameterError(f"{name}: {what or 'at most'} {limit} are taken, found {found}", name)


def documents_of(bodies: Sequence[DocumentBody], config: ServerConfig) -> list[Document]:
    """Documents as the prompt takes them. Raises ParameterError for too many, or one too large."""
    at_most("documents", len(bodies), config.max_documents)
    documents = [Document(body.text, body.title, body.id) for body in bodies]
    for number, document in enumerate(documents):
        nbytes = len(document.section.encode())
        at_most(f"documents[{number}]", nbytes, config.max_document_bytes, "UTF-8 bytes up to")
    return documents


class Encoder:
    """Token ids of the sections of one prompt, those of long texts from the cache. Stops as soon as there are too many:
    what a prompt that cannot be served costs does not grow with its length."""

    def __init__(self, service: Service, model: ServedModel, salt: str) -> None:
        self._tokenizer, self._cache, self._salt = model.tokenizer, service.token_cache, salt
        self._most = min(model.max_tokens - 1, service.config.max_prompt_tokens or model.max_tokens)
        self._tokens, self._sections = 0, 0
        self._most_sections = service.config.max_segments

    def __call__(self, parts: list[TextPart]) -> TokenIds:
        """Raises PromptTooLongError or ParameterError where it becomes too long, or has too many sections."""
        self._sections += 1
        at_most("segments", self._sections, self._most_sections)
        cached = len(parts) == 1 and not parts[0].template and len(parts[0].text) >= CACHED_CHARS
        if not cached:
            return self._counted(self._encode(parts))
        key = TokenCache.key(self._salt, parts[0].text)
        found = self._cache.get(key)
        if found is not None:
            return self._counted(found)
        token_ids = self._counted(self._encode(parts))
        self._cache.put(key, token_ids)
        return token_ids

    def take(self, token_ids: Sequence[int]) -> None:
        """Count a prompt that is tokens already."""
        self._counted(np.asarray(token_ids, dtype=np.int32))

    def _encode(self, parts: list[TextPart]) -> TokenIds:
        ids: list[int] = []
        for piece in self._tokenizer.encode_pieces(parts):
            ids += piece
            self._check(self._tokens + len(ids))
        return np.asarray(ids, dtype=np.int32)

    def _counted(self, token_ids: TokenIds) -> TokenIds:
        self._tokens += len(token_ids)
        self._check(self._tokens)
        return token_ids

    def _check(self, tokens: int) -> None:
        if tokens > self._most:
            raise PromptTooLongError(
                f"the prompt has more than {self._most} tokens, which is the most that is read here with room for an "
                "answer: send fewer or shorter documents"
            )
