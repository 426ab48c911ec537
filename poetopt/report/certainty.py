"""What a plan file's report says is proven, held against what a certificate proves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from poetopt.diagnosis.certificate import Certificate
from poetopt.engine.solution import OPTIMAL_GAP, Status
from poetopt.plan.simulate import Simulation
from poetopt.printable import shown
from poetopt.report.objective import minimised
from poetopt.units import show_joules, show_share

SLACK = 1e-5
"""Share of the overhead by which a certificate may fall short of what is said: what solvers' tolerances come to."""


def uncertified(
    claimed: Mapping[str, object],
    simulation: Simulation,
    found: Certificate | None,
    why_none: str = "",
    of_scope: Certificate | None = None,
) -> tuple[str, ...]:
    """What a report says to be proven, and nothing here proves, with the reason; empty where nothing is left.

    That nothing has less overhead than none needs no proof, and that a bound is at least 0 neither.

    found, of_scope, why_none
        The certificates: of all schedules, and of the scope. None: there is none, for that reason, or because none was
        asked for.
    """
    overhead_j = simulation.overhead_j
    goal = minimised(claimed)
    if goal is not None:
        proven = goal.scope_bound or claimed.get("status") in (Status.OPTIMAL, Status.WITHIN_GAP)
        return (f"the status {claimed.get('status')} in {goal.name}: certificates are of energy",) if proven else ()
    certified_j = 0.0 if found is None else found.bound_j
    known = found if of_scope is None or certified_j >= of_scope.bound_j else of_scope
    left = [(" and ".join(_beyond(claimed, overhead_j, certified_j)), found)]
    bound_j = claimed.get("scope_bound_j")
    if isinstance(bound_j, int | float) and bound_j > _least(claimed):
        short = bound_j > (0.0 if known is None else known.bound_j) + SLACK * overhead_j
        claim = f"the bound of {show_joules(bound_j)} in {shown(str(claimed.get('scope')))}"
        left.append((claim if short else "", known))
    return tuple(f"{claims}: {_certified(one, overhead_j, why_none)}" for claims, one in left if claims)


def _least(claimed: Mapping[str, object]) -> float:
    """What is said of all schedules, which is of those of the scope as well."""
    bound_j = claimed.get("overhead_bound_j")
    return float(bound_j) if isinstance(bound_j, int | float) else 0.0


def _certified(found: Certificate | None, overhead_j: float, why_none: str) -> str:
    if found is None:
        return why_none or "the solver says so; --bound proves it"
    certified = f"{show_joules(found.bound_j)} are certified" if found.bound_j > 0 else "nothing is certified"
    share = f", {show_share(found.bound_j / overhead_j)} of this plan's overhead" if found.bound_j > 0 else ""
    return f"{certified} in {shown(found.scope)}{share}"


def claimed_bound_j(claimed: Mapping[str, object], overhead_j: float, key: str = "overhead_bound_j") -> float:
    """The bound in joules that would certify what a report says under a key."""
    bound_j = claimed.get(key)
    return (float(bound_j) if isinstance(bound_j, int | float) else overhead_j) - SLACK / 2 * overhead_j


def _beyond(claimed: Mapping[str, object], overhead_j: float, certified_j: float) -> Iterator[str]:
    """The claims that `certified_j` doesn't reach."""
    slack_j = SLACK * overhead_j
    status, bound_j = str(claimed.get("status")), claimed.get("overhead_bound_j")
    if isinstance(bound_j, int | float) and bound_j > certified_j + slack_j:
        yield f"the bound of {show_joules(bound_j)}"
    asked = claimed.get("gap_tolerance")
    tolerances = {Status.OPTIMAL: 0.0, Status.WITHIN_GAP: float(asked) if isinstance(asked, int | float) else 0.0}
    for known, tolerance in tolerances.items():
        if status == known and overhead_j - certified_j > max(tolerance, OPTIMAL_GAP) * overhead_j + slack_j:
            yield f"the status {status}"
