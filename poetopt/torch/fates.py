"""What a plan does with the output of each forward operator until the backward pass reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from poetopt.util.errors import ModelError, OptionError, PlanError
from poetopt.util.notes import listed

if TYPE_CHECKING:
    from poetopt.graph import Graph, TrainingGraph
    from poetopt.plan.instructions import Plan


class Fate(StrEnum):
    """Of an operator's (first) output."""

    KEPT = "kept"
    """In RAM when the backward pass begins."""
    RECOMPUTED = "recomputed"
    """Computed again."""
    GONE = "gone"
    """Neither: nothing after the forward pass reads it, or it is part of an operator that works in place."""


@dataclass(frozen=True)
class Recomputation:
    """The part of a plan that recomputes.

    network
        The forward network, its operators in the file's order.
    fates
        By the name of its operators.
    """

    network: Graph
    fates: Mapping[str, Fate]


def recomputation(plan: Plan) -> Recomputation:
    """What a plan recomputes. Raises PlanError for one that does something else than that, or nothing."""
    from poetopt.plan.instructions import Action
    from poetopt.plan.simulate import simulate

    problem = plan.problem
    done = simulate(plan)
    if moved := done.page_outs + done.page_ins + done.streamed_runs:
        raise PlanError(
            f"the plan moves tensors to storage and back ({moved} times), and torch.utils.checkpoint only recomputes; "
            "solve with paging=False (--no-paging)"
        )
    runs = Counter(entry.target for entry in plan.instructions if entry.action is Action.COMPUTE)
    again = [problem.operators[index] for index, count in runs.items() if count > 1]
    if not again:
        raise PlanError("the plan recomputes nothing: training as it is takes no more RAM; solve with a smaller --ram")
    if backward := [operator.name for operator in again if operator.backward]:
        raise PlanError(f"the plan recomputes operators of the backward pass ({listed(backward)}), and torch can't")
    step, network = _graphs(plan)
    resident = _resident_at_backward(plan)
    members = {operator.name: operator.members or (operator.name,) for operator in step.operators}
    recomputed = {member for operator in again for member in members[operator.name]}
    fates = {}
    for operator in network.operators:
        kept = step.root(operator.outputs[0]) in resident
        fates[operator.name] = (
            Fate.RECOMPUTED if operator.name in recomputed else Fate.KEPT if kept else Fate.GONE
        )  # fmt: skip
    return Recomputation(network, fates)


def _graphs(plan: Plan) -> tuple[TrainingGraph, Graph]:
    """The step that is scheduled, and its forward network as the file has it. Raises PlanError where it isn't there."""
    from poetopt.api.models import Model, read
    from poetopt.api.plans import made_for
    from poetopt.frontends.reading import from_recipe

    problem = plan.problem
    if problem.graph is None or not problem.recipe:
        raise PlanError(f"{problem.name}: there is no network behind this plan; solve an ONNX model")
    try:
        loaded = read(problem.model_ref, from_recipe(problem.recipe))
    except (ModelError, OptionError) as error:
        raise PlanError(f"the plan's network can't be read: {error}") from error
    if not isinstance(loaded, Model) or not made_for(problem, loaded):
        raise PlanError(f"{problem.model_ref}: it isn't the network that the plan was made for; solve it again")
    return problem.graph, loaded.graph


def _resident_at_backward(plan: Plan) -> set[str]:
    """Names of the tensors that are in RAM when the first backward operator runs."""
    from poetopt.plan.instructions import Action

    operators, tensors = plan.problem.operators, plan.problem.tensors
    found: set[str] = set()
    for entry in plan.instructions:
        if entry.action is Action.COMPUTE:
            if operators[entry.target].backward:
                break
            found.update(tensors[index].name for index in operators[entry.target].outputs)
        elif entry.action is Action.FREE:
            found.discard(tensors[entry.target].name)
    return found
