"""Rows of label and text as a block of plain text, which terminals and logs show alike."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

WIDTH = 116
UNIT = r"(?<=\d) (?=[kMGmµn]?[BJs]\b|%)"
TIE = "\N{NO-BREAK SPACE}"
"""A number and its unit stay together."""


def table(title: str, rows: Sequence[tuple[str, str]], width: int = WIDTH) -> str:
    """The title, and each row with its label in a column; long texts go on under their own start."""
    margin = max((len(label) for label, _ in rows), default=0) + 4
    lines = [title]
    for label, text in rows:
        lines += textwrap.wrap(
            re.sub(UNIT, TIE, text),
            width,
            initial_indent=f"  {label}".ljust(margin),
            subsequent_indent=" " * margin,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines).replace(TIE, " ")
