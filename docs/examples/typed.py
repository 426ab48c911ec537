"""A program as users write it, in which a type checker must know the type of everything that poetopt hands out.

    python docs/examples/try_extension.py --types

checks it with mypy --strict and pyright against the installed package, from outside of the repository.
"""

from __future__ import annotations

from typing import assert_type

import poetopt as po
from poetopt.formulations.language import Block, Formulation


def plan(name: str) -> po.Report:
    """Load, differentiate, cost, solve."""
    loaded = po.load(name)
    assert_type(loaded, po.Model | po.TrainingFile)
    training = loaded.differentiate(loss="cross-entropy")
    assert_type(training, po.Training | po.TrainingFile)
    board = po.device("a72")
    assert_type(board, po.Device)
    problem = training.cost(board)
    assert_type(problem, po.Problem)
    assert_type(problem.baseline_energy_j, float)
    report = po.solve(problem, ram="60%", deadline="1.5x", time_limit="10s", blocks=["flash-wear=50MB"])
    assert_type(report, po.Report)
    return report


def use(report: po.Report) -> float:
    """Execute and simulate."""
    assert_type(report.plan, po.Plan | None)
    execution = po.execute(report)
    assert_type(execution.bit_identical, bool)
    simulation = po.simulate(report)
    assert_type(simulation.energy_j, float)
    assert_type(report.to_dict(), dict[str, object])
    return simulation.makespan_s


def as_in_the_paper(problem: po.Problem) -> po.Report:
    """A formulation by its name, by its module, and as an object."""
    together = po.formulations.retention.with_block(po.formulations.flash_wear.flash_wear(50_000_000))
    assert_type(po.solve(problem, formulation="poet"), po.Report)
    assert_type(po.solve(problem, formulation=together), po.Report)
    return po.solve(problem, formulation=po.formulations.poet)


def formulate() -> Formulation:
    """Put a block into a formulation."""
    block = po.formulations.static_power.static_power(0.5)
    assert_type(block, Block)
    together = po.formulations.retention.with_block(block)
    assert_type(together, Formulation)
    assert_type(po.testing.check_block(block).binding, int)
    return together


if __name__ == "__main__":
    print(use(plan("vgg16-cifar")), formulate().name)
