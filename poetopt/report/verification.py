"""What holds of a plan file, as `poetopt verify` tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from poetopt.diagnosis.certificate import Certificate
from poetopt.plan import codec
from poetopt.plan.simulate import RELATIVE_TOLERANCE, Simulation
from poetopt.printable import shown as printable
from poetopt.report.layout import table
from poetopt.report.objective import minimised
from poetopt.report.proof import kind_searched
from poetopt.units import show_joules, show_seconds, show_share


@dataclass(frozen=True)
class Taken:
    """What is taken from the file because it can't be computed again, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class Verification:
    """What holds of a plan file: its simulation, what was computed again, and a certified bound if that was asked for.

    file
        What was checked. Its report is empty where the file has none, its plan has no offsets where it isn't laid out.
    model, device
        What the file's problem was computed from again; None where that isn't there.
    recomputed
        What of the file was computed again, and is the same.
    taken
        What was not, and is taken from the file.
    told
        What a search says of itself, which nothing contradicts and nothing confirms.
    uncertified
        What is said to be proven, and isn't proven here.
    weights, structure
        Whether the model's content, and its structure, have the hashes that the file records; None where that isn't
        known.
    certificate, of_scope
        Certified bounds on all schedules, and on those of the report's scope where the report says more of these.
    """

    file: codec.PlanFile
    simulation: Simulation
    certificate: Certificate | None
    model: str | None = None
    device: str | None = None
    recomputed: tuple[str, ...] = ()
    taken: tuple[Taken, ...] = ()
    told: tuple[str, ...] = ()
    uncertified: tuple[str, ...] = ()
    weights: bool | None = None
    structure: bool | None = None
    of_scope: Certificate | None = None

    @property
    def whole(self) -> bool:
        """Whether all that is claimed was computed again or proven: what `--strict` asks for."""
        return not self.taken and not self.uncertified

    @property
    def doubts(self) -> str:
        """What was neither computed again nor proven, in one line."""
        parts = [f"not certified: {claim}" for claim in self.uncertified]
        parts += [f"taken from the file: {', '.join(w)} ({why})" for why, w in self._taken_by_reason().items()]
        return "; ".join(parts)

    def to_dict(self) -> dict[str, object]:
        """The JSON object of `poetopt verify`."""
        claimed = self.file.report
        found: dict[str, object] = {
            "valid": True,
            "ram_budget_bytes": self.file.ram_bytes,
            "deadline_s": self.file.deadline_s,
            "layout_checked": bool(self.file.plan.offsets),
            "report_checked": bool(claimed),
            "whole": self.whole,
            "model_checked": self.model,
            "model_not_checked": None if self.model is not None else next((t.why for t in self.taken), None),
            "model_hash_matches": self.weights,
            "structure_hash_matches": self.structure,
            "device_checked": self.device,
            "recomputed": list(self.recomputed),
            "taken_from_file": [asdict(entry) for entry in self.taken],
            "told_by_search": list(self.told),
            "not_certified": list(self.uncertified),
            "peak_bytes": self.simulation.peak_bytes,
            "energy_j": self.simulation.energy_j,
            "overhead_j": self.simulation.overhead_j,
            "makespan_s": self.simulation.makespan_s,
            "scope": claimed.get("scope"),
            "overhead_bound_j": claimed.get("overhead_bound_j"),
            "scope_bound_j": claimed.get("scope_bound_j"),
            "certificate": None if self.certificate is None else asdict(self.certificate),
            "scope_certificate": None if self.of_scope is None else asdict(self.of_scope),
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
        ]
        if self.recomputed:
            rows.append(("recomputed", f"{self._source()}: {'; '.join(self.recomputed)}"))
            rows.append(("model", self._model()))
        rows += [("from the file", f"{', '.join(whats)}: {why}") for why, whats in self._taken_by_reason().items()]
        if not self.file.report:
            rows.append(("report", "the file has none that could be compared"))
        for certificate in (self.certificate, self.of_scope):
            if certificate is not None:
                rows += _proof(certificate, simulation.overhead_j, self.file.report)
        rows += [("not certified", claim) for claim in self.uncertified]
        if self.told:
            rows.append(("told by search", f"{', '.join(self.told)}: nothing confirms it"))
        return table(self.file.plan.problem.name, rows)

    def _model(self) -> str:
        if self.structure is None:
            return "its content has the hash that the file records, and the file records none of its structure"
        if self.weights:
            return "content and structure have the hashes that the file records"
        return "its structure has the hash that the file records, its content another one: it was trained since"

    def _source(self) -> str:
        model = f"from {printable(self.model or '')}"
        return model if self.device is None else f"{model} on {printable(self.device)}"

    def _taken_by_reason(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for entry in self.taken:
            found.setdefault(entry.why, []).append(entry.what)
        return found

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
    kind = kind_searched(
        found.scope, paging=claimed.get("paging") is not False, remat=claimed.get("remat") is not False
    )
    lines = [
        (
            "certified",
            f"no schedule of the kind ({kind}) has less overhead than {show_joules(found.bound_j)}, {share}; "
            f"exact arithmetic over {found.rows:,} rows, {found.cuts:,} cuts derived again{_branches(found)}, "
            f"{show_seconds(found.seconds)}",
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
    return lines


def _branches(found: Certificate) -> str:
    return f", each of {found.nodes:,} nodes closed by such a sum" if found.nodes else ""


def _blocks(claimed: Mapping[str, object]) -> str:
    """The blocks that were added to the formulation, as its name in the report tells them."""
    return " and ".join(str(claimed.get("formulation", "")).split("+")[1:])
