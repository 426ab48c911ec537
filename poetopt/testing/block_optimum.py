"""A block in a model, against the optimum of all schedules and the prices of their plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from poetopt.backends.solvers.solver import Frozen, Search
from poetopt.backends.solvers.solver import backend as backend_of
from poetopt.formulations.block import Block
from poetopt.formulations.language import Formulation
from poetopt.graph.problem import Problem
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import Simulation, simulate
from poetopt.search.diagnosis.whole import solve_whole
from poetopt.search.solution import OPTIMAL_GAP, Options, Solution, Status
from poetopt.testing.block_cases import scope_of
from poetopt.testing.contract import require

TOLERANCE = 1e-6


def check_price(
    block: Block,
    together: Formulation,
    problem: Problem,
    ram_bytes: int,
    found: tuple[float, Schedule],
    backend: str,
) -> None:
    """The model, with all that it had before held at the best schedule: a solution, of the plan's price."""
    case, (value, schedule) = _case(block, problem, ram_bytes), found
    priced = held(together, problem, ram_bytes, schedule, backend)
    if priced is None:
        return
    require(
        priced.point is not None,
        f"{case}: the schedule {_shown(schedule)} of {value:g} keeps every rule, and the block's rows cut it off",
    )
    slack = TOLERANCE * max(1.0, value)
    require(
        priced.objective <= value + slack and (problem.dma or priced.objective >= value - slack),
        f"{case}: the model prices the schedule {_shown(schedule)} at {priced.objective:g}, and its plan costs "
        f"{value:g}: what the block contributes and what it adds to plans (`adds_j`) disagree",
    )


def check_optimum(
    block: Block,
    together: Formulation,
    problem: Problem,
    ram_bytes: int,
    tried: tuple[float, Schedule] | None,
    backend: str,
) -> None:
    """The solve against the optimum by trying everything."""
    case = _case(block, problem, ram_bytes)
    # strict: a heuristic's plan would hide that the model has lost the optimum
    options = Options(
        ram_bytes=ram_bytes,
        formulation=replace(together, strict=True),
        backend=backend,
        scope=scope_of(together, problem, ram_bytes),
        gap=1e-9,
        time_limit_s=60.0,
    )
    solution = solve_whole(problem, options)
    if tried is None:
        require(
            solution.plan is None or problem.dma,  # in another order of its transfers, which is judged below
            f"{case}: it was solved, though no schedule keeps the block's rule: its rows are weaker than its `refuses`",
        )
        require(
            solution.status is Status.INFEASIBLE or problem.dma,
            f"{case}: no schedule keeps the block's rule, and the model doesn't prove it: its rows are weaker than its "
            "`refuses`",
        )
        if solution.plan is not None:
            _value(together, solution, case)
        return
    value = tried[0]
    bound = solution.scope_bound
    require(
        solution.status is not Status.INFEASIBLE,
        f"{case}: the model has no solution, and the schedule {_shown(tried[1])} of {value:g} keeps every rule: "
        "its rows cut it off",
    )
    require(
        bound is not None and bound <= value + TOLERANCE * max(1.0, value),
        f"{case}: the bound is {bound}, and the schedule {_shown(tried[1])} of {value:g} keeps every rule: "
        "its rows cut off the optimum, or it contributes more than the plan costs",
    )
    if solution.plan is None:
        require(problem.dma, f"{case}: no schedule was found, though one of {value:g} exists")
        return
    got = _value(together, solution, case)
    if not problem.dma:
        require(
            abs(got - value) <= TOLERANCE * max(1.0, value),
            f"{case}: the solve found {got:g}, trying every schedule {value:g}",
        )
        require(
            (solution.scope_gap or 0.0) <= OPTIMAL_GAP,
            f"{case}: the optimum {value:g} was found and not proven (bound {bound}): the model asks for too little",
        )


def held(formulation: Formulation, problem: Problem, ram_bytes: int, schedule: Schedule, backend: str) -> Search | None:
    """A search with all that the formulation has of its own held at a schedule; None where it lacks a decision."""
    model = formulation.build(problem, ram_bytes=ram_bytes, scope=scope_of(formulation, problem, ram_bytes))
    start = formulation.points.values(model, schedule)
    if start is None:
        return None
    return (
        backend_of(backend)
        .open(model, threads=1, scale=1.0)
        .search(
            time_limit_s=30.0,
            gap=0.0,
            start=None,
            on_point=lambda _: None,
            on_bound=lambda _: None,
            frozen=[Frozen(variable, np.ones(len(values), dtype=bool), values) for variable, values in start],
        )
    )


def _case(block: Block, problem: Problem, ram_bytes: int) -> str:
    return f"block '{block.name}' on {problem.name} with {ram_bytes} bytes{', DMA' if problem.dma else ''}"


def _value(together: Formulation, solution: Solution, case: str) -> float:
    """What the found plan is worth, simulated again."""
    assert solution.plan is not None
    simulation: Simulation = simulate(solution.plan, ram_bytes=solution.options.ram_bytes)
    trial = together.trial(solution.plan, simulation)
    refused = together.refusal(trial)
    require(refused is None, f"{case}: its plan breaks the rule: {refused}")
    return together.goal.value(trial)


def _shown(schedule: object) -> str:
    return str(schedule).removeprefix("Schedule")
