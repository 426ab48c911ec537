"""Layout of summaries as plain text, as wide as the terminal; and the progress of a solve in lines."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Sequence

from poetopt.formulations.scope import kind_words
from poetopt.search.solution import Listener, Progress
from poetopt.util.notes import all_shown, few
from poetopt.util.progress import Told, silent
from poetopt.util.units import show_amount, show_share


def progress_line(progress: Progress) -> str:
    """Return a line such as `12.3 s  overhead 11.7 mJ, bound 11.2 mJ, gap 4.3 %: search, ...`."""
    if not progress.scope:  # nothing is searched yet
        return f"{progress.elapsed_s:.1f} s  {progress.phase}"
    overhead, bound = progress.overhead_j, progress.overhead_bound_j
    text = "no schedule yet" if overhead is None else f"overhead {show_amount(overhead, progress.unit)}"
    if bound:
        text += f", bound {show_amount(bound, progress.unit)}"
        if overhead:
            text += f", gap {show_share(max(0.0, (overhead - bound) / overhead))}"
    return f"{progress.elapsed_s:.1f} s  {text}: {progress.phase}, {kind_words(progress.scope)}"


def listening(told: Told, listener: Listener | None) -> Listener | None:
    """Return a listener that reports a line at each new phase, and every few seconds if figures changed."""
    if told is silent:
        return listener
    last: Progress | None = None

    def hear(progress: Progress) -> None:
        nonlocal last
        if listener is not None:
            listener(progress)
        before = last
        if before is None or (before.phase, before.scope) != (progress.phase, progress.scope):
            new = True
        else:
            figures = (progress.overhead_j, progress.overhead_bound_j)
            new = figures != (before.overhead_j, before.overhead_bound_j)
            # at most a line every two seconds in the same phase
            new = new and progress.elapsed_s >= before.elapsed_s + 2.0
        if new:
            last = progress
            told(progress_line(progress))

    return hear


WIDTH = 116
"""Characters of a line without a terminal."""
LEAST = 40
"""Least width: names and figures would stand alone on narrower lines."""
_UNITS = "(?:[kMGmµn]?(?:B|J|s|W)|[KMG]iB|min|h|bytes|datasheet|derived|estimate|measured|paper)"
UNIT = rf"(?<=\d) (?={_UNITS}\b|%)|(?<=\d min) (?=\d+ s\b)|(?<=\d h) (?=\d+ min\b)"
TIE = "\N{NO-BREAK SPACE}"
"""Character that keeps a number and its unit on one line."""


def terminal_width() -> int:
    """Return the characters of a line: of the terminal or COLUMNS, else a width for logs."""
    return max(LEAST, shutil.get_terminal_size((WIDTH, 24)).columns)


Row = tuple[str, str]
"""Label and text of a row of a summary."""


class Exact(tuple[str, str]):
    """Row that a summary has with `--verbose` only: exact byte counts, and what few people ask for."""

    __slots__ = ()


def answer(fit: str = "", cost: str = "", proof: str = "", after: str = "", *, result: str = "") -> list[Row]:
    """Return the rows that every summary begins with; an empty text has no row.

    Parameters
    ----------
    fit
        What takes how much RAM of what budget.
    cost
        Energy and time, beside those of store-all.
    proof
        What is proven or checked.
    after
        The next command or call.
    result
        What came out, in place of a proof.
    """
    rows = (("fit", fit), ("cost", cost), ("proof", proof), ("result", result), ("next", after))
    return [row for row in rows if row[1]]


def visible(rows: Sequence[Row], verbose: bool | None = None) -> list[Row]:
    """Return the rows that are shown, each once; with `verbose` (default: what `--verbose` says) all of them."""
    verbose = all_shown() if verbose is None else verbose
    once = list(dict.fromkeys(rows))
    return once if verbose else few([row for row in once if not isinstance(row, Exact)])


def table(title: str, rows: Sequence[Row], width: int | None = None, *, verbose: bool | None = None) -> str:
    """Return the title, and each row with its label in a column; long texts go on under their own start.

    Of more than three notes the first two are shown, and the others are counted.

    Parameters
    ----------
    width
        In characters; by default the terminal's. Longer words stay whole.
    verbose
        Whether all rows are shown; by default what `--verbose` says.
    """
    width = terminal_width() if width is None else width
    rows = visible(rows, verbose)
    margin = max((len(label) for label, _ in rows), default=0) + 4
    lines = wrapped(title, width, "", "  ")
    for label, text in rows:
        lines += wrapped(text, width, f"  {label}".ljust(margin), " " * margin)
    return "\n".join(lines)


class Summary:
    """An answer that people read as a title above labelled rows: fit, cost, proof and what to do next come first."""

    def title(self) -> str:
        """Return what the answer is about, in a line."""
        raise NotImplementedError

    def rows(self, after: str | None = None) -> list[Row]:
        """Return the rows; `after` is what to do next."""
        raise NotImplementedError

    def text(self, *, verbose: bool | None = None, after: str | None = None) -> str:
        """Return the summary for people: the answer in four lines, then the details.

        Parameters
        ----------
        verbose
            Whether it has every figure; by default what `--verbose` says.
        after
            What to do next; by default the answer's own advice, if it has any.
        """
        return table(self.title(), self.rows(after), verbose=verbose)

    def __str__(self) -> str:
        return self.text()


def columns(rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Return rows of cells below each other; the last column is text, which continues under its own start."""
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


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of short cells, each column as wide as its widest cell."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  " + "  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def wrapped(text: str, width: int, first: str, rest: str) -> list[str]:
    """Return `text` in lines that begin with `first` and `rest`.

    Lines break between words, and never between a number and its unit.
    """
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
    """Return a text whose long lines are broken between words; continued lines are indented by two more."""
    lines = []
    for line in text.split("\n"):
        if len(line) <= width:
            lines.append(line)
            continue
        indent = line[: len(line) - len(line.lstrip())]
        lines += wrapped(line.strip(), width, indent, f"{indent}  ")
    return "\n".join(lines)
