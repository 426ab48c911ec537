"""Runs of HiGHS that another thread ends, by callbacks that are switched off until then."""

from __future__ import annotations

import threading

import highspy
import numpy as np

from poetopt.backends.highs_interrupt import SEARCH, SIMPLEX, Interrupt

INTERRUPTED = highspy.HighsModelStatus.kInterrupt
OPTIMAL = highspy.HighsModelStatus.kOptimal


def knapsacks(rows: int, columns: int, *, integer: bool) -> highspy.Highs:
    """A problem of market shares, which a search takes hours for, or its relaxation."""
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("presolve", "off")
    solver.setOptionValue("time_limit", 120.0)
    random = np.random.default_rng(1)
    kind = highspy.HighsVarType.kInteger if integer else highspy.HighsVarType.kContinuous
    x = [solver.addVariable(0, 1, type=kind) for _ in range(columns)]
    off = [solver.addVariable(0, highspy.kHighsInf, obj=1.0) for _ in range(2 * rows)]
    for row, sizes in enumerate(random.integers(0, 100, size=(rows, columns)).tolist()):
        total = sum(size * one for size, one in zip(sizes, x, strict=True))
        solver.addConstr(total + off[2 * row] - off[2 * row + 1] == sum(sizes) // 2)
    return solver


def test_runs_until_it_is_set_and_again_once_it_is_cleared() -> None:
    solver, interrupt = knapsacks(5, 40, integer=False), Interrupt()
    interrupt.attach(solver, SIMPLEX)
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
    solver, interrupt = knapsacks(5, 40, integer=False), Interrupt()
    interrupt.set()
    interrupt.attach(solver)
    solver.run()
    assert solver.getModelStatus() == INTERRUPTED


def test_ends_a_search_at_work() -> None:
    solver, interrupt, began = knapsacks(7, 50, integer=True), Interrupt(), threading.Event()
    interrupt.attach(solver, SEARCH)
    solver.cbMipImprovingSolution += lambda _: began.set()
    thread = threading.Thread(target=solver.run)
    thread.start()
    assert began.wait(60)
    interrupt.set()
    thread.join(60)
    assert not thread.is_alive()
    assert solver.getModelStatus() == INTERRUPTED


def test_a_solver_that_is_gone_is_forgotten() -> None:
    interrupt = Interrupt()
    interrupt.attach(knapsacks(2, 4, integer=False))
    solver = knapsacks(5, 40, integer=False)
    interrupt.attach(solver)
    interrupt.set()
    solver.run()
    assert solver.getModelStatus() == INTERRUPTED
