"""A plan file checked again, and its bound proven again, without trusting whoever wrote either."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from poetopt.engine.certificate import Certificate, certify
from poetopt.engine.solution import DeadlineModel, Options
from poetopt.errors import PlanError
from poetopt.formulations.scope import scope_option
from poetopt.plan import codec
from poetopt.plan.simulate import Simulation, simulate
from poetopt.report.layout import table
from poetopt.units import show_joules, show_seconds, show_share


@dataclass(frozen=True)
class Verification:
    """What holds of a plan file: its simulation, and a certified bound where one was asked for."""

    name: str
    ram_bytes: int | None
    simulation: Simulation
    claimed: Mapping[str, object]
    certificate: Certificate | None

    def to_dict(self) -> dict[str, object]:
        """The JSON object of `poetopt verify`."""
        found: dict[str, object] = {
            "valid": True,
            "ram_budget_bytes": self.ram_bytes,
            "peak_bytes": self.simulation.peak_bytes,
            "energy_j": self.simulation.energy_j,
            "overhead_j": self.simulation.overhead_j,
            "makespan_s": self.simulation.makespan_s,
            "scope": self.claimed.get("scope"),
            "overhead_bound_j": self.claimed.get("overhead_bound_j"),
            "certificate": None if self.certificate is None else asdict(self.certificate),
        }
        return found

    def __str__(self) -> str:
        simulation = self.simulation
        rows = [
            ("plan", f"valid: {simulation.peak_bytes:,} B at its peak, within {self.ram_bytes:,} B; layout sound"),
            ("energy", f"{show_joules(simulation.energy_j)}, of it {show_joules(simulation.overhead_j)} overhead"),
        ]
        if self.certificate is not None:
            rows += _proof(self.certificate, simulation.overhead_j, self.claimed.get("overhead_bound_j"))
        return table(self.name, rows)


def _proof(found: Certificate, overhead_j: float, claimed: object) -> list[tuple[str, str]]:
    share = show_share(found.bound_j / overhead_j) if overhead_j else "all"
    lines = [
        (
            "certified",
            f"no schedule of the scope {found.scope} has less overhead than {show_joules(found.bound_j)}, {share} of "
            f"this plan's; exact arithmetic over {found.rows:,} rows, {found.cuts:,} cuts derived again, "
            f"{show_seconds(found.seconds)}",
        )
    ]
    if isinstance(claimed, float):
        lines.append(
            (
                "solver",
                f"{show_joules(claimed)}: what branching adds to the relaxation rests on the solver's word",
            )
        )
    return lines


def verify(path: str | os.PathLike[str], *, bound: bool = False, time_limit_s: float = 60.0) -> Verification:
    """Read a plan file, simulate it again under its budget and check its layout; with `bound`, certify its bound.

    Raises PlanError for a plan that is damaged or breaks a rule, or whose figures aren't what it says.
    """
    shown = os.fspath(path)
    loaded = codec.load(shown)
    claimed = dict(loaded.report or {})
    simulation = simulate(loaded.plan, ram_bytes=loaded.ram_bytes)
    for key in ("overhead_j", "energy_j", "peak_bytes", "makespan_s"):
        says, is_ = claimed.get(key), getattr(simulation, key)
        if isinstance(says, int | float) and abs(says - is_) > 1e-9 * max(abs(says), abs(is_)):
            raise PlanError(f"{shown}: it says {key} = {says}, and the simulation gives {is_}; solve it again")
    certificate = None
    if bound:
        certificate = certify(loaded.plan.problem, _options(shown, loaded, claimed, time_limit_s), _scope(claimed))
    return Verification(loaded.plan.problem.name, loaded.ram_bytes, simulation, claimed, certificate)


def _options(shown: str, loaded: codec.PlanFile, claimed: Mapping[str, object], time_limit_s: float) -> Options:
    if loaded.ram_bytes is None:
        raise PlanError(f"{shown}: it names no RAM budget, so there is no bound to prove")
    return Options(
        ram_bytes=loaded.ram_bytes,
        deadline_s=loaded.deadline_s,
        deadline_model=DeadlineModel(str(claimed.get("deadline_model", "makespan"))),
        formulation=str(claimed.get("formulation", "retention")),
        paging=claimed.get("paging") is not False,
        remat=claimed.get("remat") is not False,
        time_limit_s=time_limit_s,
    )


def _scope(claimed: Mapping[str, object]) -> str:
    scope = scope_option(str(claimed.get("scope") or "full"))
    return "full" if scope == "store-all" else scope
