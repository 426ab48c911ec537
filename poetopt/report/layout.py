"""Rows of label and text as a block of plain text, as wide as the terminal, or as logs show it."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Sequence

WIDTH = 116
"""In characters, where there is no terminal."""
LEAST = 40
"""Nothing is laid out narrower: names and figures would stand alone on their lines."""
_UNITS = "(?:[kMGmµn]?(?:B|J|s|W)|[KMG]iB|min|h|bytes|datasheet|derived|estimate|measured|paper)"
UNIT = rf"(?<=\d) (?={_UNITS}\b|%)|(?<=\d min) (?=\d+ s\b)|(?<=\d h) (?=\d+ min\b)"
TIE = "\N{NO-BREAK SPACE}"
"""A number and its unit stay together."""


def terminal_width() -> int:
    """Characters in a line: what COLUMNS says, or the terminal that is printed on; else a width for logs."""
    return max(LEAST, shutil.get_terminal_size((WIDTH, 24)).columns)


def table(title: str, rows: Sequence[tuple[str, str]], width: int | None = None) -> str:
    """The title, and each row with its label in a column; long texts go on under their own start.

    width
        In characters; by default the terminal's. Longer words stay whole.
    """
    width = terminal_width() if width is None else width
    margin = max((len(label) for label, _ in rows), default=0) + 4
    lines = wrapped(title, width, "", "  ")
    for label, text in rows:
        lines += wrapped(text, width, f"  {label}".ljust(margin), " " * margin)
    return "\n".join(lines)


def columns(rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Rows of cells below each other; the last column is text, and goes on under its own start."""
    width = terminal_width() if width is None else width
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        head = "".join(f"{cell:<{size}}  " for cell, size in zip(row, widths, strict=False))
        if width - len(head) >= LEAST // 2:
            lines += wrapped(row[-1], width, head, " " * len(head))
        else:
            lines += [*wrapped(head, width, "", "    "), *wrapped(row[-1], width, "    ", "    ")]
    return [line.rstrip() for line in lines]


def wrapped(text: str, width: int, first: str, rest: str) -> list[str]:
    """`text` in lines that begin with `first` and `rest`, broken between words, and never between number and unit."""
    lines = textwrap.wrap(
        re.sub(UNIT, TIE, text),
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(TIE, " ") for line in lines or [first.rstrip()]]


def fitted(text: str, width: int) -> str:
    """Lines that are too long are broken between words; what follows stands two further in."""
    lines = []
    for line in text.split("\n"):
        if len(line) <= width:
            lines.append(line)
            continue
        indent = line[: len(line) - len(line.lstrip())]
        lines += wrapped(line.strip(), width, indent, f"{indent}  ")
    return "\n".join(lines)
