"""Into how many parts a batch was cut to see which takes the least energy, and what each number came to."""

from __future__ import annotations

from dataclasses import dataclass

from poetopt.util.units import show_bytes, show_joules, show_seconds


@dataclass(frozen=True, kw_only=True)
class PartsTried:
    """What is known of one number of parts.

    parts
        How many.
    energy_j, energy_bound_j, time_s, total_ram_bytes
        Of a step by the best schedule found, and what none goes below; None where none was found.
    why
        Why there is none, or why none was looked for; "" beside a schedule.
    """

    parts: int
    energy_j: float | None = None
    energy_bound_j: float | None = None
    time_s: float | None = None
    total_ram_bytes: int | None = None
    why: str = ""


def tried_fields(tried: tuple[PartsTried, ...]) -> list[dict[str, object]] | None:
    """The entries of `micro_batches_tried` of `solve --json`; None where the number was given."""
    names = PartsTried.__dataclass_fields__
    rows = [{name: getattr(one, name) for name in names} for one in tried]
    return [{"micro_batches": row.pop("parts"), **row, "why": row["why"] or None} for row in rows] or None


def tried_rows(tried: tuple[PartsTried, ...], chosen: int) -> list[tuple[str, str]]:
    """The same for people: label and text."""
    return [(f"  {one.parts:,} part{'' if one.parts == 1 else 's'}", _words(one, chosen)) for one in tried]


def _words(one: PartsTried, chosen: int) -> str:
    if one.energy_j is None or one.time_s is None or one.total_ram_bytes is None:
        return one.why
    figures = f"{show_joules(one.energy_j)}, {show_seconds(one.time_s)}, {show_bytes(one.total_ram_bytes)} in all"
    return figures + (": taken" if one.parts == chosen else "")
