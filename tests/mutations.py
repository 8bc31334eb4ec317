"""Do the tests of the cache see faults? Puts hand-made faults into copies of the code, one at a time, and runs them.

    python tests/mutations.py            all faults, a table, exit status 1 if any survives
    python tests/mutations.py window     those whose name has that word

The tests of the changed file come first, and all others only if those see nothing. Each core has a copy of its own; the
checkout is not touched. tests/hypic/cache/test_mutations.py checks that every fault still has its place.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parent.parent
COPIED = ("hypic", "kernels", "workers", "router", "eval", "tests", "pyproject.toml")
TREE = "faults faults_hybrid eviction"
FIRST = {
    "memory.py": "faults eviction faults_hybrid tiers store",
    "books.py": "eviction",
    "eviction.py": "eviction",
    "sessions.py": "sessions",
    "store.py": "store tiers faults_hybrid",
    "tiers/files.py": "tiers",
    "tiers/image.py": "tiers",
    "tiers/prefetch.py": "faults",
}
"""Tests of a file, in the order of how soon they see something; those of the tree where nothing is said."""
ALL = "faults faults_hybrid eviction sessions tiers store prefix_cache tree_machine"
TIMEOUT_SECONDS = 900


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
    copies: SimpleQueue[Path] = SimpleQueue()
    survivors = 0
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(os.cpu_count()) as pool:
        for number in range(os.cpu_count() or 1):
            copies.put(copy_to(Path(place) / str(number)))

        def judge(mutation: Mutation) -> tuple[str, float]:
            copy, started = copies.get(), time.monotonic()
            try:
                return caught_by(copy, mutation), time.monotonic() - started
            finally:
                copies.put(copy)

        for number, (mutation, (caught, seconds)) in enumerate(zip(chosen, pool.map(judge, chosen), strict=True), 1):
            survivors += not caught
            told = caught or "SURVIVED"
            print(f"{number:3}/{len(chosen)}  {told:60.60}  {seconds:4.0f} s  {mutation.name}", flush=True)
        failing = run(copies.get(), ALL.split())
        assert not failing, f"{failing} fails without any fault"
    print(f"{len(chosen) - survivors} of {len(chosen)} caught")
    return 1 if survivors else 0


def copy_to(place: Path) -> Path:
    """A copy of everything that the tests need."""
    place.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, place / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, place / name)
    return place


def caught_by(copy: Path, mutation: Mutation) -> str:
    """The first test that fails with the fault in place, "" if none does."""
    path = copy / mutation.path
    text = path.read_text()
    assert text.count(mutation.old) == 1, f"{mutation.name}: its place has changed"
    path.write_text(text.replace(mutation.old, mutation.new))
    first = FIRST.get(mutation.file, TREE).split()
    try:
        return run(copy, first) or run(copy, [name for name in ALL.split() if name not in first])
    finally:
        path.write_text(text)


def run(copy: Path, names: list[str]) -> str:
    """The first test that fails in the copy, "" if none does."""
    tests = [f"tests/hypic/cache/test_{name}.py" for name in names]
    options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=no_shrink"]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "(does not end)"
    failed = [line.split(" ")[1] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    assert failed or done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return failed[0].removeprefix("tests/hypic/cache/") if failed else ""


if __name__ == "__main__":
    sys.exit(main())
