"""`check_block`: whether a block does what it says, on small problems whose optimum is found by trying everything."""

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
    require(block.name.isidentifier(), f"{where}: its name is an attribute of the model; make it a Python identifier")
    text = mathematics(block)
    require(text, f"{where}: neither its file nor its build function has a docstring; write the mathematics there")
    for symbol in symbols(block):
        require(symbol.unit, f"{where}: symbol {symbol.symbol} has no unit in its table; '-' where there is none")
        require(symbol.meaning, f"{where}: symbol {symbol.symbol} has no meaning in its table")
    require(
        block.refuses is not None or not block.restricts,
        f"{where}: nobody can tell which plans it forbids; give it `refuses`, or restricts=False where it forbids none",
    )
    require(
        (block.adds_j is None) == (block.base_j is None),
        f"{where}: adds_j and base_j belong together: joules above one pass, and joules of one pass",
    )
    try:
        pickle.dumps(block)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        require(False, f"{where}: it doesn't pickle ({error}); put its rules at module level, functools.partial binds")


def check_build(block: Block, together: Formulation, problem: Problem, ram_bytes: int) -> None:
    where = f"block '{block.name}'"
    try:
        model = together.build(problem, ram_bytes=ram_bytes, scope=scope_of(together, problem, ram_bytes))
    except FormulationError as error:
        raise ContractError(str(error)) from error
    if block.name not in model.block_names:
        return
    built = model.component(block.name)
    for symbol in symbols(block):
        if symbol.attribute not in ("", "-"):
            require(
                hasattr(built, symbol.attribute),
                f"{where}: its table says that {symbol.symbol} is `{symbol.attribute}`, which it doesn't set",
            )
    known = {id(item) for item in model.component_data_objects(pyo.Var)}
    for attribute in CONTRIBUTIONS:
        if hasattr(built, attribute):
            _check_terms(f"{where}: {attribute}", getattr(built, attribute), known)
            judged = attribute == ENERGY.attribute or (block.goal is not None and attribute == block.goal.attribute)
            require(
                judged,
                f"{where}: the model counts its {attribute}, and no judgement of a plan does: leave that out, or say "
                "in joules what it costs (`energy_j` and adds_j)",
            )
    place = together.blocks.index(block)
    if not block.collects:
        gives = [name for name in CONTRIBUTIONS if hasattr(built, name)]
        late = [other.name for other in together.blocks[:place] if other.collects]
        require(not (gives and late), f"{where}: it contributes {', '.join(gives)} behind {', '.join(late)}")
    require(
        together.goal is ENERGY or any(hasattr(model.component(b), together.goal.attribute) for b in model.block_names),
        f"{where}: it minimises {together.goal.name}, and no block contributes `{together.goal.attribute}`",
    )


def _check_terms(where: str, found: Any, known: set[int]) -> None:
    require(isinstance(found, Terms), f"{where}: must be made by `terms`, and is a {type(found).__name__}")
    require(
        len(found.variables) == len(found.coefficients),
        f"{where}: {len(found.variables)} variables and {len(found.coefficients)} coefficients",
    )
    require(all(math.isfinite(c) for c in found.coefficients), f"{where}: a coefficient is not finite")
    require(all(id(v) in known for v in found.variables), f"{where}: a variable is not one of the model's")


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


@dataclass(frozen=True)
class BlockCheck:
    """What `check_block` did.

    problems, infeasible
        Problems solved, and how many of them had no schedule.
    binding
        In how many the block refuses the schedule that is best without it: there its rule was put to the test. At least
        one, for a block that restricts.
    priced
        In how many the model was held against the prices of two schedules, for which the block adds different joules.
        At least one, for a block that adds joules.
    recomputes, page_ins
        The most that one of the schedules has which are best without the block.
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
    """Hold a block against its contract.

    block
        The block, or a function that makes one for a problem (limits that bind depend on it).
    formulation
        What it is put into; one with the decisions of `retention` or `poet`.
    problems, seed
        How many random problems, half of them for a device with DMA; with `retention` one in four needs several
        recomputes or page-ins.
        Or problems of your own with their RAM budgets in bytes, small enough to try all schedules.
    backend
        Name of a solver.

    Checked are: name, requirements, docstring and its table of symbols; that it pickles; that what it contributes
    can be summed; and on small problems that a solve proves exactly the optimum of all schedules that the block
    accepts (with DMA, that its bound is not above it), returns only such schedules, and prices them as their plans are.
    Tensors are written and read back in every stage in which they can be, also where the block says that it doesn't
    care (`transfer_times`).

    Raises ContractError for what is broken, for a block that restricts and nowhere forbade the schedule that is best
    without it, and for one that adds joules, the same to all schedules: that says nothing of its rows; FormulationError
    where the block can't stand in the formulation.
    """
    base = formulation_of(formulation)
    cases = cases_of(base, seed)
    infeasible = binding = priced = recomputes = page_ins = 0
    name, restricts, adds = "", False, False
    given = None if isinstance(problems, int) else tuple(problems)
    count = problems if isinstance(problems, int) else len(problems)
    require(count > 0, "check_block needs a problem at least")
    for number in range(count):
        problem, ram_bytes, tried = cases[number] if given is None else given_case(base, *given[number])
        made = block if isinstance(block, Block) else block(problem)
        restricts |= made.restricts
        adds |= made.adds_j is not None
        if number == 0:
            name = made.name
            check_words(made)
        together = base.with_block(made)
        together.abstract(space_of(together, problem, ram_bytes, together.transfer_times))
        check_build(made, together, problem, ram_bytes)
        found = best(together, tried, ram_bytes)
        if found is not None:
            check_price(made, together, problem, ram_bytes, found, backend)
            other = _priced_otherwise(base, together, tried, ram_bytes, found[1])
            if other is not None and _stands(base, problem, ram_bytes, other[1], backend):
                check_price(made, together, problem, ram_bytes, other, backend)
                priced += 1
        check_optimum(made, together, problem, ram_bytes, found, backend)
        plain = best(base, tried, ram_bytes)
        infeasible += found is None
        if plain is not None:
            binding += _refused(together, problem, plain[1])
            recomputes = max(recomputes, len(plain[1].recomputes))
            page_ins = max(page_ins, len(plain[1].page_ins))
    require(infeasible < count, f"block '{name}': no problem had a schedule, so nothing was compared; ask for less")
    require(
        binding or not restricts,
        f"block '{name}': in none of {count} problems does it forbid the schedule that is best without it (they take "
        f"up to {recomputes} recomputes and {page_ins} page-ins), so nothing shows that its rows hold; check it with "
        "a limit that binds (a function of the problem can make one), more `problems`, or `problems` of your own with "
        "budgets where it matters",
    )
    require(
        priced or not adds,
        f"block '{name}': in none of {count} problems do two schedules pay different prices (`adds_j`), so nothing "
        "shows that its terms hold; check it with a price that matters (a function of the problem can make one), more "
        "`problems`, or `problems` of your own",
    )
    return BlockCheck(name, count, infeasible, binding, priced, recomputes, page_ins)


def _refused(together: Formulation, problem: Problem, schedule: Schedule) -> bool:
    plan = plan_of(problem, schedule)
    return together.refusal(together.trial(plan, simulate(plan))) is not None


def _priced_otherwise(
    base: Formulation, together: Formulation, tried: Tried, ram_bytes: int, schedule: Schedule
) -> tuple[float, Schedule] | None:
    """The best schedule for which the block adds other joules than for `schedule`, and its value."""
    found: list[tuple[float, float, Schedule]] = []
    for other, trial in accepted(together, tried, ram_bytes):
        more = trial.overhead_j - base.trial(trial.plan, trial.simulation).overhead_j
        found.append((together.goal.value(trial), more, other))
    price = next(more for _, more, other in found if other == schedule)
    others = [(value, other) for value, more, other in found if abs(more - price) > TOLERANCE * max(1.0, abs(price))]
    return min(others, key=operator.itemgetter(0), default=None)


def _stands(base: Formulation, problem: Problem, ram_bytes: int, schedule: Schedule, backend: str) -> bool:
    """Whether the model has the schedule without the block: it leaves out some that are of no use."""
    found = held(base, problem, ram_bytes, schedule, backend)
    return found is not None and found.point is not None
