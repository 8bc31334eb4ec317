"""The directory comes back to what the workers really hold, whatever is lost, repeated, late, or restarted."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hypic.cache.changes import Change, ChangeLog
from hypic.engine.engine import Engine
from hypic.router.directory import BLOCK_TOKENS, Directory
from hypic.workers.ports import Changes, Holdings

KEYS = [bytes([number]) for number in range(6)]
TIERS = ("device", "host", "")


class Worker:
    """The truth: what a worker holds, and what it says of it."""

    def __init__(self, name: str, epoch: int) -> None:
        self.name = name
        self.start(epoch)

    def start(self, epoch: int) -> None:
        self.held: dict[bytes, str] = {}
        self.log = ChangeLog(kept=4)
        self.log.epoch = epoch

    def change(self, key: bytes, tier: str) -> None:
        if self.held.get(key, "") == tier:
            return
        self.held[key] = tier
        if not tier:
            del self.held[key]
        self.log.note(Change(key, tier, 10))

    def changes(self, epoch: int, sequence: int) -> Changes:
        after, changes = self.log.since(sequence if epoch == self.log.epoch else self.log.sequence)
        return Changes(self.log.epoch, after, changes)

    def holdings(self) -> Holdings:
        held = tuple(Change(key, tier, 10) for key, tier in self.held.items())
        return Holdings(self.log.epoch, self.log.sequence, held)


def settle(directory: Directory, worker: Worker) -> None:
    """What the router does without end, here with nothing lost: few rounds must do."""
    for _ in range(3):
        if not directory.apply(worker.name, worker.changes(*directory.position(worker.name))):
            directory.replace(worker.name, worker.holdings())


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ("change", "change", "change", "restart", "ask", "stock", "deliver", "repeat", "drop", "forget")
        ),
        st.integers(0, 1),
        st.integers(0, 20),
    ),
    max_size=60,
)


@given(EVENTS)
@settings(deadline=None, max_examples=300)
def test_it_converges_to_the_truth(events: list[tuple[str, int, int]]) -> None:
    """Messages are on their way in any order; each may be dropped, or delivered again and again."""
    directory = Directory()
    workers = [Worker("combine-0", 1), Worker("combine-1", 1)]
    travelling: list[tuple[Worker, Changes | Holdings]] = []
    epoch = 1

    def deliver(worker: Worker, message: Changes | Holdings) -> None:
        if isinstance(message, Holdings):
            directory.replace(worker.name, message)
        elif not directory.apply(worker.name, message):
            travelling.append((worker, worker.holdings()))

    for event, which, number in events:
        worker, at = workers[which], number % max(1, len(travelling))
        if event == "change":
            worker.change(KEYS[number % len(KEYS)], TIERS[number % len(TIERS)])
        elif event == "restart":
            epoch += 1
            worker.start(epoch)
        elif event == "ask":
            travelling.append((worker, worker.changes(*directory.position(worker.name))))
        elif event == "stock":
            travelling.append((worker, worker.holdings()))
        elif event == "forget":
            directory.forget(worker.name)
        elif travelling and event in ("deliver", "repeat"):
            deliver(*travelling[at])
        if travelling and event in ("deliver", "drop"):
            del travelling[at]
    for worker in workers:
        settle(directory, worker)
        assert directory.held_by(worker.name) == worker.held
    for key in KEYS:
        assert set(directory.holders(key)) == {worker.name for worker in workers if key in worker.held}


def test_a_gap_and_a_restart_ask_for_everything() -> None:
    directory, worker = Directory(), Worker("combine-0", 1)
    assert not directory.apply("combine-0", worker.changes(0, 0))
    directory.replace("combine-0", worker.holdings())
    worker.change(KEYS[0], "device")
    assert directory.apply("combine-0", worker.changes(1, 0))
    for number in range(6):  # more than the log remembers
        worker.change(KEYS[number], "host")
    assert not directory.apply("combine-0", worker.changes(1, 1))
    assert directory.position("combine-0") == (1, worker.log.sequence)
    directory.replace("combine-0", worker.holdings())
    assert directory.held_by("combine-0") == worker.held
    worker.start(2)
    assert not directory.apply("combine-0", worker.changes(1, 7))
    assert directory.held_by("combine-0") == {}
    assert directory.holders(KEYS[0]) == {}


def test_documents_count_where_they_are_held_and_prompts_where_they_were_read(
    reference: Engine, make_request: Any
) -> None:
    directory, workers = Directory(), ["combine-0", "combine-1"]
    request = make_request("r", "a document of some length", "another one, somewhat longer than that")
    tasks = reference.warm(list(request.segments[1:-1]))
    held = tuple(Change(task.key, "device", 100) for task in tasks[1:])
    directory.replace("combine-1", Holdings(1, 1, held))
    assert directory.best(request, reference.namespace, workers) == {"combine-0": 0, "combine-1": len(tasks[1])}
    salted = replace(request, salt="another tenant")
    assert directory.best(salted, reference.namespace, workers) == {"combine-0": 0, "combine-1": 0}
    long = make_request("l", arm="prefix", question="word " * BLOCK_TOKENS)
    directory.read(long, "combine-0")
    beginning = make_request("b", arm="prefix", question="word " * (BLOCK_TOKENS // 5 * 3))
    found = directory.best(beginning, reference.namespace, workers)
    assert found["combine-1"] == 0
    assert 0 < found["combine-0"] <= beginning.prompt_tokens
    directory.forget("combine-0")
    assert directory.best(beginning, reference.namespace, workers)["combine-0"] == 0


def test_what_is_not_reused_is_not_looked_for(reference: Engine, make_request: Any) -> None:
    directory, request = Directory(), make_request("r", "a document of some length" * 30, arm="full")
    directory.read(request, "combine-0")
    assert directory.best(request, reference.namespace, ["combine-0"]) == {"combine-0": 0}
