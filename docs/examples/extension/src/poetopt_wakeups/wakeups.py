r"""Block `wakeups`: the storage is asked for something at most so many times a step.

Each transfer may have to wake the card from sleep, and on some boards each may fail. With $p_{i,q}$ and $o_i$
the page-ins and page-outs of the block `paging`:

$$ \sum_{i,q} p_{i,q} + \sum_i o_i \le N $$

| symbol | attribute | unit | meaning                       |
|--------|-----------|------|-------------------------------|
| $N$    | -         | -    | transfers that a step may do  |
"""

from __future__ import annotations

import functools

import pyomo.environ as pyo

from poetopt.formulations.goal import Trial
from poetopt.formulations.language import Block, PyomoBlock, Space, Terms, linear
from poetopt.formulations.options import BlockOption
from poetopt.formulations.retention import retention
from poetopt.graph.problem import Problem
from poetopt.util.errors import OptionError


def _build(block: PyomoBlock, *, transfers: int) -> None:
    paging = block.model().paging
    moves = [*paging.p.values(), *paging.o.values()]
    if moves:
        block.within = pyo.Constraint(expr=(None, linear([Terms(moves, [1.0] * len(moves))]), transfers))


def _refuses(trial: Trial, *, transfers: int) -> str | None:
    done = trial.simulation.page_ins + trial.simulation.page_outs
    return None if done <= transfers else f"the plan does {done} transfers, and may do {transfers}"


def _needed(space: Space) -> bool:
    return space.paging


def wakeups(transfers: int) -> Block:
    """The block for at most `transfers` page-ins and page-outs a step."""
    return Block(
        "wakeups",
        functools.partial(_build, transfers=transfers),
        requires=("paging",),
        when=_needed,
        refuses=functools.partial(_refuses, transfers=transfers),
        says=f"at most {transfers} transfers a step",
        transfer_times=False,  # how many there are counts, not when
    )


def _option(value: str, problem: Problem, steps: int) -> Block:
    if not value.isdecimal():
        raise OptionError(f"--block wakeups={value}: give a whole number of transfers, as in wakeups=4")
    return wakeups(int(value))


option = BlockOption("N", _option, "4")
calm = retention.with_block(wakeups(4), name="calm")
