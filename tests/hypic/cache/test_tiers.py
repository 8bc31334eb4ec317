"""Copies in files: the same after a restart or a clean miss with a reason, whatever happens to the directory."""

import os
import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tagged import Flat, StateTag, buffer, check_contents, offer

from hypic.cache.entry import KvSpan, SegmentEntry, StateEnd
from hypic.cache.memory import Memory
from hypic.cache.store import Store
from hypic.cache.tiers.codec import EngineCodec
from hypic.cache.tiers.files import FileTier
from hypic.cache.tiers.image import Buffer, make_image, read_image
from hypic.cache.tiers.ram import RamTier
from hypic.cache.tiers.tier import Payload, Record, TierError
from hypic.cache.tree.component import Shape
from hypic.cache.tree.tree import Tree
from hypic.linear.operators import OperatorFormats, Operators


class Pickled:
    """A codec for tags."""

    def encode(self, payload: Payload) -> tuple[bytes, Sequence[Buffer]]:
        return b"", [np.frombuffer(pickle.dumps(payload), np.uint8)]

    def decode(self, header: bytes, buffers: Sequence[Buffer]) -> Payload:
        payload: Payload = pickle.loads(buffers[0].tobytes())
        return payload


def entry(seed: int, tokens: int = 12) -> SegmentEntry:
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.rand(shape, generator=generator).to(dtype)

    return SegmentEntry(
        key=bytes([seed]) * 32,
        token_ids=np.arange(seed, seed + tokens, dtype=np.int32),
        seam_tokens=2,
        operators=Operators.of(rand(2, 1, 4, 4), rand(2, 1, 4, 4), OperatorFormats(1e-3, "int8")),
        conv_tails=rand(2, 3, 6, dtype=torch.bfloat16),
        keys=rand(1, tokens - 2, 1, 4, dtype=torch.bfloat16),
        values=rand(1, tokens - 2, 1, 4, dtype=torch.bfloat16),
    )


def assert_same(one: SegmentEntry | None, other: SegmentEntry) -> None:
    assert one is not None
    assert one.key == other.key
    assert one.seam_tokens == other.seam_tokens
    assert one.matches(other.token_ids)
    for name, tensor in one.tensors.items():
        assert torch.equal(tensor, other.tensors[name]), name


def store_on(path: Path | str, device: int = 10**6, disk: int = 10**6, write: str = "through") -> Store[SegmentEntry]:
    tiers = [RamTier("device", device), FileTier(str(path), disk, EngineCodec())]
    return Store(Memory(tiers, write=write))  # type: ignore[arg-type]


def files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


@pytest.mark.parametrize("url", ["{}", "file://{}", "memory://{}"])
def test_entries_are_found_again_after_a_restart(tmp_path: Path, url: str) -> None:
    place = url.format(tmp_path / "cache")
    first = store_on(place)
    for seed in (1, 2, 3):
        assert first.insert(entry(seed))
    second = store_on(place)
    assert second.restore() == len(second) == 3
    second.check()
    for seed in (1, 2, 3):
        with second.leased(bytes([seed]) * 32) as found:
            assert_same(found, entry(seed))
    assert second.memory.stats.loaded == 3
    second.check()


def test_written_back_when_it_leaves_the_tier_above(tmp_path: Path) -> None:
    store = store_on(tmp_path, device=entry(1).nbytes + 10, write="back")
    assert store.insert(entry(1))
    assert not files(tmp_path)
    assert store.insert(entry(2))
    assert len(files(tmp_path)) == 1
    with store.leased(entry(1).key) as found:
        assert_same(found, entry(1))
    store.check()
    assert store.why_missing(entry(2).key) == "evicted" or entry(2).key in store


@pytest.mark.parametrize("size", [0, 5, 11, 12, 40, 200, 500, -40, -1])
def test_a_truncated_file_is_a_miss(tmp_path: Path, size: int) -> None:
    first = store_on(tmp_path)
    first.insert(entry(1))
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[:size])
    second = store_on(tmp_path)
    assert second.restore() == 0 or second.lease(entry(1).key) is None
    assert second.why_missing(entry(1).key) == "truncated"
    second.memory.check(second.cells)
    assert not files(tmp_path), "what cannot be read is removed"
    assert second.insert(entry(1)), "and written anew"
    assert files(tmp_path)[0].read_bytes() == whole


@pytest.mark.parametrize("at", [0, 9, 20, 100, 250, -300, -1])
def test_a_damaged_byte_is_a_miss(tmp_path: Path, at: int) -> None:
    first = store_on(tmp_path)
    first.insert(entry(1))
    (file,) = files(tmp_path)
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    second = store_on(tmp_path)
    second.restore()
    file.write_bytes(data)
    assert second.lease(entry(1).key) is None
    assert set(second.stats.misses) <= {"damaged", "foreign", "truncated"}, second.stats.misses
    assert second.why_missing(entry(1).key) in second.stats.misses
    second.check()


def test_a_file_of_another_schema_or_key_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hypic.cache.tiers.image.SCHEMA", 999)
    store_on(tmp_path).insert(entry(1))
    monkeypatch.undo()
    store = store_on(tmp_path)
    assert store.restore() == 0
    assert store.why_missing(entry(1).key) == "schema"
    store.insert(entry(2))
    (file,) = files(tmp_path)
    file.rename(file.with_name(f"segment-{entry(3).key.hex()}.hypic"))
    again = store_on(tmp_path)
    assert again.restore() == 0
    assert again.why_missing(entry(3).key) == "foreign"
    assert not files(tmp_path)


def test_a_file_that_vanishes_is_a_miss(tmp_path: Path) -> None:
    store_on(tmp_path).insert(entry(1))
    store = store_on(tmp_path)
    assert store.restore() == 1
    files(tmp_path)[0].unlink()
    assert store.lease(entry(1).key) is None
    assert store.stats.misses == {"missing": 1}
    store.check()


def test_strangers_and_unfinished_files_do_no_harm(tmp_path: Path) -> None:
    store_on(tmp_path).insert(entry(1))
    (file,) = files(tmp_path)
    file.with_name(file.name + ".writing-1-0").write_bytes(b"half")
    (tmp_path / "README").write_text("not ours")
    (tmp_path / "segment-zz.hypic").write_text("not ours")
    store = store_on(tmp_path)
    assert store.restore() == 1
    assert len(files(tmp_path)) == 3, "the unfinished file went, strangers stay"


def test_a_write_that_fails_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_on(tmp_path)

    def fail(*args: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.replace", fail)
    assert store.insert(entry(1))
    assert not files(tmp_path)
    assert store.memory.stats.failed == {"write": 1}
    with store.leased(entry(1).key) as found:
        assert found is not None
    store.check()


def test_the_budget_of_files_is_kept_in_true_bytes(tmp_path: Path) -> None:
    size = store_on(tmp_path / "x").memory.tiers[1].cost_bytes(_cell(entry(1)), entry(1))
    store = store_on(tmp_path / "y", disk=2 * size + size // 2)
    for seed in range(1, 6):
        store.insert(entry(seed))
        store.check()
    on_disk = sum(file.stat().st_size for file in files(tmp_path / "y"))
    assert on_disk == store.memory.tiers[1].used_bytes == 2 * size
    smaller = store_on(tmp_path / "y", disk=size)
    assert smaller.restore() == 1
    assert len(files(tmp_path / "y")) == 1


def _cell(made: SegmentEntry) -> "RecordOnly":
    return RecordOnly(made.key)


class RecordOnly:
    def __init__(self, key: bytes) -> None:
        self.key = key

    def record(self) -> Record:
        return Record(self.key, "segment", {})


def test_prefix_payloads_survive_the_file() -> None:
    span = KvSpan(torch.rand(2, 5, 1, 4).bfloat16(), torch.rand(2, 5, 1, 3).bfloat16())
    state = StateEnd(torch.rand(2, 1, 4, 4), torch.rand(2, 3, 6).bfloat16())
    for payload in (span, state, *span.split(2)):
        image = make_image(Record(b"k" * 32, "full", {}), payload, EngineCodec())
        found = read_image(b"".join(image.parts()), b"k" * 32, EngineCodec())
        assert type(found) is type(payload)
        assert all(torch.equal(a, b) for a, b in zip(found.tensors, payload.tensors, strict=True))
        assert found.nbytes == payload.nbytes
    left, right = span.split(2)
    assert left.nbytes + right.nbytes == span.nbytes
    assert left.keys.untyped_storage().nbytes() == left.keys.nbytes, "a half owns its bytes"
    with pytest.raises(TierError, match="another key"):
        read_image(b"".join(image.parts()), b"x" * 32, EngineCodec())


def tree_on(path: Path, shape: Shape, device: int = 10**6, write: str = "through") -> Tree:
    tiers = [RamTier("device", device), FileTier(str(path), 10**7, Pickled())]
    return Tree(Memory(tiers, write=write), shape)  # type: ignore[arg-type]


SHAPES = [Shape(), Shape(state=True), Shape(window_tokens=3), Shape(window_tokens=3, state=True)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_prefixes_are_found_again_after_a_restart(tmp_path: Path, shape: Shape) -> None:
    """Cut, forked, in two namespaces: the same hits before and after, and every value that of its prefix."""
    prompts = [(1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 4, 9, 9, 9), (1, 2, 5, 5), (7, 7, 7, 7)]
    first = tree_on(tmp_path, shape)
    for namespace in (b"a", b"b"):
        for prompt in prompts[: 3 if namespace == b"a" else 4]:
            first.insert(namespace, buffer(prompt), offer(prompt, [3, len(prompt)]))
    second = tree_on(tmp_path, shape)
    assert second.restore() == len(list(first.cells()))
    second.check()
    for namespace in (b"a", b"b"):
        assert Flat(first, namespace).held == Flat(second, namespace).held
        for prompt in prompts:
            receipt = second.lookup(namespace, buffer(prompt))
            assert (receipt.tokens if receipt else 0) == first.match(namespace, buffer(prompt)).tokens
            if receipt:
                assert not shape.state or receipt.state() == StateTag(prompt[: receipt.tokens])
                receipt.release()
    second.memory.check(second.cells())
    _check_device_contents(second)


def _check_device_contents(tree: Tree) -> None:
    tree.memory.tiers[1:] = []
    check_contents(tree)


@pytest.mark.parametrize("victim", range(6))
def test_one_damaged_file_costs_what_stands_on_it_alone(tmp_path: Path, victim: int) -> None:
    shape = Shape(window_tokens=2, state=True)
    first, prompt, other = tree_on(tmp_path, shape), (1, 2, 3, 4, 5, 6), (1, 2, 8, 8)
    for tokens in (prompt, other):
        first.insert(b"a", buffer(tokens), offer(tokens, [2, 4, len(tokens)]))
    found = files(tmp_path)
    file = found[victim * len(found) // 6]
    file.write_bytes(file.read_bytes()[:-1])
    second = tree_on(tmp_path, shape)
    second.restore()
    for tokens in (prompt, other, prompt[:2], prompt[:4], prompt):
        receipt = second.lookup(b"a", buffer(tokens))
        if receipt:
            assert receipt.state() == StateTag(tokens[: receipt.tokens])
            receipt.release()
        second.check()
        second.memory.check(second.cells())
    assert not list(Flat(second, b"a").useless(second))
    hits = [second.match(b"a", buffer(tokens)).tokens for tokens in (prompt, other)]
    assert sum(second.memory.stats.failed.values()) == 1
    assert sum(hits) > 0 or "full" in file.name


def test_a_cut_prefix_is_cut_in_files_too(tmp_path: Path) -> None:
    tree = tree_on(tmp_path, Shape(), device=30, write="back")
    tree.insert(b"a", buffer((1, 2, 3, 4)), offer((1, 2, 3, 4)))
    tree.memory.evict(100)
    assert len(files(tmp_path)) == 1
    fork = (1, 2, 9)
    receipt = tree.lookup(b"a", buffer(fork))
    assert receipt is not None
    assert receipt.tokens == 2
    tree.insert(b"a", buffer(fork), offer(fork, start=receipt.tokens))
    receipt.release()
    tree.memory.evict(100)
    tree.check()
    again = tree_on(tmp_path, Shape())
    assert again.restore() == 3
    assert again.match(b"a", buffer((1, 2, 3, 4))).tokens == 4
    assert again.match(b"a", buffer(fork)).tokens == 3


def test_a_file_gets_its_name_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under its name nobody ever finds a part of it, whenever the process dies."""
    named: list[tuple[int, bool]] = []
    rename = os.replace

    def watched(source: str, target: str) -> None:
        named.append((os.path.getsize(source), os.path.exists(target)))
        rename(source, target)

    monkeypatch.setattr(os, "replace", watched)
    store_on(tmp_path).insert(entry(1))
    assert named == [(files(tmp_path)[0].stat().st_size, False)]


def test_writing_through_reaches_every_tier(tmp_path: Path) -> None:
    tiers = [RamTier("device", 10**6), RamTier("host", 10**6), FileTier(str(tmp_path), 10**6, EngineCodec())]
    store: Store[SegmentEntry] = Store(Memory(tiers, write="through"))  # type: ignore[arg-type]
    store.insert(entry(1))
    assert [use.entries for use in store.memory.use()] == [{"segment": 1}] * 3
    store.check()
