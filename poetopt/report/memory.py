"""All the RAM of a step, in figures and in words: the schedule's, and what stands beside it."""

from __future__ import annotations

from poetopt.graph import Role
from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Plan
from poetopt.plan.simulate import Simulation
from poetopt.report.clipping import clipping_fields
from poetopt.util.units import show_bytes

OF_PARAMETERS = (Role.PARAMETER, Role.OPTIMIZER_STATE)


def memory_fields(
    problem: Problem, plan: Plan | None, simulation: Simulation | None, taken_bytes: int | None
) -> dict[str, object]:
    """The keys of `solve --json` on all of the RAM.

    plan, simulation, taken_bytes
        A plan, what it does, and what it takes with the reserve of kernels; None without one.
    """
    lasting = None if plan is None else plan.problem.nbytes(plan.problem.lasting)
    total, limit = None if taken_bytes is None else problem.beside_bytes + taken_bytes, problem.device_ram_bytes
    return {
        "total_ram_bytes": total,
        "fits_device": None if total is None or limit is None else total <= limit,
        "stack_bytes": problem.stack_bytes,
        "parameters": problem.parameters,
        "parameter_bytes_in_ram": _resident(problem) if problem.parameters == "resident" else lasting,
        "bytes_written": None if simulation is None else simulation.bytes_written,
        "flash_bytes": problem.flash_bytes,
        "optimizer": str(problem.recipe.get("optimizer", "none")),
        **clipping_fields(problem, plan),
        "micro_batches": problem.parts,
        "runtime": problem.runtime or None,
    }


def taken_bytes(plan: Plan, peak_bytes: int, arena_bytes: int) -> int:
    """What a schedule takes of RAM, the reserve of kernels included; peak and arena as found."""
    return max(peak_bytes, arena_bytes + plan.problem.reserve_bytes)


def memory_words(problem: Problem, plan: Plan, taken: int) -> str:
    """What all of it takes, beside the device's RAM."""
    total = problem.beside_bytes + taken
    stack = f" with {show_bytes(problem.stack_bytes)} of stack" if problem.stack_bytes else ""
    text = f"{show_bytes(total)} in all{stack}"
    if problem.parameters == "paged":
        kept = plan.problem.nbytes(plan.problem.lasting)
        paged = sum(held.nbytes for held in problem.tensors if held.carried) - kept
        text += (
            f": of parameters and states {show_bytes(kept)} begin the step in RAM, {show_bytes(paged)} on storage; "
            f"updated by {problem.recipe.get('optimizer', 'none')}"
        )
    elif problem.resident_bytes:
        text += f": {show_bytes(problem.resident_bytes)} of parameters, gradients and constants beside the schedule"
    if problem.flash_bytes:
        text += f"; {show_bytes(problem.flash_bytes)} lie in flash"
    limit = problem.device_ram_bytes
    if limit is not None:
        text += f"; {problem.device} has {show_bytes(limit)}" + (", LESS THAN THAT" if total > limit else "")
    return text


def excess_words(problem: Problem, taken: int) -> str | None:
    """What to do where a step takes more RAM than the device has; None where it doesn't."""
    total, limit = problem.beside_bytes + taken, problem.device_ram_bytes
    if limit is None or total <= limit:
        return None
    return (
        f"the step doesn't fit: it takes {total:,} bytes, and {problem.device} has {limit:,}; leave out --ram and "
        "--total-ram to plan for that device"
    )


def parts_rows(problem: Problem) -> list[tuple[str, str]]:
    """What to say of a batch in parts: label and text; nothing of one without."""
    if problem.parts == 1:
        return []
    graph = problem.graph
    shape = graph.tensors[graph.split[0]].shape if graph is not None and graph.split else ()
    size = f" of {shape[0]:,}" if shape else ""
    then = ""
    if problem.closing is not None:
        count = len(graph.trained) if graph is not None else sum(map(bool, problem.closing.updates))
        then = f", then the updates of {count:,} parameters"
    return [
        ("batch", f"in {problem.parts:,} parts{size}, each by this schedule{then}; all figures are of the whole step")
    ]


def _resident(problem: Problem) -> int | None:
    """Bytes of parameters and states in the resident region; None without a network."""
    graph = problem.graph
    if graph is None:
        return None
    names = {graph.root(name) for name, tensor in graph.tensors.items() if tensor.role in OF_PARAMETERS}
    return sum(graph.tensors[name].nbytes for name in names)
