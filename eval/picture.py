"""What a command prints, as an SVG picture for the README: `python -m hypic.eval.picture docs/demo.svg hypic demo`."""

import io
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH_COLUMNS = 100


def picture(target: Path, command: list[str]) -> None:
    """Run a command, without its progress on stderr, and draw its output. Raises CalledProcessError if it fails."""
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH_COLUMNS)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    console = Console(record=True, width=WIDTH_COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(done.stdout.decode()))
    console.save_svg(str(target), title=" ".join(command))


if __name__ == "__main__":
    picture(Path(sys.argv[1]), sys.argv[2:])
