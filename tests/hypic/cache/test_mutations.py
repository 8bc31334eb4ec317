"""Every fault that tests/mutations.py puts into the cache still has its place, and there are enough of them."""

from pathlib import Path

import pytest
from mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_fault_has_its_place(mutation: Mutation) -> None:
    text = (ROOT / mutation.path).read_text()
    assert text.count(mutation.old) == 1
    assert mutation.new != mutation.old
    compile(text.replace(mutation.old, mutation.new), str(mutation.path), "exec")


def test_names_tell_faults_apart() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 20
