"""`check_block`: whether a block does what it says, on small problems whose optimum is found by trying everything."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np

from poetopt.backends.solvers.solver import Frozen, Search
from poetopt.backends.solvers.solver import backend as backend_of
from poetopt.formulations import formulation as formulation_of
from poetopt.formulations.block import Block
from poetopt.formulations.language import Formulation
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import Simulation, simulate
from poetopt.search.diagnosis.whole import solve_whole
from poetopt.search.solution import OPTIMAL_GAP, Options, Solution, Status
from poetopt.testing.block_cases import cases_of, given_case, scope_of, space_of
from poetopt.testing.block_words import check_build, check_words
from poetopt.testing.contract import require
from poetopt.testing.exhaustive import Tried, accepted, best

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
