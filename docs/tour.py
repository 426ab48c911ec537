"""Print the README's tour anew: each `<!-- output: COMMAND -->` is followed by what the command prints.

.venv/bin/python docs/tour.py
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "README.md"
MARK = re.compile(r"<!-- output: poetopt (.*?) -->\n```\n.*?```", flags=re.DOTALL)


def main() -> None:
    """Run the commands in the order of the page, in one empty folder, and put what they print in its place."""
    with tempfile.TemporaryDirectory() as folder:

        def printed(match: re.Match[str]) -> str:
            command = (sys.executable, "-c", "from poetopt.cli import main; main()", *match[1].split())
            ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            text = (ended.stdout or ended.stderr).rstrip()
            return f"<!-- output: poetopt {match[1]} -->\n```\n$ poetopt {match[1]}\n{text}\n```"

        PAGE.write_text(MARK.sub(printed, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
