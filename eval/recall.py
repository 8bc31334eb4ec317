"""The synthetic recall task of the bundled model: small site logs full of facts, and questions on them.

A *person* ("Mara Velin") holds a *thing* of some kind ("locker", "desk", ...) named by a *value* word ("amber").
Facts are told in sentences spread over documents; one question asks for one value. Four probe sets tell the ways
of reusing a document apart:

- `plain`: each fact is told once;
- `overwritten`: the asked fact is told again with another value in a later document, and the latest counts;
- `border`: the asked fact's sentence is cut in two, its last 3 to 8 tokens open the next section;
- `two_hop`: one document gives the person a call sign, another tells the call sign's fact.

Everything is drawn from a seed. Names of people and sentence patterns of the `test` split never occur in `train`.
Turning text into tokens, and the model, are left to `hypic.eval.train_recall`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "test"]

PROBES = ("plain", "overwritten", "border", "two_hop")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST_NAMES = _words(
    "Mara Tobin Elsa Rowan Priya Anton Lucia Hugo Nadia Felix Irene Kofi Selma Dario Wanda Pavel Greta Malik "
    "Ingrid Oscar Leila Bruno Clara Yusuf Helga Marco Olive Stefan Tessa Viktor Amina Jonas Carla Emil Freya "
    "Goran Hanna Ivan Julia Karim Lotte Milo Nora Owen Petra Quinn Rosa Simon Thea Ulrich Vera Walter Ximena Yara "
    "Zoltan Agnes Boris Celia Dmitri Edith Farid Gloria Henrik Isolde"
)
LAST_NAMES = _words(
    "Velin Marsh Okoro Lindgren Costa Whitlock Novak Ferris Tanaka Holm Bauer Quist Romero Sandoz Keller Abbott "
    "Drake Moreau Pike Vance Castell Ibsen Larkin Grove Haddad Jensen Kovacs Lopez Mercer Nilsen Osborne Petrov "
    "Rahman Stroud Thorne Usman Varga Weiss Yates Zeller Ashby Brandt Calder Dunmore Egger Falk Gomez Hale Iqbal "
    "Jarvis Kemp Lund Mbeki Norris Olsen Pratt Reyes Sato Trent Ulvang Vogel Wren Young Zorn"
)
CALL_SIGNS = _words(
    "Falcon Badger Heron Lynx Otter Raven Tiger Viper Walrus Zebra Bison Cobra Eagle Gecko Ibis Jaguar Koala "
    "Lemur Moose Newt Osprey Panda Rhino Shark Toucan Weasel Beaver Condor Dolphin Ferret Gibbon Hornet"
)
VALUES = _words(
    "amber cedar coral flint maple pearl slate topaz willow cobalt copper ebony garnet indigo jasper linen marble "
    "olive quartz ruby saffron silver velvet walnut basil clover crimson denim elm fern ginger hazel ivory jade "
    "lemon mango nickel onyx pepper rose sable teal umber violet wheat zinc birch cherry bronze acorn barley "
    "canvas dune ember frost granite harbor island juniper kettle lantern meadow nectar orchid"
)
SENTENCES = 1  # facts and call signs told, for each document
MIN_WORDS = 26  # of a document of an example
KINDS = ("locker", "desk", "key", "channel", "bay", "tray")

# A sentence names the holder, then one word or sign {c}, then what is told: a fact is local to four tokens.
VERBS: dict[Split, tuple[str, ...]] = {
    "train": _words(
        "has holds got took uses chose said wants needs likes drew booked found claimed runs owns bought borrowed "
        "entered received opened named noted wrote shared shows won tried marked left lists prefers fetched asked "
        "brought sees reads watches knows made"
    ),
    "test": _words("keeps gets picked collected accepted selected"),
}
COPULAS: dict[Split, tuple[str, ...]] = {
    "train": _words("is was became means says : = becomes equals being now reads gives simply called"),
    "test": _words("remains stays"),
}
FACTS: dict[Split, tuple[tuple[str, dict[Split, tuple[str, ...]]], ...]] = {
    "train": (
        ("The {k} of {n} {c} {v}.", COPULAS),
        ("This week the {k} of {n} {c} {v}.", COPULAS),
        ("The {k} given to {n} {c} {v}.", COPULAS),
        ("According to the book the {k} for {n} {c} {v}.", COPULAS),
        ("In the {k} list {n} {c} {v}.", VERBS),
        ("As for the {k}, {n} {c} {v}.", VERBS),
        ("On the {k} sheet {n} {c} {v}.", VERBS),
        ("Asked about the {k}, {n} {c} {v}.", VERBS),
        ("Under {k} the book shows that {n} {c} {v}.", VERBS),
        ("At the {k} counter {n} {c} {v}.", VERBS),
        ("For a {k} we saw that {n} {c} {v}.", VERBS),
        ("It says under {k} that {n} {c} {v}.", VERBS),
    ),
    "test": (
        ("The {k} set aside for {n} {c} {v}.", COPULAS),
        ("The {k} that we keep by {n} {c} {v}.", COPULAS),
        ("On the {k} plan {n} {c} {v}.", VERBS),
        ("When it came to the {k}, {n} {c} {v}.", VERBS),
    ),
}
ALIASES: dict[Split, tuple[str, ...]] = {
    "train": (
        "On the radio {n} {c} {a}.",
        "The call sign of {n} {c} {a}.",
        "Over the air {n} {c} {a}.",
        "For the crew {n} {c} {a}.",
        "In this log {n} {c} {a}.",
        "As a call sign {n} {c} {a}.",
    ),
    "test": (
        "The radio name of {n} {c} {a}.",
        "To the night crew {n} {c} {a}.",
    ),
}
QUESTIONS: dict[Split, tuple[str, ...]] = {
    "train": (
        "Which {k} was given to {n}?",
        "What is the {k} of {n}?",
        "Name the {k} of {n}.",
        "Look up the {k} for {n}.",
        "Tell me the {k} of {n}.",
        "Do you know the {k} of {n}?",
        "Which {k} is held by {n}?",
        "I need the {k} for {n}.",
        "What {k} should we note for {n}?",
        "Can you say which {k} is used by {n}?",
        "What does the book say on the {k} of {n}?",
        "Give me the {k} that we have for {n}.",
    ),
    "test": (
        "Which {k} belongs to {n}?",
        "Please find the {k} kept by {n}.",
    ),
}
FILLERS = (
    "The corridor lights were checked before noon.",
    "Rain was forecast for the weekend.",
    "Two parcels arrived at the front office.",
    "The coffee machine is working again.",
    "Nothing else happened on this shift.",
    "The lift was out of order for an hour.",
    "All doors were closed at eight.",
    "A visitor asked for the way to the station.",
    "The heating will be serviced next month.",
    "Please keep the stairs free.",
    "The meeting was moved to the large hall.",
    "New gloves are on the shelf by the door.",
    "The alarm was tested and found in order.",
    "A window on the second floor does not close.",
    "The cleaning crew came early.",
    "Lunch was late because of a delivery.",
)
TITLES = (
    "Shift notes",
    "Site log",
    "Front office notes",
    "Daily report",
    "Notes from the night shift",
    "Store room list",
    "Handover sheet",
    "Weekly list",
    "Notes from the hall",
    "Report of the day",
    "Desk clerk notes",
    "Morning report",
)
SYSTEMS = (
    "You answer questions about the site log.",
    "Answer with one word.",
    "You are a helpful assistant. Use the documents to answer the question.",
)


@dataclass(frozen=True)
class RecallExample:
    """One prompt and its answer; `documents` is None where the sections are not whole documents."""

    sections: tuple[str, ...]
    documents: tuple[tuple[str | None, str], ...] | None
    question: str
    answer: str
    probe: str


@dataclass(frozen=True)
class Fact:
    """`holder` (a person or a call sign) has `kind` `value`, and questions call the holder `asked`.

    told_in: the documents that tell it, in order of telling; for a holder known by call sign the first is the
    document that gives the call sign.
    """

    holder: str
    kind: str
    value: str
    asked: str
    told_in: tuple[int, ...]

    @property
    def probe(self) -> str | None:
        """The probe that the fact can be asked for; None where one document tells too much of it."""
        if len(set(self.told_in)) < len(self.told_in):
            return None
        if self.holder != self.asked:
            return "two_hop" if len(self.told_in) == 2 else None
        return "plain" if len(self.told_in) == 1 else "overwritten"


@dataclass
class Scene:
    """Sentences by document, and what is true after the last of them."""

    documents: list[list[str]]
    titles: list[str | None]
    facts: list[Fact]

    def texts(self) -> list[tuple[str | None, str]]:
        return [(title, " ".join(sentences)) for title, sentences in zip(self.titles, self.documents, strict=True)]


def people(split: Split) -> list[str]:
    """All full names of a split; a fifth of the first-and-last-name pairs is held out for test."""
    held_out = split == "test"
    return [
        f"{first} {last}"
        for i, first in enumerate(FIRST_NAMES)
        for j, last in enumerate(LAST_NAMES)
        if ((i * 3 + j) % 5 == 0) == held_out
    ]


PEOPLE: dict[Split, list[str]] = {"train": people("train"), "test": people("test")}


def _strangers(rng: random.Random, split: Split, count: int) -> list[str]:
    """Names of different people, no two of whom share a first or a last name."""
    chosen: list[str] = []
    used: set[str] = set()
    for name in rng.sample(PEOPLE[split], len(PEOPLE[split])):
        first, last = name.split()
        if first not in used and last not in used:
            chosen.append(name)
            used |= {first, last}
        if len(chosen) == count:
            break
    return chosen


def section(document: tuple[str | None, str]) -> str:
    """The text that a document is in a prompt."""
    title, text = document
    return f"{title}\n{text}\n\n" if title else f"{text}\n\n"


def scene(
    rng: random.Random, split: Split, documents: int, sentences: int, restated: float = 0.0, aliased: float = 0.0
) -> Scene:
    """Tells `sentences` facts and call signs; shares of the holders have theirs restated, or told by call sign."""
    spoken: list[tuple[float, str]] = []
    names = _strangers(rng, split, sentences)
    signs = rng.sample(CALL_SIGNS, len(CALL_SIGNS))
    ledger: list[Fact] = []
    while len(spoken) < sentences:
        person, kind = names.pop(), rng.choice(KINDS)
        holder = person
        told_in: list[int] = []
        if sentences - len(spoken) >= 2 and signs and rng.random() < aliased:
            holder = signs.pop()
            when = rng.uniform(0, documents)
            spoken.append((when, rng.choice(ALIASES[split]).format(n=person, c=rng.choice(COPULAS[split]), a=holder)))
            told_in.append(int(when))
        values = rng.sample(VALUES, 2 if sentences - len(spoken) >= 2 and rng.random() < restated else 1)
        for when, value in zip(sorted(rng.uniform(0, documents) for _ in values), values, strict=True):
            pattern, links = rng.choice(FACTS[split])
            text = pattern.format(n=holder, k=kind, c=rng.choice(links[split]), v=value)
            spoken.append((when, text))
            told_in.append(int(when))
        ledger.append(Fact(holder, kind, values[-1], person, tuple(told_in)))
    pages: list[list[str]] = [[] for _ in range(documents)]
    for when, sentence in sorted(spoken):
        pages[int(when)].append(sentence)
    for page in pages:
        for _ in range(max(rng.randint(1, 2), 4 - len(page))):
            page.insert(rng.randint(0, len(page)), rng.choice(FILLERS))
    titles = [rng.choice(TITLES) if rng.random() < 0.5 else None for _ in range(documents)]
    return Scene(pages, titles, ledger)


def ask(rng: random.Random, split: Split, fact: Fact) -> str:
    """A question on a fact."""
    return rng.choice(QUESTIONS[split]).format(n=fact.asked, k=fact.kind)


def examples(probe: str, count: int, documents: int, seed: int, split: Split = "test") -> list[RecallExample]:
    """`count` examples of a probe with `documents` documents; the same for the same seed.

    Raises ValueError for an unknown probe, or where the probe needs more documents.
    """
    if probe not in PROBES:
        raise ValueError(f"unknown probe {probe!r}; expected one of {', '.join(PROBES)}")
    if documents < (1 if probe == "plain" else 2):
        raise ValueError(f"probe {probe!r} needs two documents or more, found {documents}")
    rng = random.Random(f"{probe}/{documents}/{seed}/{split}")
    restated = 0.5 if probe == "overwritten" else 0.0
    aliased = 0.5 if probe == "two_hop" else 0.0
    out: list[RecallExample] = []
    while len(out) < count:
        stage = scene(rng, split, documents, SENTENCES * documents, restated, aliased)
        kind = "plain" if probe == "border" else probe
        _lengthen(rng, stage)
        facts = [fact for fact in stage.facts if fact.probe == kind]
        if not facts:
            continue
        fact = rng.choice(facts)
        question = ask(rng, split, fact)
        if probe == "border":
            out.append(RecallExample(_cut_sections(rng, stage, fact), None, question, fact.value, probe))
        else:
            texts = tuple(stage.texts())
            out.append(RecallExample(tuple(map(section, texts)), texts, question, fact.value, probe))
    return out


def _lengthen(rng: random.Random, stage: Scene) -> None:
    """Fillers at the end of short documents: each is long enough to be worth caching."""
    for page in stage.documents:
        while sum(len(sentence.split()) for sentence in page) < MIN_WORDS:
            page.append(rng.choice(FILLERS))


def _cut_sections(rng: random.Random, stage: Scene, fact: Fact) -> tuple[str, ...]:
    """The sections of a scene, one fact's sentence moved astride the border of two of them."""
    page = stage.documents[fact.told_in[0]]
    sentence = next(s for s in page if f" {fact.asked}" in s and fact.value in s)
    page[page.index(sentence)] = rng.choice(FILLERS)
    words = sentence.split(" ")
    tail_words = rng.randint(2, min(6, len(words) - 1))
    head, tail = " ".join(words[:-tail_words]), " ".join(words[-tail_words:])
    first = rng.randrange(len(stage.documents) - 1)
    stage.titles[first + 1] = None
    sections = [section(text) for text in stage.texts()]
    sections[first] = f"{sections[first].rstrip()} {head}"
    sections[first + 1] = f" {tail} {sections[first + 1]}"
    return tuple(sections)
