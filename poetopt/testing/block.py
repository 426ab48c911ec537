"""`check_block`: whether a block does what it says, on small problems whose optimum is found by trying everything."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

from poetopt.formulations import formulation as formulation_of
from poetopt.formulations.block import Block
from poetopt.formulations.language import Formulation
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from poetopt.testing.block_cases import cases_of, given_case, space_of
from poetopt.testing.block_optimum import TOLERANCE, check_optimum, check_price, held
from poetopt.testing.block_words import check_build, check_words
from poetopt.testing.contract import require
from poetopt.testing.exhaustive import Tried, accepted, best


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
