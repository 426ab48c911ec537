"""Print the README's tour anew: each `<!-- output: COMMAND -->` is followed by what the command prints.

.venv/bin/python docs/tour.py            # writes the README
.venv/bin/python docs/tour.py --check    # only says where a command prints other things now; figures may differ
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "README.md"
MARK = re.compile(r"<!-- output: poetopt (.*?) -->\n```\n.*?```", flags=re.DOTALL)


ROW = re.compile(r"^ {2}([a-z][a-z -]*?) {2,}(.*)$", flags=re.MULTILINE)


def renewed(page: str) -> str:
    """The page with what the commands print now. They run in the order of the page, in one empty folder."""
    with tempfile.TemporaryDirectory() as folder:

        def printed(match: re.Match[str]) -> str:
            command = (sys.executable, "-c", "from poetopt.cli.app import main; main()", *match[1].split())
            ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            text = (ended.stdout or ended.stderr).rstrip()
            return f"<!-- output: poetopt {match[1]} -->\n```\n$ poetopt {match[1]}\n{text}\n```"

        return MARK.sub(printed, page)


def changes(page: str, now: str) -> list[str]:
    """The commands whose output has other rows, or other words in them, than the page has.

    Notes and the proof may differ: a busy machine comes less far. Words of up to three letters may be units.
    """
    found = []
    for was, is_now in zip(MARK.finditer(page), MARK.finditer(now), strict=True):
        rows, rows_now = (
            [
                (label, *sorted(set(re.findall(r"[A-Za-z-]{4,}", "" if label == "proof" else text))))
                for label, text in ROW.findall(match[0])
                if label != "note"
            ]
            for match in (was, is_now)
        )
        words, words_now = (re.sub(r"[\d,.]+", "0", match[0]) for match in (was, is_now))
        if rows != rows_now or (not rows and words != words_now):
            found.append(f"poetopt {was[1]}")
    return found


def main() -> None:
    """Write the page anew, or check it: exit code 1 where it shows what isn't printed any more."""
    page = PAGE.read_text(encoding="utf-8")
    now = renewed(page)
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(now, encoding="utf-8")
        return
    wrong = changes(page, now)
    if wrong:
        sys.exit("README.md shows what isn't printed any more; run docs/tour.py:\n" + "\n".join(wrong))


if __name__ == "__main__":
    main()
