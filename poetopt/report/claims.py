"""What a plan file's report says, held against the plan's simulation, its problem, and itself.

Nothing here is a matter of degree: what a report says follows from the plan beside it up to the rounding of sums, is
told by it alone (seconds that a search took), or is refused.
"""

from __future__ import annotations

import json
import math
import re
from typing import NoReturn

from poetopt.comparison.rows import COLUMNS
from poetopt.engine.solution import OPTIMAL_GAP, RAM, DeadlineModel, Status, share_open
from poetopt.errors import PlanError
from poetopt.formulations import NAMES
from poetopt.passes.blocks import is_block
from poetopt.plan.codec import PlanFile, encode_compact
from poetopt.plan.layout import arena_bytes
from poetopt.plan.simulate import RELATIVE_TOLERANCE, Simulation
from poetopt.plan.storeall import store_all_bytes
from poetopt.plan.text import LARGEST_NUMBER
from poetopt.plan.transfers import overlap
from poetopt.printable import shortened, shown
from poetopt.report.entries import Entry
from poetopt.report.memory import memory_fields, taken_bytes
from poetopt.report.told import check_told

SOLVED = (
    "status", "scope", "formulation", "backend", "operators", "tensors", "ram_budget_bytes", "store_all_peak_bytes",
    "resident_bytes", "peak_bytes", "arena_bytes", "baseline_energy_j", "energy_j", "overhead_j", "energy_bound_j",
    "overhead_bound_j", "gap", "overhead_gap", "makespan_s", "deadline_s", "recomputes", "page_outs", "page_ins",
    "plan_bytes", "build_s", "solve_s", "total_s",
)  # fmt: skip
"""What every report of a solve has; one of `compare --plans` has a row's columns instead. Versions add to them."""
ROW = tuple(name for name in COLUMNS if name not in ("beyond_scope", "scope_bound_j", "scope_gap"))
"""The columns of the first version."""
SCOPE = re.compile(r"store-all|full|forward|needed|depth<=\d{1,9}")
"""What our own formulations call their scopes in results."""
WITH_PLAN = (Status.OPTIMAL, Status.WITHIN_GAP, Status.FEASIBLE)
TEXTS = ("formulation", "backend", "granularity", "version", "method", "asked_scope")
FLAGS = ("beyond_scope", "paging", "remat", "interrupted")
LISTS = ("asks", "why", "notes")
NUMBERS = ("build_s", "solve_s", "total_s", "time_limit_s", "gap_tolerance")
TABLES = ("solver_options", "versions")
WHOLES = ("blocks", "threads")
NULLABLE_TEXTS = ("reason", "loss")
NULLABLE_NUMBERS = ("least_deadline_s", "deadline_bound_s")
NULLABLE_WHOLES = ("least_ram_bytes", "ram_bound_bytes", "fitting_batch", "process_peak_bytes")
TOLD = (
    "backend", "method", "reason", "why", "build_s", "solve_s", "total_s", "timing", "process_peak_bytes",
    "interrupted", "paging", "remat", "time_limit_s",
    "gap_tolerance", "asked_scope", "threads", "solver_options", "largest_batch", "micro_batches_tried", "training",
    "version", "versions",
)  # fmt: skip
"""What a search says of itself and of how it was asked, which no plan gives again."""


def check_claims(file: PlanFile, simulation: Simulation) -> None:
    """Refuse a report that lacks what each has, or says what can't be. An empty one says nothing.

    file, simulation
        The plan with its report, and what the plan does.

    Raises PlanError, naming the field.
    """
    if not file.report:
        return
    report = Entry(file.report, '"report"')
    for key in ROW if "method" in report.data else SOLVED:
        report.value(key)
    _kinds(report)
    _figures(report, file, simulation)
    _deadline(report, file, simulation)
    _network(report, file)
    check_told(report, simulation)
    _moves(report, file, simulation)
    _training(report, file, simulation)
    gap = _bound(report, file, simulation)
    _status(report, gap)


def _kinds(report: Entry) -> None:
    """What no simulation gives again is at least of the kind that is written."""
    for keys, read in (
        (TEXTS, report.text),
        (FLAGS, report.flag),
        (NUMBERS, report.number),
        (WHOLES, report.whole),
        (LISTS, lambda key: list(report.texts(key))),
        (NULLABLE_TEXTS, lambda key: report.optional(key, report.text)),
        (NULLABLE_NUMBERS, lambda key: report.optional(key, report.number)),
        (NULLABLE_WHOLES, lambda key: report.optional(key, report.whole)),
    ):
        for key in keys:
            if key in report.data:
                read(key)
    for key in TABLES:
        if key in report.data:
            entry = Entry(report.data[key], f'"report": "{key}"')
            for name in entry.data:
                entry.text(name)
    if "timing" in report.data:
        timing = Entry(report.data["timing"], '"report": "timing"')
        for key in timing.data:
            timing.number(key)


def _figures(report: Entry, file: PlanFile, simulation: Simulation) -> None:
    """What follows from the plan, the problem and the budget alone."""
    plan, problem = file.plan, file.plan.problem
    hidden = overlap(plan, simulation)
    found: dict[str, object] = {
        "energy_j": simulation.energy_j,
        "overhead_j": simulation.overhead_j,
        "peak_bytes": simulation.peak_bytes,
        "makespan_s": simulation.makespan_s,
        "recomputes": simulation.recomputes,
        "page_outs": simulation.page_outs,
        "page_ins": simulation.page_ins,
        "wakes": simulation.wakes,
        "bytes_paged": simulation.bytes_paged,
        "streamed_runs": simulation.streamed_runs,
        "bytes_streamed": simulation.bytes_streamed,
        "transfer_s": simulation.transfer_s,
        "hidden_bytes": hidden.hidden_bytes,
    }
    for key, value in found.items():
        _same(report, key, value, "the simulation gives")
    # a difference of sums, so that the rounding is theirs
    _same(report, "hidden_s", hidden.hidden_s, "the simulation gives", within=simulation.makespan_s)
    if plan.offsets:
        _same(report, "arena_bytes", arena_bytes(plan), "the layout takes")
        taken = taken_bytes(plan, simulation.peak_bytes, arena_bytes(plan))
        for key, value in memory_fields(problem, plan, simulation, taken).items():
            if problem.graph is not None or key != "parameter_bytes_in_ram":
                _same(report, key, value, "the plan gives")
    elif "arena_bytes" in report.data:
        report.optional("arena_bytes", report.whole)
    if "plan_bytes" in report.data:
        _same(report, "plan_bytes", len(encode_compact(plan)), "the plan's compact encoding takes")
    of_problem: dict[str, object] = {
        "baseline_energy_j": float(problem.baseline_energy_j),
        "baseline_time_s": float(problem.baseline_time_s),
        "operators": len(problem.operators),
        "tensors": len(problem.tensors),
        "resident_bytes": problem.resident_bytes,
        "reserve_bytes": problem.reserve_bytes,
        "device_ram_bytes": problem.device_ram_bytes,
        "model": problem.name,
        "model_ref": problem.model_ref or None,
        "model_hash": problem.model_hash or None,
        "device": problem.device,
    }
    for key, value in of_problem.items():
        _same(report, key, value, "the problem in the file gives")
    _same(report, "ram_budget_bytes", file.ram_bytes, "the file's budget is")
    if "store_all_peak_bytes" in report.data:
        peak = store_all_bytes(problem)
        _same(report, "store_all_peak_bytes", peak, "the problem in the file gives")
        _same(report, "store_all_fits", peak <= (file.ram_bytes or 0), "the problem in the file gives")


def _deadline(report: Entry, file: PlanFile, simulation: Simulation) -> None:
    """A deadline of the makespan is the file's budget, too; the paper's bounds the computes and is the report's."""
    if "deadline_s" not in report.data:
        return
    limit = report.optional("deadline_s", report.number)
    model = report.text("deadline_model") if "deadline_model" in report.data else str(DeadlineModel.MAKESPAN)
    if model not in tuple(DeadlineModel):
        report.refuse("deadline_model", " or ".join(f'"{known}"' for known in DeadlineModel))
    if model == DeadlineModel.MAKESPAN:
        _same(report, "deadline_s", file.deadline_s, "the file's budget is")
        return
    if file.deadline_s is not None:
        _refuse(report, "deadline_model", f"the file's budget has a deadline of the makespan, {file.deadline_s} s")
    if limit is not None and simulation.compute_s > limit * (1 + RELATIVE_TOLERANCE):
        _refuse(report, "deadline_s", f"all computes take {simulation.compute_s} s")


def _network(report: Entry, file: PlanFile) -> None:
    """What follows from the network, where it is there."""
    problem, graph = file.plan.problem, file.plan.problem.graph
    if graph is None:
        return
    _same(report, "loss", graph.loss_kind, "the network gives")
    _same(report, "granularity", str(problem.recipe.get("granularity", "operator")), "the file's recipe is")
    _same(report, "blocks", sum(map(is_block, graph.operators)), "the network gives")


def _moves(report: Entry, file: PlanFile, simulation: Simulation) -> None:
    """A plan made without something has none of it."""
    if report.data.get("remat") is False and simulation.recomputes:
        _refuse(report, "remat", f"the plan recomputes {simulation.recomputes} times")
    if report.data.get("paging") is False and simulation.page_outs + simulation.page_ins:
        _refuse(report, "paging", f"the plan has {simulation.page_outs} page-outs and {simulation.page_ins} page-ins")
    if report.data.get("paging") is True and not file.plan.problem.paging:
        _refuse(report, "paging", "the device in the file has no storage")
    if report.data.get("scope") == "store-all" and simulation.recomputes + simulation.page_outs + simulation.page_ins:
        _refuse(report, "scope", "the plan doesn't keep everything")


def _training(report: Entry, file: PlanFile, simulation: Simulation) -> None:
    """What is said of many steps is what one takes, times as many. Idle joules are the file's."""
    if report.data.get("training") is None:
        return
    said = Entry(report.data["training"], '"report": "training"')
    steps = said.whole("steps")
    _same(said, "time_s", steps * simulation.makespan_s, "the simulation gives")
    limit = report.optional("deadline_s", report.number)
    _same(said, "deadline_s", None if limit is None else steps * limit, "the deadline of a step gives")
    _same(said, "bytes_written", steps * simulation.bytes_written, "the plan gives")
    energy_j = said.number("energy_j")
    if energy_j < steps * simulation.energy_j * (1 - RELATIVE_TOLERANCE):
        _refuse(said, "energy_j", f"the simulation gives {steps * simulation.energy_j}")
    held = said.optional("battery_j", said.number)
    _same(said, "battery_share", None if held is None else energy_j / held, "joules and battery give")


def _bound(report: Entry, file: PlanFile, simulation: Simulation) -> float | None:
    """Check what is said to be proven against what was reached; the overhead gap that follows, or None."""
    overhead_j, problem = simulation.overhead_j, file.plan.problem
    objective = Entry(report.data["objective"], '"report": "objective"') if "objective" in report.data else None
    # null is for heuristics, and for what minimises something else
    proven = "method" not in report.data and (objective is None or objective.text("name") == "energy")
    bound_j = report.number("overhead_bound_j") if proven else report.optional("overhead_bound_j", report.number)
    if bound_j is not None and bound_j > overhead_j * (1 + RELATIVE_TOLERANCE):
        _refuse(report, "overhead_bound_j", f"the plan itself has less overhead, {overhead_j}")
    energy_bound_j = None if bound_j is None else problem.baseline_energy_j + bound_j
    _same(report, "energy_bound_j", energy_bound_j, "the baseline and the overhead bound give")
    baseline, value, bound = float(problem.baseline_energy_j), overhead_j, bound_j
    if objective is not None:
        baseline, value, bound = _objective(report, objective, file, simulation)
    gap = share = None
    if bound is not None:
        gap = share_open(value, bound)
        share = max(0.0, (value - bound) / (baseline + value)) if baseline + value > 0 else 0.0
    _same(report, "overhead_gap", gap, "bound and value give", within=1.0)
    _same(report, "gap", share, "bound and value give", within=1.0)
    of_scope = _of_scope(report, objective, value, bound)
    if report.data.get("beyond_scope") is True and of_scope != 0.0:
        _refuse(report, "beyond_scope", _open(of_scope))
    return gap


def _of_scope(report: Entry, objective: Entry | None, value: float, bound: float | None) -> float | None:
    """Check what is said to be proven of the scope; the gap that follows, or None. Older reports say that alone."""
    entry, key = (report, "scope_bound_j") if objective is None else (objective, "scope_bound")
    if key not in entry.data:
        return None if bound is None else share_open(value, bound)
    known = entry.optional(key, entry.number)
    if known is not None and known > value * (1 + RELATIVE_TOLERANCE):
        _refuse(entry, key, f"the plan itself has less, {value}")
    if (known or 0.0) < (bound or 0.0) * (1 - RELATIVE_TOLERANCE):
        _refuse(entry, key, f"no schedule at all has less than {bound}")
    energy = objective is None or objective.text("name") == "energy"
    _same(report, "scope_bound_j", known if energy else None, "what was minimised gives")
    gap = None if known is None else share_open(value, known)
    _same(report, "scope_gap", gap, "bound and value give", within=1.0)
    return gap


def _objective(
    report: Entry, objective: Entry, file: PlanFile, simulation: Simulation
) -> tuple[float, float, float | None]:
    """Baseline, value above it and bound of what was minimised. Joules and units of a block's own are the file's."""
    problem = file.plan.problem
    name = objective.text("name")
    objective.text("unit")
    baseline, value, whole = objective.number("baseline"), objective.number("overhead"), objective.number("value")
    bound = objective.optional("bound", objective.number)
    _same(objective, "value", baseline + value, "baseline and overhead give")
    if bound is not None and bound > value * (1 + RELATIVE_TOLERANCE):
        _refuse(objective, "bound", f"the plan itself has less, {value}")
    if name == "energy":
        _same(objective, "unit", "J", "energy is in")
        _same(objective, "baseline", simulation.energy_j - simulation.overhead_j, "the simulation gives", within=whole)
        _same(objective, "overhead", simulation.overhead_j, "the simulation gives")
        _same(objective, "bound", report.data["overhead_bound_j"], "the overhead bound is")
        return baseline, value, bound
    if name == RAM:
        _same(objective, "unit", "B", "RAM is in")
        _same(objective, "baseline", 0.0, "of RAM there is none without a schedule")
        _same(objective, "overhead", float(report.number("ram_budget_bytes")), "the budget is")
    elif report.data.get("formulation") in NAMES:
        _refuse(objective, "name", f"the formulation {report.data['formulation']} minimises energy")
    if report.data["overhead_bound_j"] is not None:
        _refuse(report, "overhead_bound_j", f"{shown(name)} was minimised, which proves nothing of energy; null")
    if name == "time":
        late_s = max(0.0, simulation.makespan_s - problem.baseline_time_s)
        _same(objective, "unit", "s", "time is in")
        _same(objective, "baseline", float(problem.baseline_time_s), "one pass takes")
        _same(objective, "overhead", late_s, "the simulation gives", within=simulation.makespan_s)
    return baseline, value, bound


def _status(report: Entry, gap: float | None) -> None:
    """The status and the scope are of those that there are, and the status is no better than the gap."""
    status = report.text("status")
    if status not in tuple(Status):
        report.refuse("status", " or ".join(f'"{known}"' for known in WITH_PLAN))
    if status not in WITH_PLAN:
        _refuse(report, "status", "there is a plan")
    scope = report.optional("scope", report.text)
    # rows of methods without a proof: nothing costs less than no overhead
    nothing_open = scope == "store-all" or (gap is None and report.data["overhead_j"] == 0)
    reached = math.inf if gap is None else gap
    if status == Status.OPTIMAL and not nothing_open and reached > OPTIMAL_GAP * (1 + RELATIVE_TOLERANCE):
        _refuse(report, "status", _open(gap))
    if status == Status.WITHIN_GAP:
        asked = report.number("gap_tolerance") if "gap_tolerance" in report.data else 1.0
        if reached > max(asked, OPTIMAL_GAP) * (1 + RELATIVE_TOLERANCE):
            _refuse(report, "status", _open(gap))
    if scope is None and report.data["overhead_bound_j"] is not None:
        _refuse(report, "scope", "a bound is of one")
    # packages name the scopes of their formulations as they like
    if str(report.data.get("formulation")).partition("+")[0] in NAMES and not SCOPE.fullmatch(str(scope)):
        report.refuse("scope", '"depth<=D" with a whole D, "needed", "forward", "full" or "store-all"')


def _open(gap: float | None) -> str:
    return "it tells no bound" if gap is None else f"a gap of {gap:.3g} of the overhead is open"


def _same(entry: Entry, key: str, value: object, whence: str, *, within: float = 0.0) -> None:
    """Refuse a field that isn't `value`, which is null, a text, a flag, a whole number or one with rounding.

    within
        What floats are rounded against, where it is larger than they are.
    """
    if key not in entry.data:
        return
    if value is None:
        same = entry.data[key] is None
    elif isinstance(value, bool):
        same = entry.flag(key) == value
    elif isinstance(value, str):
        same = entry.text(key) == value
    elif isinstance(value, int):
        same = entry.whole(key) == value
    else:
        assert isinstance(value, float)
        says = entry.data[key]
        # whole numbers of a file may be larger than any float
        if isinstance(says, bool) or not isinstance(says, int | float) or abs(says) > LARGEST_NUMBER:
            entry.refuse(key, "a number")
        same = math.isclose(says, value, rel_tol=RELATIVE_TOLERANCE, abs_tol=RELATIVE_TOLERANCE * within)
    if not same:
        _refuse(entry, key, f"{whence} {_json(value)}")


def _refuse(entry: Entry, key: str, why: str) -> NoReturn:
    raise PlanError(f"{entry.where} says {key} = {_json(entry.data[key])}, and {why}; solve it again")


def _json(value: object) -> str:
    """As it stands in the file, for a terminal."""
    return shortened(shown(json.dumps(value, ensure_ascii=False)))
