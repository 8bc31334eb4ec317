"""Do the tests of the cache see faults? Puts hand-made faults into a copy of the code, one at a time, and runs them.

    python tests/mutations.py            all faults, a table, exit status 1 if any survives
    python tests/mutations.py window     those whose name has that word

The checkout is not touched. tests/hypic/cache/test_mutations.py checks that every fault still has its place.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
COPIED = ("hypic", "kernels", "workers", "router", "eval", "tests", "pyproject.toml")
TESTS = "faults faults_hybrid eviction sessions tiers store prefix_cache tree_machine"
TIMEOUT_SECONDS = 300


@dataclass(frozen=True)
class Mutation:
    """A fault: in one file of hypic/cache, the only place of `old` becomes `new`."""

    name: str
    file: str
    old: str
    new: str

    @property
    def path(self) -> Path:
        return Path("hypic/cache") / self.file


FAULTS = tomllib.loads((ROOT / "tests" / "mutations.toml").read_text())["fault"]
MUTATIONS = tuple(Mutation(**fault) for fault in FAULTS)


def main() -> int:
    words = sys.argv[1:]
    chosen = [m for m in MUTATIONS if not words or any(word in m.name for word in words)]
    survivors = 0
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "house"
        copy.mkdir()
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / name)
        assert run(copy)[0] == "", "the tests must be green before faults are put in"
        for number, mutation in enumerate(chosen, 1):
            started = time.monotonic()
            caught = caught_by(copy, mutation)
            survivors += not caught
            seconds = time.monotonic() - started
            print(
                f"{number:3}/{len(chosen)}  {caught or 'SURVIVED':60.60}  {seconds:4.0f} s  {mutation.name}", flush=True
            )
    print(f"{len(chosen) - survivors} of {len(chosen)} caught")
    return 1 if survivors else 0


def caught_by(copy: Path, mutation: Mutation) -> str:
    """The first test that fails with the fault in place, "" if none does."""
    path = copy / mutation.path
    text = path.read_text()
    assert text.count(mutation.old) == 1, f"{mutation.name}: its place has changed"
    path.write_text(text.replace(mutation.old, mutation.new))
    try:
        return run(copy)[0]
    finally:
        path.write_text(text)


def run(copy: Path) -> tuple[str, str]:
    """The first test that fails in the copy, and what pytest printed."""
    tests = [f"tests/hypic/cache/test_{name}.py" for name in TESTS.split()]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "--hypothesis-profile=no_shrink",
        *tests,
    ]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "(does not end)", ""
    failed = [line.split(" ")[1] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    assert failed or done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return (failed[0].removeprefix("tests/hypic/cache/") if failed else ""), done.stdout


if __name__ == "__main__":
    sys.exit(main())
