"""The graph that a plan is run with, and whether the plan is of it."""

from __future__ import annotations

from poetopt.errors import PlanError
from poetopt.graph import Operator, Tensor, TrainingGraph
from poetopt.operators.constants import constants_of
from poetopt.plan.instructions import Plan
from poetopt.problem import Problem
from poetopt.runtimes.contract import Runtime, RuntimeVariant, TakesOver


def graph_of(plan: Plan, graph: TrainingGraph | None = None) -> TrainingGraph:
    """The graph to execute: as given, or the one behind the plan. Raises PlanError where there is none."""
    chosen = plan.problem.graph if graph is None else graph
    if chosen is None:
        raise PlanError(
            f"{plan.problem.name}: the plan is of a problem file, which has no network to execute; solve an ONNX model"
        )
    return chosen


def check_belongs(graph: TrainingGraph, problem: Problem, runtime: Runtime, shown: str) -> None:
    """Refuse a graph that is not the one that `problem` was made of, or not for this runtime. Raises `PlanError`."""
    if problem.runtime not in ("", runtime.name):
        raise PlanError(
            f"{shown}: the plan is for the kernels of the runtime {problem.runtime!r}, and these are those of "
            f"{runtime.name!r}; solve the model again with --runtime {runtime.name}{_elsewhere(problem)}"
        )
    scheduled = [operator for operator in graph.operators if not operator.view]
    names = [operator.name for operator in problem.operators]
    if names != [operator.name for operator in scheduled]:
        raise PlanError(
            f"{shown}: the plan has {len(names)} operators that are not the {len(scheduled)} of the model "
            f"{graph.name!r}; solve the model again"
        )
    for tensor in problem.tensors:
        known: Tensor | None = graph.tensors.get(tensor.name)
        if known is None or known.nbytes != tensor.nbytes:
            raise PlanError(
                f"{shown}: the plan's tensor {tensor.name!r} of {tensor.nbytes} B is not in the model; "
                "solve the model again"
            )
    for operator, costed in zip(scheduled, problem.operators, strict=True):
        if costed.takes:  # asked where it is run
            continue
        needed = runtime.workspace(operator, graph.tensors, problem.alignment).temporaries_bytes
        if needed > costed.workspace_bytes:
            raise PlanError(
                f"{shown}: the plan gives {operator.name!r} {costed.workspace_bytes} B of workspace, it needs "
                f"{needed} with the runtime {runtime.name!r}; solve the model again"
            )
    # How much kernels allocate is known by measurement only, during the step; that they may is known.
    if problem.reserve_bytes < runtime.reserve_bytes(0):
        raise PlanError(
            f"{shown}: the plan sets {problem.reserve_bytes} B aside for what kernels allocate, and none may set less "
            f"than {runtime.reserve_bytes(0)}; solve the model again"
        )


def taken_over(
    runtime: Runtime, graph: TrainingGraph, operator: Operator, problem: Problem, index: int
) -> RuntimeVariant | None:
    """How `operator`, which is operator `index` of a plan's problem, writes over what it reads; None where it can't."""
    takes = problem.operators[index].takes
    if not takes or not isinstance(runtime, TakesOver):
        return None
    given, made = (problem.tensors[i].name for i in takes)
    read = next((name for name in operator.inputs if graph.root(name) == given), given)
    return runtime.taking(operator, graph.tensors, problem.alignment, takes=(read, made), values=constants_of(graph))


def streams(operator: str, who: str) -> PlanError:
    """What is wrong with a plan in which an operator streams, for whoever runs it with its operands in RAM alone."""
    return PlanError(
        f"the plan streams operands of {operator!r} from or to storage, which {who} can't run yet; solve again with "
        "more RAM, so that nothing is streamed"
    )


def in_parts(name: str, what: str) -> PlanError:
    """What is wrong with a plan whose batch comes in parts, for what has none."""
    return PlanError(f"{name}: the plan's batch comes in parts, and {what} has none; solve it without --micro-batch")


def _elsewhere(problem: Problem) -> str:
    """Where a plan of this runtime can be run."""
    return ", or run it in C (po.execute_on, --on host)" if problem.runtime == "c" else ""
