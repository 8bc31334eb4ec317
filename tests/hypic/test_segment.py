"""Keys: fixed bytes, no aliasing, and a miss whenever any one field differs."""

import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic.segment import Document, Namespace, Segment, TokenIds, prefix_keys, segment_key, tokens_digest

FIXTURES = Path(__file__).parent / "fixtures" / "keys.json"
NAMESPACE = Namespace(model="m" * 8, tokenizer="t", dtype="bfloat16", adapter="a", salt="tenant")
IDS = np.array([5, 1, 2, 3], dtype=np.int32)


def ids(*tokens: int) -> TokenIds:
    return np.array(tokens, dtype=np.int32)


def current() -> dict[str, str]:
    """The keys that the fixtures fix."""
    segments = (Segment("leading", ids(1, 2)), Segment("document", ids(3)))
    return {
        "segment": segment_key(NAMESPACE, IDS, 8).hex(),
        "segment_formats": segment_key(replace(NAMESPACE, formats="T 0.001 S int8"), IDS, 8).hex(),
        "segment_empty_namespace": segment_key(Namespace("", "", ""), ids(), 0).hex(),
        "segment_anchored": segment_key(NAMESPACE, IDS, 8, tokens_digest(ids(9))).hex(),
        "prefix_exact_1": prefix_keys(NAMESPACE, segments, "exact")[0].hex(),
        "prefix_exact_2": prefix_keys(NAMESPACE, segments, "exact")[1].hex(),
        "prefix_formats": prefix_keys(replace(NAMESPACE, formats="T 0.001 S int8"), segments, "exact")[1].hex(),
    }


def test_keys_are_the_checked_in_ones() -> None:
    """A failure here means that every cache out there is lost: raise SCHEMA, then write the fixtures anew."""
    assert current() == json.loads(FIXTURES.read_text())


@pytest.mark.parametrize("seed", ["0", "12345"])
def test_keys_do_not_depend_on_the_process(seed: str) -> None:
    code = (
        "import numpy as np; from hypic.segment import Namespace, segment_key;"
        "namespace = Namespace('m' * 8, 't', 'bfloat16', 'a', 'tenant');"
        "print(segment_key(namespace, np.array([5, 1, 2, 3], np.int32), 8).hex())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == json.loads(FIXTURES.read_text())["segment"]


@pytest.mark.parametrize("name", [field.name for field in fields(Namespace)])
def test_any_field_of_the_namespace_separates(name: str) -> None:
    other = replace(NAMESPACE, **{name: "other"})
    segments = (Segment("leading", IDS),)
    assert segment_key(other, IDS, 8) != segment_key(NAMESPACE, IDS, 8)
    assert prefix_keys(other, segments, "exact") != prefix_keys(NAMESPACE, segments, "exact")


def test_seam_anchor_tokens_and_kind_separate() -> None:
    keys = [
        segment_key(NAMESPACE, IDS, 8),
        segment_key(NAMESPACE, IDS, 7),
        segment_key(NAMESPACE, IDS[:-1], 8),
        segment_key(NAMESPACE, ids(5, 1, 2, 3, 0), 8),
        segment_key(NAMESPACE, IDS, 8, tokens_digest(IDS)),
        segment_key(NAMESPACE, IDS, 8, tokens_digest(IDS[:1])),
        prefix_keys(NAMESPACE, (Segment("leading", IDS),), "exact")[0],
        prefix_keys(NAMESPACE, (Segment("leading", IDS),), "composed")[0],
        tokens_digest(IDS),
    ]
    assert len(set(keys)) == len(keys)
    assert {len(key) for key in keys} == {32}


names = st.text(max_size=4)
records = st.builds(Namespace, names, names, names, names, names, names)


@given(records, records)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_no_two_namespaces_alias(one: Namespace, other: Namespace) -> None:
    """("a", "bc") never meets ("ab", "c"): equal keys mean equal records."""
    assert (segment_key(one, IDS, 8) == segment_key(other, IDS, 8)) == (one == other)


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), min_size=1, max_size=4), st.data())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_prefix_keys_depend_on_tokens_not_on_cuts(parts: list[list[int]], data: st.DataObject) -> None:
    segments = [Segment("document", ids(*part)) for part in parts]
    whole = [token for part in parts for token in part]
    cut = data.draw(st.integers(0, len(whole)))
    recut = [Segment("document", ids(*whole[:cut])), Segment("document", ids(*whole[cut:]))]
    assert prefix_keys(NAMESPACE, segments, "exact")[-1] == prefix_keys(NAMESPACE, recut, "exact")[-1]
    shorter = prefix_keys(NAMESPACE, [Segment("document", ids(*whole, 7))], "exact")[-1]
    assert shorter != prefix_keys(NAMESPACE, recut, "exact")[-1]


def test_document_section() -> None:
    assert Document("text", "Title").section == "Title\ntext\n\n"
    assert Document("text").section == "text\n\n"
    assert Document("").section == "\n\n"
