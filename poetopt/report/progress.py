"""A solve on its way, in lines for people."""

from __future__ import annotations

from poetopt.formulations.scope import kind_words
from poetopt.search.solution import Listener, Progress
from poetopt.util.progress import Told, silent
from poetopt.util.units import show_amount, show_share

PAUSE_S = 2.0
"""Between two lines of the same phase."""


def progress_line(progress: Progress) -> str:
    """`12.3 s  search, up to 4 operators recomputed in a row: overhead 11.7 mJ, bound 11.2 mJ, gap 4.3 %`."""
    if not progress.scope:  # nothing is searched yet
        return f"{progress.elapsed_s:.1f} s  {progress.phase}"
    text = f"{progress.elapsed_s:.1f} s  {progress.phase}, {kind_words(progress.scope)}: "
    overhead, bound = progress.overhead_j, progress.overhead_bound_j
    text += "no schedule yet" if overhead is None else f"overhead {show_amount(overhead, progress.unit)}"
    if bound:
        text += f", bound {show_amount(bound, progress.unit)}"
        if overhead:
            text += f", gap {show_share(max(0.0, (overhead - bound) / overhead))}"
    return text


def listening(told: Told, listener: Listener | None) -> Listener | None:
    """A listener that tells a line at each new phase, and where figures are new every few seconds."""
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
            new = new and progress.elapsed_s >= before.elapsed_s + PAUSE_S
        if new:
            last = progress
            told(progress_line(progress))

    return hear
