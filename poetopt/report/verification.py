"""The verdict of `poetopt verify`: the figures of a plan file's report beside the recomputed ones."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from poetopt.backends.solvers.solver import names as backends
from poetopt.comparison.rows import COLUMNS
from poetopt.formulations import NAMES, formulation
from poetopt.formulations import names as formulations
from poetopt.formulations.goal import ENERGY, TIME
from poetopt.formulations.scope import ALL, scope_depth, scope_option
from poetopt.plan import codec
from poetopt.plan.assemble import store_all_bytes
from poetopt.plan.simulate import RELATIVE_TOLERANCE, Simulation
from poetopt.report.goals import WholeTraining
from poetopt.report.layout import Exact, Row, Summary, answer
from poetopt.report.proof import kind_searched
from poetopt.report.report import Report
from poetopt.search.diagnosis.certificate import Certificate
from poetopt.search.solution import (
    RAM,
    DeadlineModel,
    Objective,
    Options,
    Solution,
    Status,
    graded,
    share_open,
)
from poetopt.util.errors import FormulationError
from poetopt.util.figures import figures
from poetopt.util.text import shortened
from poetopt.util.text import shown as printable
from poetopt.util.units import finite, show_bytes, show_joules, show_seconds, show_share

CERTIFIED = "retention"
"""The formulation whose relaxation is certified."""
SCOPE = re.compile(r"store-all|full|forward|depth<=\d{1,9}")
"""Scopes of the built-in formulations in results."""
SLACK = 1e-5
"""Share of the overhead by which a certificate may fall short of a claim: the tolerances of solvers."""
WITH_PLAN = (Status.OPTIMAL, Status.WITHIN_GAP, Status.FEASIBLE)
TOLD = (
    "reason", "backend", "method", "timing", "process_peak_bytes", "interrupted", "time_limit_s", "gap_tolerance",
    "threads", "solver_options", "asks", "largest_batch", "micro_batches_tried", "version", "versions",
)  # fmt: skip
"""Keys that a search reports of itself and its options; no plan gives them again."""
OF_NETWORK = ("loss", "blocks", "batch", "notes", "important", "parameter_bytes_in_ram", "prediction_bytes")
OF_LAYOUT = ("arena_bytes", "total_ram_bytes", "fits_device", "prediction_bytes")


@dataclass(frozen=True)
class Taken:
    """A fact that is taken from the file because it can't be computed again, and the reason."""

    what: str
    why: str


@dataclass(frozen=True)
class Difference:
    """A figure of the file's report that differs from the recomputed one."""

    name: str
    file: object
    recomputed: object

    def __str__(self) -> str:
        return f"{printable(self.name)} = {_json(self.file)} in the file, {_json(self.recomputed)} computed again"


@dataclass(frozen=True, kw_only=True)
class RecomputedProblem:
    """A plan file, with the graph of its problem if the model is available.

    Attributes
    ----------
    file
        The plan file. Its report may be empty, and its plan may lack offsets.
    model, device
        Path of the model, and name or file of the device, that the problem was recomputed from; None if unavailable.
    recomputed
        Facts of the file that were recomputed and are the same.
    taken
        Facts that are taken from the file.
    weights, structure
        Whether the hash of the model's content, and of its structure, is the file's; None if unknown.
    """

    file: codec.PlanFile
    model: str | None = None
    device: str | None = None
    recomputed: tuple[str, ...] = ()
    taken: tuple[Taken, ...] = ()
    weights: bool | None = None
    structure: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Verification(RecomputedProblem, Summary):
    """Findings on a plan file: its simulation, recomputed figures, and a certified bound if that was asked for.

    Attributes
    ----------
    differs
        Figures of the report that differ from the recomputed ones.
    told
        Facts that a search reports of itself, which nothing contradicts and nothing confirms.
    uncertified
        Claims of the report that are not proven here.
    certificate, of_scope
        Certified bounds of all schedules, and of the report's scope if the report claims more of it.
    """

    simulation: Simulation
    certificate: Certificate | None = None
    differs: tuple[Difference, ...] = ()
    told: tuple[str, ...] = ()
    uncertified: tuple[str, ...] = ()
    of_scope: Certificate | None = None

    @property
    def whole(self) -> bool:
        """Return whether every claim was recomputed or proven, as `--strict` demands."""
        return not (self.taken or self.differs or self.uncertified)

    @property
    def doubts(self) -> str:
        """The differences, and the claims that were neither recomputed nor proven, in one line."""
        parts = [f"its report has other figures than its plan: {'; '.join(map(str, self.differs))}"]
        parts = parts if self.differs else []
        parts += [f"not certified: {claim}" for claim in self.uncertified]
        parts += [f"taken from the file: {', '.join(w)} ({why})" for why, w in self._taken_by_reason().items()]
        return "; ".join(parts)

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of `poetopt verify`."""
        claimed = self.file.report
        return {
            "valid": not self.differs,
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
            "differs": [asdict(entry) for entry in self.differs],
            "taken_from_file": [asdict(entry) for entry in self.taken],
            "told_by_search": list(self.told),
            "not_certified": list(self.uncertified),
            **figures(self.simulation, ("peak_bytes", "energy_j", "overhead_j", "makespan_s")),
            **{key: claimed.get(key) for key in ("scope", "overhead_bound_j", "scope_bound_j")},
            "certificate": None if self.certificate is None else asdict(self.certificate),
            "scope_certificate": None if self.of_scope is None else asdict(self.of_scope),
        }

    def title(self) -> str:
        """Return the network's name."""
        return self.file.plan.problem.name

    def rows(self, after: str | None = None) -> list[Row]:
        """Return the rows of the summary; `after` is what to do next."""
        simulation, budget = self.simulation, self.file.ram_bytes
        rows: list[Row] = answer(self._fit(), self._cost(), self._proof(), after or "")
        rows += [("differs", str(entry)) for entry in self.differs]
        if self.recomputed:
            rows.append(("model", self._model()))
        rows += [("from the file", f"{', '.join(whats)}: {why}") for why, whats in self._taken_by_reason().items()]
        if not self.file.report:
            rows.append(("report", "the file has no report to compare"))
        for certificate in (self.certificate, self.of_scope):
            if certificate is not None:
                rows += _proof(certificate, simulation.overhead_j, self.file.report)
        rows += [("not certified", claim) for claim in self.uncertified]
        within = f"{budget:,} B" if budget is not None else "no budget"
        rows.append(Exact(("plan", f"peak {simulation.peak_bytes:,} B of {within}")))
        if self.recomputed:
            rows.append(Exact(("computed again", f"{self._source()}: {'; '.join(self.recomputed)}")))
        if self.told:
            rows.append(Exact(("search says", f"{', '.join(self.told)}: nothing confirms them")))
        return rows

    def _fit(self) -> str:
        budget = "; the file names no budget"
        if self.file.ram_bytes is not None:
            budget = f" of {show_bytes(self.file.ram_bytes, 4)}"
        layout = "layout sound" if self.file.plan.offsets else "the file has no layout to check"
        return f"the plan is valid: peak {show_bytes(self.simulation.peak_bytes, 4)}{budget}; {layout}"

    def _cost(self) -> str:
        energy, overhead = show_joules(self.simulation.energy_j), show_joules(self.simulation.overhead_j)
        return f"{energy}, {overhead} of it overhead; {self._time()}"

    def _proof(self) -> str:
        """Return what is confirmed of the report's figures and bounds, in a line."""
        if self.differs:
            return f"the report is wrong: {len(self.differs)} of its figures differ from those computed again"
        parts = []
        if self.file.report:
            source = f" from {self._source()}" if self.recomputed else ""
            parts.append(f"energy, time and RAM were computed again{source}")
        if self.taken:
            parts.append(f"{len(self.taken)} {'facts are' if len(self.taken) > 1 else 'fact is'} the file's word")
        if self.uncertified:
            parts.append(
                f"{len(self.uncertified)} {'claims are' if len(self.uncertified) > 1 else 'claim is'} unproven"
            )
        elif self.certificate is not None:
            parts.append("its bound is certified in exact arithmetic")
        return "; ".join(parts)

    def _model(self) -> str:
        if self.structure is None:
            return "its content has the hash that the file records, and the file records none of its structure"
        if self.weights:
            return "content and structure have the hashes that the file records"
        return "its structure has the hash that the file records, its content another one: it was trained since"

    def _source(self) -> str:
        model = printable(self.model or "")
        return model if self.device is None else f"{model} on {printable(self.device)}"

    def _taken_by_reason(self) -> dict[str, list[str]]:
        by_reason: dict[str, list[str]] = {}
        for entry in self.taken:
            by_reason.setdefault(entry.why, []).append(entry.what)
        return by_reason

    def _time(self) -> str:
        words = f"{show_seconds(self.simulation.makespan_s)} a step"
        deadline_s, paper_s = self.file.deadline_s, self.file.report.get("deadline_s")
        if deadline_s is not None:
            return f"{words}, within {show_seconds(deadline_s)}"
        if isinstance(paper_s, int | float):
            computes = show_seconds(self.simulation.compute_s)
            return f"{words}; {computes} of computes, within {show_seconds(paper_s)}"
        return f"{words}, no deadline"


def compared(
    file: codec.PlanFile, simulation: Simulation
) -> tuple[tuple[Difference, ...], tuple[Taken, ...], tuple[str, ...]]:
    """Return how a report differs from its plan, the facts that can't be recomputed, and the search's own keys.

    Each figure is recomputed as a solve would write it, and must be the file's within the rounding of sums. Bounds
    can't be
    recomputed: they are taken from the file if they contradict nothing; certificates prove them.
    """
    report = file.report
    if not report:
        return (), (), ()
    recomputed = recounted(file, simulation)
    row = "method" in report
    written = COLUMNS if row else tuple(recomputed)
    exempt = set(TOLD)
    if file.plan.problem.graph is None and file.plan.problem.recipe:
        exempt.update(OF_NETWORK)
    if not file.plan.offsets:
        exempt.update(OF_LAYOUT)
    exempt.update(("notes", "important", "order"))  # other versions word them differently
    differs = tuple(
        Difference(key, report.get(key), recomputed[key])
        for key in written
        if key not in exempt and key in report and not _same(key, report[key], recomputed[key], simulation)
    )
    unverified = [
        Taken(printable(key), "not known to this version")
        for key in report
        if key not in (*written, *TOLD) and not key.startswith("order")
    ]
    unverified += [
        Taken(key, "the report lacks what this version writes")
        for key in written
        if key not in report and (row or recomputed[key] is not None or key in ("notes", "important"))
    ]
    if not file.plan.offsets and "arena_bytes" in report:
        unverified.append(Taken("arena_bytes", "the file has no layout"))
    name, *blocks = str(report.get("formulation", CERTIFIED)).split("+")
    if name not in formulations():
        unverified.append(Taken(f"formulation ({printable(name)})", "none of that name is installed"))
    backend, asks = report.get("backend"), report.get("asks")
    if backend is not None and backend not in backends():
        unverified.append(Taken(f"backend ({printable(str(backend))})", "none of that name is known"))
    if blocks or asks:
        words = ", ".join(map(str, asks)) if isinstance(asks, list) and asks else " and ".join(blocks)
        unverified.append(Taken(f"what blocks ask for ({printable(words)})", "the file has the words of that alone"))
    return differs, tuple(unverified), tuple(key for key in TOLD if key in report)


def recounted(file: codec.PlanFile, simulation: Simulation) -> dict[str, object]:
    """Return the report that a solve would write of the plan, with the scope and the bounds of the file's report.

    A claim that can't hold (a bound above the plan's own value, a status better than its gap) becomes the nearest that
    can.
    """
    report, plan, problem = file.report, file.plan, file.plan.problem
    moves = simulation.recomputes + simulation.page_outs + simulation.page_ins
    name = str(report.get("formulation", CERTIFIED))
    ours = name.partition("+")[0] in NAMES
    scope = str(report.get("scope") or "")
    if (ours and not SCOPE.fullmatch(scope)) or (scope == "store-all" and moves):
        scope = "" if "method" in report else "full"
    by_paper = report.get("deadline_model") == DeadlineModel.PAPER and file.deadline_s is None
    limit_s = finite(report.get("deadline_s")) if by_paper else file.deadline_s
    limit_s = max(limit_s, simulation.compute_s) if by_paper and limit_s is not None else limit_s
    total_s = _number(report, "total_s")
    options = Options(
        ram_bytes=file.ram_bytes or 0,
        deadline_s=limit_s,
        deadline_model=DeadlineModel.PAPER if by_paper else DeadlineModel.MAKESPAN,
        formulation=name,
        paging=report.get("paging") is not False or simulation.page_outs + simulation.page_ins > 0,
        remat=report.get("remat") is not False or simulation.recomputes > 0,
        scope=_asked(str(report.get("asked_scope")), ours),
    )
    objective = _objective(file, simulation, plain=name in NAMES)
    value = simulation.overhead_j if objective is None else objective.value or 0.0
    bound = _below(objective.bound if objective else finite(report.get("overhead_bound_j")), value)
    if bound is None and objective is None and report and "method" not in report:
        bound = 0.0
    claims = report if objective is None else _object(report.get("objective"))
    of_scope = _below(finite(claims.get("scope_bound_j" if objective is None else "scope_bound")), value)
    of_scope = max(of_scope, bound or 0.0) if of_scope is not None else None
    if "scope_bound_j" not in report:  # an older version, which knew only the bound of the scope
        of_scope = bound
    solution = Solution(
        status=_status(report, scope, None if bound is None else share_open(value, bound), simulation),
        scope=scope,
        options=options,
        plan=plan,
        simulation=simulation,
        overhead_bound_j=bound if objective is None else None,
        scope_bound=of_scope,
        outdone=report.get("beyond_scope") is True and of_scope is not None and share_open(value, of_scope) == 0.0,
        objective=objective,
        store_all_peak_bytes=store_all_bytes(problem),
        ram_bound_bytes=int(objective.bound) if objective and objective.name == RAM and objective.bound else None,
        build_s=min(_number(report, "build_s"), total_s),
        solve_s=min(_number(report, "solve_s"), total_s),
        total_s=total_s,
    )
    document = Report(problem=problem, solution=solution).to_dict()
    if "method" in report:
        document["solve_s"] = _number(report, "solve_s")
    document["training"] = _training(report, simulation, limit_s)
    document["ram_budget_bytes"] = file.ram_bytes
    # plan files lack them: readers make them from the figures
    return {key: value for key, value in document.items() if key not in ("proof", "proof_exact")}


def _objective(file: codec.PlanFile, simulation: Simulation, *, plain: bool) -> Objective | None:
    """Return the minimised quantity, if it isn't energy; values in a block's own unit are the file's."""
    claimed = _object(file.report.get("objective"))
    name, bound = claimed.get("name"), finite(claimed.get("bound"))
    if name == RAM:
        value = float(file.ram_bytes or 0)
        return Objective(RAM, "B", 0.0, value, _below(bound, value))
    if name == TIME.name and not plain:
        baseline_s = float(file.plan.problem.baseline_time_s)
        late_s = max(0.0, simulation.makespan_s - baseline_s)
        return Objective(TIME.name, "s", baseline_s, late_s, _below(bound, late_s))
    if not isinstance(name, str) or name == ENERGY.name or plain:
        return None
    value = _number(claimed, "overhead")
    return Objective(name, str(claimed.get("unit")), _number(claimed, "baseline"), value, _below(bound, value))


def _status(report: Mapping[str, object], scope: str, gap: float | None, simulation: Simulation) -> Status:
    """Return the status that the report names, if its gap allows it."""
    asked = finite(report.get("gap_tolerance", 1.0)) or 0.0
    nothing_open = scope == "store-all" or (gap is None and simulation.overhead_j == 0)
    best = Status.OPTIMAL if nothing_open else graded(gap, asked * (1 + RELATIVE_TOLERANCE))
    claimed = report.get("status")
    worse = WITH_PLAN[WITH_PLAN.index(best) :]
    return next((status for status in worse if status == claimed), best)


def _asked(scope: str, ours: bool) -> str:
    if scope == "auto" or not ours:
        return scope
    try:
        scope_depth(scope)
    except FormulationError:
        return "auto"
    return scope


def _training(report: Mapping[str, object], simulation: Simulation, limit_s: float | None) -> dict[str, object] | None:
    """Return the figures of the training that a report is of.

    Joules above those of its steps are the file's: those of idling. Raises FormulationError for an unknown formulation.
    """
    claimed = _object(report.get("training"))
    if not claimed:
        return None
    # raises early: only the formulation knows the energy of a step
    formulation(str(report.get("formulation", CERTIFIED)).partition("+")[0])
    counts = {key: claimed.get(key) for key in ("steps", "epochs", "samples", "batch")}
    given_counts = {key: value if isinstance(value, int) else None for key, value in counts.items()}
    run = WholeTraining(**{**given_counts, "steps": given_counts["steps"] or 0})  # type: ignore[arg-type]
    recomputed, energy_j = run.of(simulation, limit_s, simulation.energy_j), finite(claimed.get("energy_j"))
    if energy_j is not None and energy_j > (finite(recomputed["energy_j"]) or 0.0) * (1 + RELATIVE_TOLERANCE):
        recomputed["energy_j"] = energy_j
    return recomputed


def uncertified(
    claimed: Mapping[str, object],
    overhead_j: float,
    found: Certificate | None,
    of_scope: Certificate | None = None,
    why_none: str = "",
) -> tuple[str, ...]:
    """Return the bounds of a report that no certificate reaches, with the reason; statuses and gaps follow from them.

    That no schedule has an overhead below 0 needs no proof.

    Parameters
    ----------
    found, of_scope
        Certificates of all schedules, and of the scope; None: there is none.
    why_none
        Reason why there is no certificate; "" if none was asked for.
    """
    goal = _object(claimed.get("objective")).get("name", ENERGY.name)
    if goal != ENERGY.name:
        proven = claimed.get("status") in (Status.OPTIMAL, Status.WITHIN_GAP)
        proven = proven or bool(finite(_object(claimed["objective"]).get("scope_bound")))
        return (f"the status {claimed.get('status')} in {goal}: certificates are of energy",) if proven else ()
    left, certain_j = [], 0.0
    for key, certificate in (("overhead_bound_j", found), ("scope_bound_j", of_scope or found)):
        bound_j, certified_j = finite(claimed.get(key)) or 0.0, 0.0 if certificate is None else certificate.bound_j
        if bound_j > max(certain_j, certified_j) + SLACK * overhead_j:
            left.append(f"{key} = {show_joules(bound_j)}: {_certified(certificate, overhead_j, why_none)}")
        certain_j = max(certain_j, bound_j)
    return tuple(left)


def _certified(found: Certificate | None, overhead_j: float, why_none: str) -> str:
    if found is None:
        return why_none or "the solver says so; --bound proves it"
    certified = f"{show_joules(found.bound_j)} are certified" if found.bound_j > 0 else "nothing is certified"
    share = f", {show_share(found.bound_j / overhead_j)} of this plan's overhead" if found.bound_j > 0 else ""
    return f"{certified} in {printable(scope_option(found.scope))}{share}"


def _same(key: str, here: object, there: object, simulation: Simulation) -> bool:
    """Return whether two values are equal within the rounding of sums."""
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        return set(here) <= set(there) and all(_same(name, here[name], there[name], simulation) for name in here)
    if isinstance(there, float) and isinstance(here, int | float) and not isinstance(here, bool):
        within = {"j": simulation.energy_j, "s": simulation.makespan_s}.get(key.rpartition("_")[2], abs(there))
        within = 1.0 if key.endswith("gap") else within
        try:
            return math.isclose(here, there, rel_tol=RELATIVE_TOLERANCE, abs_tol=RELATIVE_TOLERANCE * within)
        except OverflowError:  # an integer of a file may exceed all floats
            return False
    return type(here) is type(there) and here == there


def _below(bound: float | None, value: float) -> float | None:
    return None if bound is None else min(max(bound, 0.0), value * (1 + RELATIVE_TOLERANCE))


def _number(data: Mapping[str, object], key: str) -> float:
    return max(finite(data.get(key)) or 0.0, 0.0)


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _json(value: object) -> str:
    """Return a value as in a file, for a terminal."""
    return shortened(printable(json.dumps(value, ensure_ascii=False)))


def _proof(found: Certificate, overhead_j: float, claimed: Mapping[str, object]) -> Iterator[Row]:
    if found.bound_j > overhead_j * (1 + RELATIVE_TOLERANCE):
        share = "more than this plan's: it is none of them"
    else:
        share = f"{show_share(found.bound_j / overhead_j) if overhead_j else 'all'} of this plan's"
    kind = kind_searched(
        found.scope, paging=claimed.get("paging") is not False, remat=claimed.get("remat") is not False
    )
    branches = f", each of {found.nodes:,} nodes closed by such a sum" if found.nodes else ""
    with_kind = "" if found.scope == ALL and "nothing" not in kind else f" {kind}"
    yield (
        "certified",
        f"no schedule{with_kind} has less overhead than {show_joules(found.bound_j)}, {share}; exact arithmetic over "
        f"{found.rows:,} rows, {found.cuts:,} cuts derived again{branches}, {show_seconds(found.seconds)}",
    )
    blocks = " and ".join(str(claimed.get("formulation", "")).split("+")[1:])
    if blocks:
        left = f"{printable(blocks)} left out: blocks forbid schedules or weigh them, and add none: the bound holds"
        yield "blocks", left
    goal = _object(claimed.get("objective")).get("name", ENERGY.name)
    if goal != ENERGY.name:
        words = "of which nothing is certified: the bound is of the overhead's joules"
        yield "minimised", f"{printable(str(goal))}, {words}"
