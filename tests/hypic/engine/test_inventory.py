"""What a tenant sees of the cache, and what it can delete: its own."""

from dataclasses import replace
from typing import Any

from hypic.cache.store import Store
from hypic.engine.inventory import Inventory
from hypic.plan import PlanRow


def build(bench: Any, *documents: int, salt: str = "") -> list[bytes]:
    """Keys of documents that are cached now."""
    request = replace(bench.request(bench.prompt(documents, leading=0), salt=salt), build_only=True)
    output = list(bench.engine.generate(request))[-1]
    return [bytes.fromhex(row.key) for row in output.plan.rows if row.kind == "document"]


def test_a_tenant_sees_its_own_page_by_page(bench: Any) -> None:
    keys = sorted(build(bench, 1, 2, 3, salt="a"))
    others = build(bench, 1, 4, salt="b")
    page = bench.engine.inventory.page("a", b"", 2)
    rest = bench.engine.inventory.page("a", page[-1].key, 2)
    assert [segment.key for segment in (*page, *rest)] == keys
    assert {segment.key for segment in bench.engine.inventory.page("b", b"", 9)} == set(others)
    assert bench.engine.inventory.page("", b"", 9) == []
    assert all(segment.tiers == ("device",) and segment.nbytes > 0 and segment.tokens >= 60 for segment in page)
    assert {segment.label for segment in (*page, *rest)} >= {"document 1", "document 2", "document 3"}


def test_deleting_takes_ones_own_and_no_others(bench: Any) -> None:
    key = build(bench, 1, salt="a")[-1]
    other = build(bench, 1, salt="b")[-1]
    inventory = bench.engine.inventory
    assert inventory.delete("b", key) == "missing"
    assert inventory.delete("a", b"0" * 32) == "missing"
    assert inventory.delete("a", key) == "deleted"
    assert inventory.delete("a", key) == "missing"
    assert other in bench.engine.segments
    assert key not in bench.engine.segments
    bench.engine.check()
    assert key in build(bench, 1, salt="a")


def test_what_is_in_use_stays(bench: Any) -> None:
    key = build(bench, 1)[-1]
    lease = bench.engine.segments.lease(key)
    assert bench.engine.inventory.delete("", key) == "in_use"
    lease.release()
    assert bench.engine.inventory.delete("", key) == "deleted"
    bench.engine.check()


def test_a_flush_leaves_nothing_and_answers_stay_right(bench: Any) -> None:
    before = bench.tokens(bench.request(bench.prompt([1, 2])))
    assert bench.engine.flush() == 2 + 1  # the leading section is one too
    assert len(bench.engine.segments) == len(bench.engine.prefixes) == 0
    assert bench.engine.inventory.page("", b"", 9) == []
    bench.engine.check()
    assert bench.tokens(bench.request(bench.prompt([1, 2]))) == before


def test_notes_are_bounded() -> None:
    inventory = Inventory(Store(0))
    for number in range(5000):
        key = number.to_bytes(32, "big").hex()
        inventory.note("a", [PlanRow(0, "document", "d", 0, 9, "build", "cold", 8, 8, key)])
        assert len(inventory._notes) <= 1025
