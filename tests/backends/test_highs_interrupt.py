"""Runs of HiGHS that another thread ends, by callbacks that are switched off until then."""

from __future__ import annotations

import highspy
import numpy as np

from poetopt.backends.solvers.highs_interrupt import Interrupt

INTERRUPTED = highspy.HighsModelStatus.kInterrupt
OPTIMAL = highspy.HighsModelStatus.kOptimal


def knapsacks(rows: int, columns: int) -> highspy.Highs:
    """The relaxation of a problem of market shares."""
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("presolve", "off")
    solver.setOptionValue("time_limit", 120.0)
    random = np.random.default_rng(1)
    x = [solver.addVariable(0, 1) for _ in range(columns)]
    off = [solver.addVariable(0, highspy.kHighsInf, obj=1.0) for _ in range(2 * rows)]
    for row, sizes in enumerate(random.integers(0, 100, size=(rows, columns)).tolist()):
        total = sum(size * one for size, one in zip(sizes, x, strict=True))
        solver.addConstr(total + off[2 * row] - off[2 * row + 1] == sum(sizes) // 2)
    return solver


def test_runs_until_it_is_set_and_again_once_it_is_cleared() -> None:
    solver, interrupt = knapsacks(5, 40), Interrupt()
    interrupt.attach(solver)
    solver.run()
    assert solver.getModelStatus() == OPTIMAL  # what is attached ends every run in which it is called
    interrupt.set()
    assert interrupt.is_set()
    solver.clearSolver()
    solver.run()
    assert solver.getModelStatus() == INTERRUPTED
    interrupt.clear()
    solver.run()
    assert solver.getModelStatus() == OPTIMAL


def test_what_is_attached_later_is_ended_too() -> None:
    solver, interrupt = knapsacks(5, 40), Interrupt()
    interrupt.set()
    interrupt.attach(solver)
    solver.run()
    assert solver.getModelStatus() == INTERRUPTED


def test_a_solver_that_is_gone_is_forgotten() -> None:
    interrupt = Interrupt()
    interrupt.attach(knapsacks(2, 4))
    solver = knapsacks(5, 40)
    interrupt.attach(solver)
    interrupt.set()
    solver.run()
    assert solver.getModelStatus() == INTERRUPTED
