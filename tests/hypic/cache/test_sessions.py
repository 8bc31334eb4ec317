"""Sessions: references are a preference, closing drops them and nothing else, and late requests revive nothing."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tagged import Prefix, buffer, offer

from hypic.cache.memory import Memory
from hypic.cache.sessions import Sessions, Ticket
from hypic.cache.tiers.ram import RamTier
from hypic.cache.tree.component import Shape
from hypic.cache.tree.node import TreeCell
from hypic.cache.tree.tree import Tree


class Mark:
    """The least that can be referred to."""

    def __init__(self) -> None:
        self.sessions: set[str] = set()
        self.tiers = 1


class SessionMachine(RuleBasedStateMachine):
    """Sessions beside a model: open generations, what each refers to, the last closed ones."""

    def __init__(self) -> None:
        super().__init__()
        self.requeued: list[Mark] = []
        self.sessions: Sessions[Mark] = Sessions(self.requeued.append, max_tombstones=2, max_open=3)
        self.marks = [Mark() for _ in range(5)]
        self.tickets: list[Ticket] = []
        self.open_now: dict[str, Ticket] = {}
        self.refers: dict[str, set[int]] = {}
        self.closed: list[str] = []

    def forget(self, name: str) -> None:
        self.closed = [other for other in self.closed if other != name] + [name]
        del self.closed[:-2]
        self.open_now.pop(name, None)
        self.refers.pop(name, None)

    @rule(name=st.sampled_from("abcdef"), implicit=st.booleans())
    def open(self, name: str, implicit: bool) -> None:
        ticket = self.sessions.ticket(name) if implicit else self.sessions.open(name)
        if implicit and name in self.closed:
            assert ticket is None
            return
        assert ticket is not None
        self.closed = [other for other in self.closed if other != name]
        if name in self.open_now:
            assert ticket == self.open_now.pop(name)
        else:
            assert ticket not in self.tickets, "a generation of its own"
            self.refers[name] = set()
        self.open_now[name] = ticket
        self.tickets.append(ticket)
        if len(self.open_now) > 3:
            self.forget(next(iter(self.open_now)))

    @rule(name=st.sampled_from("abcdef"))
    def close(self, name: str) -> None:
        assert self.sessions.close(name) == (name in self.open_now)
        self.forget(name)

    @precondition(lambda self: self.tickets)
    @rule(data=st.data(), wanted=st.sets(st.integers(0, 4)))
    def register(self, data: st.DataObject, wanted: set[int]) -> None:
        ticket = data.draw(st.sampled_from(self.tickets))
        current = self.open_now.get(ticket.session_id) == ticket
        assert self.sessions.register(ticket, [self.marks[n] for n in wanted]) == current
        if current:
            self.refers[ticket.session_id] = set(wanted)

    @rule(number=st.integers(0, 4))
    def drop(self, number: int) -> None:
        self.sessions.dropped(self.marks[number])
        self.marks[number] = Mark()
        for wanted in self.refers.values():
            wanted.discard(number)

    @rule(cell=st.integers(0, 4), heir=st.integers(0, 4))
    def inherit(self, cell: int, heir: int) -> None:
        self.sessions.inherit(self.marks[heir], self.marks[cell])
        for wanted in self.refers.values():
            wanted |= {heir} if cell in wanted else set()

    @invariant()
    def both_sides_agree(self) -> None:
        self.sessions.check()
        assert len(self.sessions) == len(self.open_now) <= 3
        assert self.sessions.tombstones == len(self.closed) <= 2
        for number, mark in enumerate(self.marks):
            assert mark.sessions == {name for name, wanted in self.refers.items() if number in wanted}


TestSessions = SessionMachine.TestCase
TestSessions.settings = settings(max_examples=100, stateful_step_count=40, deadline=None, derandomize=True)


def filled(budget: int = 10**6, host: int = 0) -> Tree:
    tree = Tree(Memory([RamTier("device", budget), *([RamTier("host", host)] if host else [])]), Shape(state=True))
    return tree


def put(tree: Tree, tokens: Prefix, depths: list[int] | None = None) -> list[TreeCell]:
    grown = tree.insert(b"n", buffer(tokens), offer(tokens, depths or [len(tokens)]))
    assert grown.node is not None
    return tree.region(grown.node)


def hits(tree: Tree, *prompts: Prefix) -> list[int]:
    return [tree.match(b"n", buffer(prompt)).tokens for prompt in prompts]


A, B, C = (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)


def test_unreferenced_first_referenced_last_none_pinned() -> None:
    tree = filled()
    sessions = tree.memory.sessions
    assert sessions.register(sessions.ticket("s"), put(tree, A))
    put(tree, B)
    put(tree, C)
    remaining = []
    while list(tree.cells()):
        tree.memory.evict_one(0)
        remaining.append(hits(tree, A, B, C))
    assert remaining[-1] == [0, 0, 0], "a reference is no pin"
    assert [0, 4, 4] not in remaining
    assert [4, 0, 0] in remaining


def test_closing_drops_the_preference_and_nothing_else() -> None:
    tree = filled()
    sessions = tree.memory.sessions
    sessions.register(sessions.ticket("s"), put(tree, A))
    put(tree, B)
    assert sessions.close("s")
    assert hits(tree, A, B) == [4, 4]
    tree.memory.evict(1)
    assert hits(tree, A, B) == [0, 4], "by age alone now"


def test_a_late_request_revives_nothing() -> None:
    tree = filled()
    sessions = tree.memory.sessions
    late = sessions.ticket("s")
    sessions.close("s")
    assert not sessions.register(late, put(tree, A))
    assert sessions.ticket("s") is None
    again = sessions.open("s")
    assert not sessions.register(late, put(tree, A)), "the generation of the first opening"
    assert sessions.register(again, put(tree, A))


def test_the_next_turn_replaces_the_last_one() -> None:
    tree = filled()
    sessions = tree.memory.sessions
    ticket = sessions.ticket("s")
    first = put(tree, A)
    sessions.register(ticket, first)
    sessions.register(ticket, put(tree, (*A, 5, 5)))
    assert not any(cell.sessions for cell in first)
    put(tree, B)
    while hits(tree, B) == [4]:
        tree.memory.evict_one(0)
    assert hits(tree, (*A, 5, 5)) == [6]


def test_what_is_left_of_a_region_is_still_referred_to() -> None:
    """The deepest part goes first, and its references pass to what the next request would then reuse."""
    tree = filled()
    sessions = tree.memory.sessions
    sessions.register(sessions.ticket("s"), put(tree, (*A, 5, 5), [4, 6]))
    tree.memory.evict(1, kind="full")
    assert hits(tree, (*A, 5, 5)) == [4]
    full = [cell for cell in tree.cells() if cell.kind == "full"]
    assert [cell.sessions for cell in full] == [{"s"}]


def test_references_hold_on_every_tier() -> None:
    """What a session refers to leaves the last tier after what nobody refers to, though it went down first."""
    tree = filled(budget=60, host=60)
    sessions = tree.memory.sessions
    sessions.register(sessions.ticket("s"), put(tree, A))
    tree.memory.evict(1000, 0)
    for number in range(10, 14):
        put(tree, (number,) * 4)
    tree.memory.evict(1000, 0)
    assert hits(tree, A) == [4]
    sessions.check()
    tree.memory.check(tree.cells())
