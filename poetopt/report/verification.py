"""A plan file checked again, and its bound proven again, without trusting whoever wrote either."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from poetopt.api.plans import check_model, model_place
from poetopt.engine.certificate import Certificate, certify
from poetopt.engine.solution import DeadlineModel, Options
from poetopt.errors import FormulationError, PlanError
from poetopt.formulations.scope import scope_option
from poetopt.plan import codec
from poetopt.plan.simulate import RELATIVE_TOLERANCE, Simulation, simulate
from poetopt.printable import shown as printable
from poetopt.report.claims import SCOPE, check_claims
from poetopt.report.layout import table
from poetopt.report.objective import minimised
from poetopt.units import show_joules, show_seconds, show_share

CERTIFIED = "retention"
"""The formulation whose relaxation is certified."""


@dataclass(frozen=True)
class Verification:
    """What holds of a plan file: its simulation, and a certified bound where one was asked for.

    file
        What was checked. Its report is empty where the file has none, its plan has no offsets where it isn't laid out.
    model
        The model that the file's problem was compared with, or None.
    not_compared
        Why it was compared with none.
    """

    file: codec.PlanFile
    simulation: Simulation
    certificate: Certificate | None
    model: str | None = None
    not_compared: str = ""

    def to_dict(self) -> dict[str, object]:
        """The JSON object of `poetopt verify`."""
        claimed = self.file.report
        found: dict[str, object] = {
            "valid": True,
            "ram_budget_bytes": self.file.ram_bytes,
            "deadline_s": self.file.deadline_s,
            "layout_checked": bool(self.file.plan.offsets),
            "report_checked": bool(claimed),
            "model_checked": self.model,
            "model_not_checked": self.not_compared or None,
            "peak_bytes": self.simulation.peak_bytes,
            "energy_j": self.simulation.energy_j,
            "overhead_j": self.simulation.overhead_j,
            "makespan_s": self.simulation.makespan_s,
            "scope": claimed.get("scope"),
            "overhead_bound_j": claimed.get("overhead_bound_j"),
            "certificate": None if self.certificate is None else asdict(self.certificate),
        }
        return found

    def __str__(self) -> str:
        simulation, budget = self.simulation, self.file.ram_bytes
        rows = [
            (
                "plan",
                f"valid: {simulation.peak_bytes:,} B at its peak, "
                + (f"within {budget:,} B; " if budget is not None else "and the file names no budget; ")
                + ("layout sound" if self.file.plan.offsets else "the file has no layout to check"),
            ),
            ("energy", f"{show_joules(simulation.energy_j)}, of it {show_joules(simulation.overhead_j)} overhead"),
            ("time", self._time()),
            (
                "model",
                f"the model was not compared: {self.not_compared}"
                if self.model is None
                else f"operators and tensors are those of {printable(self.model)}; joules and seconds are the file's",
            ),
        ]
        if not self.file.report:
            rows.append(("report", "the file has none that could be compared"))
        if self.certificate is not None:
            rows += _proof(self.certificate, simulation.overhead_j, self.file.report)
        return table(self.file.plan.problem.name, rows)

    def _time(self) -> str:
        taken = f"{show_seconds(self.simulation.makespan_s)} a step"
        deadline_s, paper_s = self.file.deadline_s, self.file.report.get("deadline_s")
        if deadline_s is not None:
            return f"{taken}, within {show_seconds(deadline_s)}"
        if isinstance(paper_s, int | float):
            computes = show_seconds(self.simulation.compute_s)
            return f"{taken}; {computes} of computes, within {show_seconds(paper_s)}"
        return f"{taken}, no deadline"


def _proof(found: Certificate, overhead_j: float, claimed: Mapping[str, object]) -> list[tuple[str, str]]:
    if found.bound_j > overhead_j * (1 + RELATIVE_TOLERANCE):
        share = "more than this plan's: it is none of them"
    else:
        share = f"{show_share(found.bound_j / overhead_j) if overhead_j else 'all'} of this plan's"
    without = [word for word, key in (("recomputation", "remat"), ("paging", "paging")) if claimed.get(key) is False]
    lines = [
        (
            "certified",
            f"no schedule of the scope {found.scope}{' without ' if without else ''}{' and '.join(without)} has less "
            f"overhead than {show_joules(found.bound_j)}, {share}; exact arithmetic over {found.rows:,} rows, "
            f"{found.cuts:,} cuts derived again, {show_seconds(found.seconds)}",
        )
    ]
    blocks = _blocks(claimed)
    if blocks:
        lines.append(
            (
                "blocks",
                f"{printable(blocks)} left out: blocks forbid schedules or weigh them, and add none: the bound holds",
            )
        )
    goal = minimised(claimed)
    if goal is not None:
        lines.append(
            ("minimised", f"{goal.name}, of which nothing is certified: the bound is of the overhead's joules")
        )
    bound_j = claimed.get("overhead_bound_j")
    if isinstance(bound_j, int | float):
        beyond = "what branching adds to the relaxation rests on the solver's word"
        told = beyond if bound_j > found.bound_j else "no more than is certified"
        lines.append(("solver", f"{show_joules(bound_j)}: {told}"))
    return lines


def verify(
    path: str | os.PathLike[str],
    *,
    bound: bool = False,
    time_limit_s: float = 60.0,
    model: str | os.PathLike[str] | None = None,
    compare_model: bool = True,
) -> Verification:
    """Check a plan file: simulate it under its budget and deadline, and hold its layout, report and model against that.

    bound
        Whether to certify a bound as well, in the scope that the report names.
    time_limit_s
        For the bound, in seconds.
    model
        Where the model is now; by default where the plan says, or beside the plan. It is left out where it isn't there.
    compare_model
        Whether the problem in the file is compared with it; reading a large one takes seconds.

    Raises PlanError for a plan that is damaged, breaks a rule or is late, for a report that the plan contradicts, for
    a problem that isn't its model's, and where there is no bound to certify; ModelError for a model that can't be read.
    """
    shown = os.fspath(path)
    loaded = codec.load(shown)
    try:
        simulation = simulate(loaded.plan, ram_bytes=loaded.ram_bytes, deadline_s=loaded.deadline_s)
        check_claims(loaded, simulation)
    except PlanError as error:
        raise PlanError(f"{shown}: {error}") from error
    problem, place, missing = loaded.plan.problem, None, ""
    if not compare_model:
        missing = "it was not asked for"
    elif not problem.model_hash:
        missing = "the file records no hash of it"
    else:
        place = model_place(shown, problem, model)
        missing = "" if place is not None else f"{printable(problem.model_ref or problem.name)} is not there"
    if place is not None:
        check_model(shown, loaded, place)
    certificate = _certificate(shown, loaded, time_limit_s) if bound else None
    return Verification(loaded, simulation, certificate, place, missing)


def _certificate(shown: str, loaded: codec.PlanFile, time_limit_s: float) -> Certificate:
    claimed = loaded.report
    if loaded.ram_bytes is None:
        raise PlanError(f"{shown}: it names no RAM budget, so there is no bound to prove")
    formulation = str(claimed.get("formulation", CERTIFIED)).partition("+")[0]
    deadline_s = claimed.get("deadline_s", loaded.deadline_s)
    options = Options(
        ram_bytes=loaded.ram_bytes,
        deadline_s=float(deadline_s) if isinstance(deadline_s, int | float) else None,
        deadline_model=DeadlineModel(str(claimed.get("deadline_model", DeadlineModel.MAKESPAN))),
        formulation=formulation,
        paging=claimed.get("paging") is not False,
        remat=claimed.get("remat") is not False,
        time_limit_s=time_limit_s,
    )
    scope = str(claimed.get("scope") or "full")
    if not SCOPE.fullmatch(scope):
        raise PlanError(f"{shown}: there is no bound to certify in a scope {printable(repr(scope))}")
    scope = scope_option(scope)
    try:
        return certify(loaded.plan.problem, options, "full" if scope == "store-all" else scope)
    except FormulationError as error:
        raise PlanError(f"{shown}: {error}") from error


def _blocks(claimed: Mapping[str, object]) -> str:
    """The blocks that were added to the formulation, as its name in the report tells them."""
    return " and ".join(str(claimed.get("formulation", "")).split("+")[1:])
