"""The largest batch that fits, what refuses the next one, and what a sample takes at a few batches."""

from __future__ import annotations

from dataclasses import dataclass, replace

from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes as arena_of
from poetopt.plan.simulate import Simulation
from poetopt.report.memory import taken_bytes
from poetopt.search.solution import Solution
from poetopt.util.units import show_bytes, show_joules, show_seconds

STORE_ALL = "store-all"
"""How a schedule is called that keeps everything."""


@dataclass(frozen=True, kw_only=True)
class AtBatch:
    """A schedule at one batch: seconds and joules of a step, and all of its RAM.

    found
        `store-all`, which no schedule beats, `heuristic`, or `solved`.
    """

    batch: int
    time_s: float
    energy_j: float
    total_ram_bytes: int
    found: str


@dataclass(frozen=True, kw_only=True)
class LargestBatch:
    """What `--batch max` found.

    batch
        The largest with a known schedule.
    refused, why
        The smallest batch above it that is proven to have none, and why; None where all that can be asked for may fit.
        Between the two nothing is known: no schedule was found, and none is proven impossible.
    most
        What can be asked for: samples of an epoch, or what a size may be.
    at
        Schedules at a few batches, the smallest first.
    """

    batch: int
    refused: int | None
    why: str
    most: int
    at: tuple[AtBatch, ...]

    @property
    def proven(self) -> bool:
        """Whether one sample more is proven to have no schedule, or can't be asked for."""
        return self.batch == self.most if self.refused is None else self.refused == self.batch + 1


def batch_fields(found: LargestBatch | None) -> dict[str, object] | None:
    """The object `largest_batch` of `solve --json`."""
    if found is None:
        return None
    return {
        "batch": found.batch,
        "proven": found.proven,
        "refused": found.refused,
        "why": found.why or None,
        "batches": [
            {
                "batch": one.batch,
                "time_s_per_sample": one.time_s / one.batch,
                "energy_j_per_sample": one.energy_j / one.batch,
                "total_ram_bytes": one.total_ram_bytes,
                "schedule": one.found,
            }
            for one in found.at
        ],
    }


def batch_rows(found: LargestBatch | None) -> list[tuple[str, str]]:
    """The same for people: label and text."""
    if found is None:
        return []
    text = f"{found.batch:,} is the largest"
    if found.refused is None:
        text += f": no more than {found.most:,} can be asked for"
    elif found.proven:
        text += f": with {found.refused:,}, {found.why}"
    else:
        text += f" with a known schedule, and {found.refused:,} has none: {found.why}; nothing is known in between"
    return [("batch", text), *((f"  {one.batch:,}", _sample(one)) for one in found.at)]


def _sample(one: AtBatch) -> str:
    return (
        f"{show_seconds(one.time_s / one.batch)} and {show_joules(one.energy_j / one.batch)} a sample, "
        f"{show_bytes(one.total_ram_bytes)} in all ({one.found})"
    )


def figures_at(batch: int, plan: Plan, simulation: Simulation, arena_bytes: int, *, solved: bool = False) -> AtBatch:
    """The figures of a plan at a batch."""
    plain = not (simulation.recomputes or simulation.page_outs or simulation.overhead_j)
    taken = taken_bytes(plan, simulation.peak_bytes, arena_bytes)
    return AtBatch(
        batch=batch,
        time_s=simulation.makespan_s,
        energy_j=simulation.energy_j,
        total_ram_bytes=plan.problem.beside_bytes + taken,
        found=STORE_ALL if plain else "solved" if solved else "heuristic",
    )


def with_solved(found: LargestBatch, solution: Solution) -> LargestBatch:
    """`found` with what was solved in place of the schedule that it began with."""
    plan, simulation = solution.plan, solution.simulation
    if plan is None or simulation is None:
        return found
    others = [one for one in found.at if one.batch != found.batch]
    mine = figures_at(found.batch, plan, simulation, arena_of(plan), solved=True)
    return replace(found, at=(*others, mine))
