"""`check_block`: a check of a block on small problems whose optimum is found by trying all schedules."""

from __future__ import annotations

import math
import operator
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import pyomo.environ as pyo

from poetopt.backends.solvers.solver import Frozen, Search
from poetopt.backends.solvers.solver import backend as backend_of
from poetopt.formulations import formulation as formulation_of
from poetopt.formulations.block import Block
from poetopt.formulations.goal import ENERGY
from poetopt.formulations.language import Formulation
from poetopt.formulations.mathematics import mathematics, symbols
from poetopt.formulations.rows import Terms
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import Simulation, simulate
from poetopt.search.diagnosis.whole import solve_whole
from poetopt.search.solution import OPTIMAL_GAP, Options, Solution, Status
from poetopt.testing.contract import ContractError, require
from poetopt.testing.exhaustive import Tried, accepted, best
from poetopt.testing.problems import cases_of, given_case, scope_of, space_of
from poetopt.util.errors import FormulationError

TOLERANCE = 1e-6
CONTRIBUTIONS = ("energy_j", "compute_s", "transfer_s", "written_bytes", "late_s")


def check_words(block: Block) -> None:
    where = f"block '{block.name}'"
    require(
        block.name.isidentifier(), f"{where}: its name must be a Python identifier, as the model has it as attribute"
    )
    text = mathematics(block)
    require(text, f"{where}: neither its file nor its build function has a docstring; describe the mathematics there")
    for symbol in symbols(block):
        require(symbol.unit, f"{where}: symbol {symbol.symbol} has no unit in its table; write '-' if it has none")
        require(symbol.meaning, f"{where}: symbol {symbol.symbol} has no meaning in its table; describe it there")
    require(
        block.refuses is not None or not block.restricts,
        f"{where}: it doesn't say which plans it forbids; give it `refuses`, or restricts=False if it forbids none",
    )
    require(
        (block.adds_j is None) == (block.base_j is None),
        f"{where}: it has only one of adds_j and base_j; give it both: joules above one pass, and joules of one pass",
    )
    try:
        pickle.dumps(block)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        require(
            False,
            f"{where}: it can't be pickled ({error}); put its rules at module level, and bind values with "
            "functools.partial",
        )


def check_build(block: Block, formulation: Formulation, problem: Problem, ram_bytes: int) -> None:
    where = f"block '{block.name}'"
    try:
        model = formulation.build(problem, ram_bytes=ram_bytes, scope=scope_of(formulation, problem, ram_bytes))
    except FormulationError as error:
        raise ContractError(str(error)) from error
    if block.name not in model.block_names:
        return
    component = model.component(block.name)
    for symbol in symbols(block):
        if symbol.attribute not in ("", "-"):
            require(
                hasattr(component, symbol.attribute),
                f"{where}: its table says that {symbol.symbol} is `{symbol.attribute}`; set that attribute",
            )
    variable_ids = {id(item) for item in model.component_data_objects(pyo.Var)}
    for attribute in CONTRIBUTIONS:
        if hasattr(component, attribute):
            _check_terms(f"{where}: {attribute}", getattr(component, attribute), variable_ids)
            is_counted = attribute == ENERGY.attribute or (block.goal is not None and attribute == block.goal.attribute)
            require(
                is_counted,
                f"{where}: the model counts its {attribute}, but the cost of a plan doesn't; remove {attribute}, or "
                "give the cost in joules (`energy_j` and adds_j)",
            )
    position = formulation.blocks.index(block)
    if not block.collects:
        contributions = [name for name in CONTRIBUTIONS if hasattr(component, name)]
        collecting = [other.name for other in formulation.blocks[:position] if other.collects]
        require(
            not (contributions and collecting),
            f"{where}: it contributes {', '.join(contributions)} after {', '.join(collecting)}, which collects "
            "contributions; put it before",
        )
    require(
        formulation.goal is ENERGY
        or any(hasattr(model.component(b), formulation.goal.attribute) for b in model.block_names),
        f"{where}: the goal is {formulation.goal.name}, and no block contributes `{formulation.goal.attribute}`",
    )


def _check_terms(where: str, terms: Any, variable_ids: set[int]) -> None:
    require(isinstance(terms, Terms), f"{where}: must be a result of `terms`, and is a {type(terms).__name__}")
    require(
        len(terms.variables) == len(terms.coefficients),
        f"{where}: {len(terms.variables)} variables and {len(terms.coefficients)} coefficients",
    )
    require(all(math.isfinite(c) for c in terms.coefficients), f"{where}: a coefficient is not finite")
    require(all(id(v) in variable_ids for v in terms.variables), f"{where}: a variable is not one of the model's")


def check_price(
    block: Block,
    formulation: Formulation,
    problem: Problem,
    ram_bytes: int,
    found: tuple[float, Schedule],
    backend: str,
) -> None:
    """Check that the model with its variables fixed at a schedule has a solution at the price of the plan.

    Parameters
    ----------
    found
        Value and schedule.
    """
    case, (value, schedule) = _case(block, problem, ram_bytes), found
    fixed_search = held(formulation, problem, ram_bytes, schedule, backend)
    if fixed_search is None:
        return
    require(
        fixed_search.point is not None,
        f"{case}: the schedule {_text(schedule)} of {value:g} keeps every rule, but the block's rows cut it off",
    )
    slack = TOLERANCE * max(1.0, value)
    require(
        fixed_search.objective <= value + slack and (problem.dma or fixed_search.objective >= value - slack),
        f"{case}: the model prices the schedule {_text(schedule)} at {fixed_search.objective:g}, and its plan "
        f"costs {value:g}: the block's terms in the model and the joules that it adds to plans (`adds_j`) disagree",
    )


def check_optimum(
    block: Block,
    formulation: Formulation,
    problem: Problem,
    ram_bytes: int,
    tried: tuple[float, Schedule] | None,
    backend: str,
) -> None:
    """Check a solve against the optimum of all schedules.

    Parameters
    ----------
    tried
        Value and schedule of the optimum; None where no schedule keeps the rule.
    """
    case = _case(block, problem, ram_bytes)
    # strict: a heuristic's plan would hide that the model has lost the optimum
    options = Options(
        ram_bytes=ram_bytes,
        formulation=replace(formulation, strict=True),
        backend=backend,
        scope=scope_of(formulation, problem, ram_bytes),
        gap=1e-9,
        time_limit_s=60.0,
    )
    solution = solve_whole(problem, options)
    if tried is None:
        require(
            solution.plan is None or problem.dma,  # with DMA, transfers may have another order, which is judged below
            f"{case}: the solve found a plan, and no schedule keeps the block's rule: its rows are weaker than "
            "`refuses`",
        )
        require(
            solution.status is Status.INFEASIBLE or problem.dma,
            f"{case}: no schedule keeps the block's rule, and the model doesn't prove it: its rows are weaker than "
            "`refuses`",
        )
        if solution.plan is not None:
            _plan_value(formulation, solution, case)
        return
    value = tried[0]
    bound = solution.scope_bound
    require(
        solution.status is not Status.INFEASIBLE,
        f"{case}: the model has no solution, and the schedule {_text(tried[1])} of {value:g} keeps every rule: "
        "its rows cut it off",
    )
    require(
        bound is not None and bound <= value + TOLERANCE * max(1.0, value),
        f"{case}: the bound is {bound}, and the schedule {_text(tried[1])} of {value:g} keeps every rule: "
        "the block's rows cut off the optimum, or it contributes more than the plan costs",
    )
    if solution.plan is None:
        require(problem.dma, f"{case}: the solve found no schedule, and one of {value:g} exists")
        return
    solved_value = _plan_value(formulation, solution, case)
    if not problem.dma:
        require(
            abs(solved_value - value) <= TOLERANCE * max(1.0, value),
            f"{case}: the solve found {solved_value:g}, and the best of all schedules costs {value:g}",
        )
        require(
            (solution.scope_gap or 0.0) <= OPTIMAL_GAP,
            f"{case}: the optimum {value:g} was found but not proven (bound {bound}): the block's rows are too weak",
        )


def held(formulation: Formulation, problem: Problem, ram_bytes: int, schedule: Schedule, backend: str) -> Search | None:
    """Return a search with the formulation's variables fixed at a schedule, or None where it lacks a decision."""
    model = formulation.build(problem, ram_bytes=ram_bytes, scope=scope_of(formulation, problem, ram_bytes))
    start = formulation.search.values(model, schedule)
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


def _plan_value(formulation: Formulation, solution: Solution, case: str) -> float:
    """Return the value of the solution's plan by another simulation."""
    assert solution.plan is not None
    simulation: Simulation = simulate(solution.plan, ram_bytes=solution.options.ram_bytes)
    trial = formulation.trial(solution.plan, simulation)
    refused = formulation.refusal(trial)
    require(refused is None, f"{case}: its plan breaks the rule: {refused}")
    return formulation.goal.value(trial)


def _text(schedule: object) -> str:
    return str(schedule).removeprefix("Schedule")


@dataclass(frozen=True)
class BlockCheck:
    """Result of `check_block`.

    Attributes
    ----------
    problems, infeasible
        Number of solved problems, and of those without a schedule.
    binding
        Number of problems in which the block refuses the schedule that is best without it, so that its rule was
        tested. At least one for a block that restricts.
    priced
        Number of problems in which the model was compared with the prices of two schedules for which the block adds
        different joules. At least one for a block that adds joules.
    recomputes, page_ins
        Most recomputes and page-ins of the schedules that are best without the block.
    """

    name: str
    problems: int
    infeasible: int
    binding: int
    priced: int
    recomputes: int
    page_ins: int


def check_block(
    block: Block | Callable[[Problem], Block],
    *,
    formulation: str | Formulation | ModuleType = "retention",
    problems: int | Sequence[tuple[Problem, int]] = 10,
    seed: int = 0,
    backend: str = "highs",
) -> BlockCheck:
    """Check that a block keeps its contract.

    The check covers name, requirements, docstring and its table of symbols, pickling, and that contributions can be
    summed. On small problems, a solve must prove exactly the optimum of all schedules that the block accepts (with DMA,
    its bound must not exceed it), return only such schedules, and price them like their plans. Tensors are written and
    read back in every possible stage, also where the block doesn't depend on that (`transfer_times`).

    Parameters
    ----------
    block
        The block, or a function that returns one for a problem, as limits that bind depend on the problem.
    formulation
        The formulation that gets the block; one with the decisions of `retention` or `poet`.
    problems, seed
        Number of random problems, half of them for a device with DMA; with `retention` one in four needs several
        recomputes or page-ins. Alternatively problems with RAM budgets in bytes, small enough to try all schedules.
    backend
        Name of a solver.

    Raises
    ------
    ContractError
        The block breaks its contract, restricts but never forbids the schedule that is best without it, or adds the
        same joules to all schedules; the latter two tell nothing about its rows.
    FormulationError
        The block doesn't fit the formulation.
    """
    base = formulation_of(formulation)
    cases = cases_of(base, seed)
    infeasible = binding = priced = recomputes = page_ins = 0
    name, restricts, adds = "", False, False
    own_problems = None if isinstance(problems, int) else tuple(problems)
    count = problems if isinstance(problems, int) else len(problems)
    require(count > 0, "check_block needs at least one problem; pass problems=10")
    for number in range(count):
        problem, ram_bytes, tried = cases[number] if own_problems is None else given_case(base, *own_problems[number])
        checked_block = block if isinstance(block, Block) else block(problem)
        restricts |= checked_block.restricts
        adds |= checked_block.adds_j is not None
        if number == 0:
            name = checked_block.name
            check_words(checked_block)
        extended = base.with_block(checked_block)
        extended.abstract(space_of(extended, problem, ram_bytes, extended.transfer_times))
        check_build(checked_block, extended, problem, ram_bytes)
        optimum = best(extended, tried, ram_bytes)
        if optimum is not None:
            check_price(checked_block, extended, problem, ram_bytes, optimum, backend)
            other = _best_at_other_price(base, extended, tried, ram_bytes, optimum[1])
            if other is not None and _model_has(base, problem, ram_bytes, other[1], backend):
                check_price(checked_block, extended, problem, ram_bytes, other, backend)
                priced += 1
        check_optimum(checked_block, extended, problem, ram_bytes, optimum, backend)
        without_block = best(base, tried, ram_bytes)
        infeasible += optimum is None
        if without_block is not None:
            binding += _is_refused(extended, problem, without_block[1])
            recomputes = max(recomputes, len(without_block[1].recomputes))
            page_ins = max(page_ins, len(without_block[1].page_ins))
    require(
        infeasible < count,
        f"block '{name}': no problem has a schedule, so nothing was compared; relax the block's limit",
    )
    require(
        binding or not restricts,
        f"block '{name}': in none of {count} problems does it forbid the schedule that is best without it (with up to "
        f"{recomputes} recomputes and {page_ins} page-ins), so its rows weren't tested; pass a block with a limit that "
        "binds (for example by a function of the problem), more `problems`, or problems with budgets at which it binds",
    )
    require(
        priced or not adds,
        f"block '{name}': in none of {count} problems do two schedules pay different prices (`adds_j`), so its terms "
        "weren't tested; pass a block with a higher price (for example by a function of the problem), more `problems`, "
        "or problems in which the price differs",
    )
    return BlockCheck(name, count, infeasible, binding, priced, recomputes, page_ins)


def _is_refused(extended: Formulation, problem: Problem, schedule: Schedule) -> bool:
    plan = plan_of(problem, schedule)
    return extended.refusal(extended.trial(plan, simulate(plan))) is not None


def _best_at_other_price(
    base: Formulation, extended: Formulation, tried: Tried, ram_bytes: int, schedule: Schedule
) -> tuple[float, Schedule] | None:
    """Return value and schedule of the best one for which the block adds other joules than for `schedule`, or None."""
    candidates: list[tuple[float, float, Schedule]] = []
    for other, trial in accepted(extended, tried, ram_bytes):
        added_j = trial.overhead_j - base.trial(trial.plan, trial.simulation).overhead_j
        candidates.append((extended.goal.value(trial), added_j, other))
    reference_j = next(added_j for _, added_j, other in candidates if other == schedule)
    others = [
        (value, other)
        for value, added_j, other in candidates
        if abs(added_j - reference_j) > TOLERANCE * max(1.0, abs(reference_j))
    ]
    return min(others, key=operator.itemgetter(0), default=None)


def _model_has(base: Formulation, problem: Problem, ram_bytes: int, schedule: Schedule, backend: str) -> bool:
    """Return whether the model without the block has the schedule; it leaves out some useless ones."""
    fixed_search = held(base, problem, ram_bytes, schedule, backend)
    return fixed_search is not None and fixed_search.point is not None
