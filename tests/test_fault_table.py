"""docs/faults.md names tests that are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "faults.md").read_text()


def test_every_test_of_the_table_is_there() -> None:
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^ *(?:async )?(?:def|class) (\w+)|^(\w+) = ", path.read_text(), re.MULTILINE)
    }
    known = {name for pair in defined for name in pair if name}
    named = set(re.findall(r"`([tT]est_?\w+)`", PAGE))
    assert len(named) > 50
    assert not named - known
