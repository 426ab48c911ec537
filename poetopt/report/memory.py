"""All the RAM of a step, in figures: the schedule's, and what stands beside it."""

from __future__ import annotations

from poetopt.autodiff.optimizers import CLIP
from poetopt.graph import Role
from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Plan


def clips(problem: Problem) -> bool:
    """Tell whether the step clips by the norm of all gradients."""
    return problem.recipe.get(CLIP) is True


OF_PARAMETERS = (Role.PARAMETER, Role.OPTIMIZER_STATE)


def memory_document(problem: Problem, plan: Plan | None, taken_bytes: int | None) -> dict[str, object]:
    """All of the RAM in `solve --json`; None without a plan, whose `taken_bytes` have the reserve of kernels."""
    lasting = None if plan is None else plan.problem.nbytes(plan.problem.lasting)
    total, limit = None if taken_bytes is None else problem.beside_bytes + taken_bytes, problem.device_ram_bytes
    return {
        "total_ram_bytes": total,
        "fits_device": None if total is None or limit is None else total <= limit,
        "parameter_bytes_in_ram": _resident(problem) if problem.parameters == "resident" else lasting,
    }


def taken_bytes(plan: Plan, peak_bytes: int, arena_bytes: int) -> int:
    """RAM that a schedule takes, the reserve of kernels included; peak and arena as found."""
    return max(peak_bytes, arena_bytes + plan.problem.reserve_bytes)


def _resident(problem: Problem) -> int | None:
    """Bytes of parameters and states in the resident region; None without a network."""
    graph = problem.graph
    if graph is None:
        return None
    names = {graph.root(name) for name, tensor in graph.tensors.items() if tensor.role in OF_PARAMETERS}
    return sum(graph.tensors[name].nbytes for name in names)
