"""`check_backend` catches what doesn't keep the contract: HiGHS with one fault at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from poetopt.backends.solvers.highs import HighsSession
from poetopt.backends.solvers.solver import Capability, Outcome, Relaxation, Search
from poetopt.formulations.rows import Row
from poetopt.testing import ContractError
from tests.support.contract.backend import check_backend


class NoConstant(HighsSession):
    def _objective(self, value: float) -> float:
        return value / self._scale


class CallsItOptimal(HighsSession):
    def search(self, **more: Any) -> Search:
        found = super().search(**more)
        return replace(found, outcome=Outcome.OPTIMAL) if found.point is not None else found


class LosesFrozen(HighsSession):
    def search(self, **more: Any) -> Search:
        return super().search(**{**more, "frozen": ()})


class BoundTooHigh(HighsSession):
    def search(self, **more: Any) -> Search:
        found = super().search(**more)
        return replace(found, bound=found.bound + 0.01)


class InfeasibleIsStopped(HighsSession):
    def relax(self, time_limit_s: float) -> Relaxation:
        found = super().relax(time_limit_s)
        return replace(found, outcome=Outcome.STOPPED) if found.outcome is Outcome.INFEASIBLE else found


class DropsRows(HighsSession):
    def add(self, rows: Sequence[Row]) -> None:
        super().add([row for row in rows if not math.isclose(row.lower, 7.0)])


class OtherCapabilities(HighsSession):
    capabilities = frozenset({Capability.BOUND})


class Faulty:
    name = "faulty"
    capabilities = HighsSession.capabilities

    def __init__(self, session: type[HighsSession]) -> None:
        self.session = session

    def open(self, model: Any, **more: Any) -> HighsSession:
        return self.session(model, **more)


@pytest.mark.parametrize(
    ("session", "words"),
    [(NoConstant, "optimum is 4.5, not 1.5"), (CallsItOptimal, "`stopped` also where it has an incumbent"),
     (LosesFrozen, "frozen"), (BoundTooHigh, "proves its optimum"),
     (InfeasibleIsStopped, "the relaxation of an infeasible model is stopped"), (DropsRows, "`added` holds the rows"),
     (OtherCapabilities, "its sessions' capabilities")],
)  # fmt: skip
def test_one_fault(session: type[HighsSession], words: str) -> None:
    with pytest.raises(ContractError, match=words):
        check_backend(Faulty(session), problems=4, schedules=0)


def test_without_a_fault_it_passes() -> None:
    assert check_backend(Faulty(HighsSession), problems=2, schedules=1).name == "faulty"
