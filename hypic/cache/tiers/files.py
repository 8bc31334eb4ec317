"""A tier in files: a local directory or an object store, by fsspec URL. Copies outlive the process.

One engine owns a directory. A file is written whole under another name and then renamed (an object store's put is
atomic by itself), so a crash leaves a file or none; what is damaged all the same is a miss with a reason.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import fsspec  # type: ignore[import-untyped]
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

from hypic.cache.tiers.image import Codec, Image, header_bytes, make_image, read_header, read_image
from hypic.cache.tiers.tier import Fault, Named, Payload, Record, TierError

_ENDING = ".hypic"
_FIRST_READ_BYTES = 65_536


@dataclass(frozen=True)
class _File:
    """One copy. path: in its file system. nbytes: of the file."""

    path: str
    key: bytes
    kind: str
    nbytes: int


class FileTier:
    """Copies of at most `budget_bytes` of files together."""

    def __init__(self, url: str, budget_bytes: int, codec: Codec, name: str = "disk") -> None:
        """Opens the directory, making it if need be. Files of earlier processes count, and wait in `found`; beyond the
        budget the oldest are removed. Raises OSError where the place cannot be used at all."""
        self.name, self.budget_bytes = name, budget_bytes
        self._fs, root = fsspec.core.url_to_fs(url)
        self._root = root.rstrip("/")
        self._codec = codec
        self._files: dict[Named, _File] = {}
        self._keys: set[bytes] = set()
        self._found: dict[bytes, _File] = {}
        self._faults: list[Fault] = []
        self._used_bytes = 0
        self._prepared: tuple[Payload, Image] | None = None
        self._count = count()
        self._open()

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def cost_bytes(self, cell: Named, payload: Payload) -> int:
        return self._image(cell, payload).nbytes

    def put(self, cell: Named, payload: Payload) -> None:
        assert cell not in self._files, "a second copy in one tier"
        image, record = self._image(cell, payload), cell.record()
        self._prepared = None
        if record.key in self._keys:
            raise TierError("busy", "a copy that is being given up still has that name")
        if (old := self._found.pop(record.key, None)) is not None:
            self._remove(old)  # an earlier process wrote the same thing, and nobody has claimed it
        assert self._used_bytes + image.nbytes <= self.budget_bytes, (self.name, self._used_bytes, image.nbytes)
        path = f"{self._root}/{record.key.hex()[:2]}/{record.kind}-{record.key.hex()}{_ENDING}"
        try:
            self._write(path, image)
        except OSError as error:
            raise TierError("write", repr(error)) from error
        self._files[cell] = _File(path, record.key, record.kind, image.nbytes)
        self._keys.add(record.key)
        self._used_bytes += image.nbytes

    def get(self, cell: Named) -> Payload:
        """Raises TierError: "missing", "read", or what `read_image` finds wrong."""
        file = self._files[cell]
        return read_image(self._read(file), file.key, self._codec)

    def drop(self, cell: Named) -> None:
        file = self._files.pop(cell)
        self._keys.discard(file.key)
        self._remove(file)

    def copies(self) -> int:
        return len(self._files)

    def found(self) -> Iterator[Record]:
        """Unclaimed copies of earlier processes. One whose header cannot be read is removed and not given."""
        for file in list(self._found.values()):
            try:
                header = self._header(file)
                if header["key"] != file.key or header["kind"] != file.kind:
                    raise TierError("foreign", "the name of the file is not its own")
            except TierError as error:
                self._remove(self._found.pop(file.key))
                self._faults.append(Fault(file.key, file.kind, error.reason))
                continue
            yield Record(file.key, file.kind, header["meta"])

    def faults(self) -> Sequence[Fault]:
        return self._faults

    def claim(self, record: Record, cell: Named) -> int:
        file = self._files[cell] = self._found.pop(record.key)
        self._keys.add(file.key)
        return file.nbytes

    def discard(self, record: Record) -> None:
        self._remove(self._found.pop(record.key))

    def _open(self) -> None:
        self._fs.makedirs(self._root, exist_ok=True)
        entries = self._fs.find(self._root, detail=True)
        order = sorted(entries.items(), key=lambda entry: (str(entry[1].get("mtime", "")), entry[0]))
        for path, info in order:
            if (file := _named(path, info["size"])) is not None and file.key not in self._found:
                self._found[file.key] = file
                self._used_bytes += file.nbytes
            elif ".writing-" in path:
                self._fs.rm_file(path)  # what a crash has left of a file that was never finished
        for file in list(self._found.values()):
            if self._used_bytes <= self.budget_bytes:
                break
            self._remove(self._found.pop(file.key))

    def _image(self, cell: Named, payload: Payload) -> Image:
        """Encoding is asked for twice, for the cost and for writing: do it once."""
        if self._prepared is None or self._prepared[0] is not payload:
            self._prepared = payload, make_image(cell.record(), payload, self._codec)
        return self._prepared[1]

    def _write(self, path: str, image: Image) -> None:
        parts = image.parts()
        if not isinstance(self._fs, LocalFileSystem):
            self._fs.pipe_file(path, b"".join(parts))
            return
        unfinished = f"{path}.writing-{os.getpid()}-{next(self._count)}"
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        try:
            with open(unfinished, "wb") as file:
                file.writelines(parts)
            os.replace(unfinished, path)
        except OSError:
            if os.path.exists(unfinished):
                os.remove(unfinished)
            raise

    def _read(self, file: _File, end: int | None = None) -> bytes:
        try:
            return bytes(self._fs.cat_file(file.path, end=end))
        except FileNotFoundError as error:
            raise TierError("missing", repr(error)) from error
        except OSError as error:
            raise TierError("read", repr(error)) from error

    def _header(self, file: _File) -> dict[str, Any]:
        start = self._read(file, _FIRST_READ_BYTES)
        if header_bytes(start) > len(start) == _FIRST_READ_BYTES:
            start = self._read(file, header_bytes(start))
        return read_header(start)[0]

    def _remove(self, file: _File) -> None:
        self._used_bytes -= file.nbytes
        try:
            self._fs.rm_file(file.path)
        except FileNotFoundError:
            return  # gone already: what was wanted
        except OSError:
            return  # it stays behind as a stranger, to be found or replaced by whoever opens the directory next


def _named(path: str, nbytes: int) -> _File | None:
    """The file of that path, if its name is one that this tier gives."""
    name = path.rpartition("/")[2]
    kind, _, rest = name.removesuffix(_ENDING).partition("-")
    try:
        key = bytes.fromhex(rest)
    except ValueError:
        return None
    return _File(path, key, kind, nbytes) if name.endswith(_ENDING) and len(key) == 32 else None
