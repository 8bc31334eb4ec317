"""Segments, the unit of reuse, and their keys: who may share what is decided here and nowhere else.

A key is 256 bits of BLAKE2b over a record whose every field is preceded by its length, so no two different
records have the same bytes ("a", "bc" never meets "ab", "c"). The fixtures in tests/hypic/fixtures/keys.json fix
the bytes: changing anything here means raising SCHEMA.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

SCHEMA = 2
"""Version of the key record and of what an entry holds."""

TokenIds = npt.NDArray[np.int32]
SegmentKind = Literal["leading", "document", "question"]


@dataclass(frozen=True, eq=False)
class Segment:
    """A section of a prompt, tokenised on its own.

    kind: "leading" opens the prompt (template and system text), "document" can be reused, "question" ends it and
    is always computed. token_ids: int32 `[n]`. label: what to call it in a plan.
    """

    kind: SegmentKind
    token_ids: TokenIds
    label: str = ""

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True)
class Namespace:
    """Everything but the tokens that must agree before anything cached may be shared.

    model, tokenizer: fingerprints. adapter: name and version, "" for none. dtype: of the weights and KV. salt:
    the tenant's. formats: how operators are stored, since what was composed of them depends on it too. The width of the
    seam and the anchor belong to segments alone, see `segment_key`.
    """

    model: str
    tokenizer: str
    dtype: str
    adapter: str = ""
    salt: str = ""
    formats: str = ""

    def _fields(self) -> list[bytes]:
        names = (self.model, self.tokenizer, self.adapter, self.dtype, self.salt, self.formats)
        return [name.encode() for name in names]


def segment_key(namespace: Namespace, token_ids: TokenIds, seam_tokens: int, anchor: bytes = b"") -> bytes:
    """Key of a context-free segment: 32 bytes.

    seam_tokens: w, since an entry covers the tokens after the seam. anchor: `tokens_digest` of the system prompt
    that the segment is built behind, or empty.
    """
    fields = [b"segment", *namespace._fields(), str(seam_tokens).encode(), anchor]
    return _framed([*fields, _token_bytes(token_ids)])


def prefix_keys(namespace: Namespace, segments: Sequence[Segment], provenance: str) -> list[bytes]:
    """Keys of everything remembered after each leading run of sections, 32 bytes each; hashed in one pass.

    A key depends on the tokens before its boundary, not on how they were cut into sections. provenance: "exact",
    or what composed it; an exact request never asks for a composed key.
    """
    digest = _frame([b"prefix", *namespace._fields(), provenance.encode()])
    keys, count = [], 0
    for segment in segments:
        digest.update(_token_bytes(segment.token_ids))
        count += len(segment)
        ended = digest.copy()
        ended.update(count.to_bytes(8, "little"))  # the token field's length, behind it so that one pass serves all
        keys.append(ended.digest())
    return keys


def tokens_digest(token_ids: TokenIds) -> bytes:
    """32 bytes that name a token sequence."""
    return _framed([b"tokens", _token_bytes(token_ids)])


def _token_bytes(token_ids: TokenIds) -> bytes:
    return np.ascontiguousarray(token_ids, dtype="<i4").tobytes()


def _framed(fields: Iterable[bytes]) -> bytes:
    return _frame(fields).digest()


def _frame(fields: Iterable[bytes]) -> "hashlib.blake2b":
    digest = hashlib.blake2b(digest_size=32)
    digest.update(SCHEMA.to_bytes(8, "little"))
    for value in fields:
        digest.update(len(value).to_bytes(8, "little"))
        digest.update(value)
    return digest


@dataclass(frozen=True)
class Document:
    """A document as a client gives it."""

    text: str
    title: str | None = None
    id: str | None = None

    @property
    def section(self) -> str:
        """The text of its section in a prompt."""
        return f"{self.title}\n{self.text}\n\n" if self.title else f"{self.text}\n\n"


@dataclass(frozen=True)
class Message:
    """A chat message: its role, and its content as one text or as parts.

    ends: which parts end a reusable section, each of which begins behind the one before. None where the client marked
    none: then each part of the last user message but its last is a section.
    """

    role: str
    content: str | tuple[str, ...]
    ends: frozenset[int] | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.content,) if isinstance(self.content, str) else self.content

    def runs(self, last: bool) -> list[tuple[str, bool]]:
        """The content in order, cut where sections end: each text, and whether it is reusable by itself. last: of the
        message to answer."""
        ends = self.ends if self.ends is not None else frozenset(range(len(self.parts) - 1 if last else 0))
        runs, begin = [], 0
        for end in sorted(ends):
            runs.append(("".join(self.parts[begin : end + 1]), True))
            begin = end + 1
        return [*runs, ("".join(self.parts[begin:]), False)]
