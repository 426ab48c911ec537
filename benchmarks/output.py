"""Where the result of a benchmark goes: a file of `benchmarks/results`, or the standard output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def put(lines: Sequence[str], output: Path | None) -> None:
    """Write the lines to `output`, or print them where that is None."""
    text = "\n".join(lines) + "\n"
    if output is None:
        print(text, end="")
    else:
        output.write_text(text, encoding="utf-8")
