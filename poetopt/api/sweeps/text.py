"""A sweep as text for people, as CSV, and its live line."""

from __future__ import annotations

import csv
import io
from collections import Counter

from poetopt.api.sweeps.run import State, Swept
from poetopt.api.sweeps.store import COLUMNS
from poetopt.util.units import show_seconds


def progress_line(state: State) -> str:
    """`37 of 60 points, 2.1 a minute, 11 min left: poet, lenet on a72 at 40%`."""
    text = f"{state.done} of {state.total} points"
    if state.rate_per_s is not None and state.remaining_s is not None:
        rate = f"{state.rate_per_s:.3g} a second" if state.rate_per_s >= 1 else f"{60 * state.rate_per_s:.3g} a minute"
        text += f", {rate}, {show_seconds(state.remaining_s)} left"
    if state.retried:
        text += f", {state.retried} again"
    return f"{text}: {state.last}"


def sweep_lines(found: Swept) -> list[str]:
    """How the points ended, and where the rows are."""
    ended = Counter(str(row["status"]) for row in found.rows)
    states = ", ".join(f"{count} {status}" for status, count in sorted(ended.items()))
    lines = [
        f"{len(found.rows)} of {found.total} rows in {found.path}: {states or 'none'}",
        f"  {found.here} of them from this run, in {show_seconds(found.total_s)}"
        + (f"; {found.retried} points given out again, as their worker died" if found.retried else ""),
    ]
    limited = sum(bool(row["limited"]) for row in found.rows)
    if limited:
        lines.append(f"  {limited} ended by their time limit: another run may find better or worse plans for these")
    reasons = Counter(str(row["reason"]) for row in found.rows if row["status"] == "error")
    lines += [f"  error, {count} times: {reason}" for reason, count in reasons.items()]
    return lines


def sweep_csv(found: Swept) -> str:
    """All rows; what is not there is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in found.rows)
    return text.getvalue()
