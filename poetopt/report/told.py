"""What a plan file's report says that neither its plan nor its problem gives again: held against what is ever written.

Beside a plan no solve writes why there is none, nor bounds on the RAM and the time of others. Texts are those that a
solve has, and fields the ones that this version knows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

from poetopt.comparison.rows import COLUMNS
from poetopt.engine.solution import RAM
from poetopt.errors import FormulationError, PlanError
from poetopt.formulations import NAMES
from poetopt.formulations.scope import NEEDED, kind_words, scope_depth
from poetopt.notes import About
from poetopt.plan.simulate import RELATIVE_TOLERANCE, Simulation
from poetopt.printable import shortened, shown
from poetopt.report.entries import Entry

SOLVED = (
    "status", "reason", "why", "scope", "formulation", "backend", "asks", "objective", "model", "model_ref",
    "model_hash", "device", "loss", "granularity", "blocks", "operators", "tensors", "ram_budget_bytes",
    "device_ram_bytes", "store_all_peak_bytes", "store_all_fits", "resident_bytes", "reserve_bytes", "peak_bytes",
    "arena_bytes", "baseline_energy_j", "energy_j", "overhead_j", "energy_bound_j", "overhead_bound_j", "scope_bound_j",
    "scope_gap", "beyond_scope",
    "gap", "overhead_gap", "makespan_s", "baseline_time_s", "deadline_s", "deadline_model", "least_ram_bytes",
    "ram_bound_bytes", "least_deadline_s", "fitting_batch", "deadline_bound_s", "recomputes", "page_outs", "page_ins",
    "wakes", "bytes_paged", "streamed_runs", "bytes_streamed", "transfer_s", "hidden_s", "hidden_bytes", "plan_bytes",
    "build_s", "solve_s", "total_s",
    "timing", "process_peak_bytes", "interrupted", "paging", "remat", "time_limit_s", "gap_tolerance",
    "asked_scope", "threads", "solver_options", "notes", "important", "version", "versions", "total_ram_bytes",
    "parameters", "parameter_bytes_in_ram", "bytes_written", "flash_bytes", "stack_bytes", "optimizer",
    "clip_norm", "clip_gradient_bytes", "clip_bytes_moved", "clip_recomputes", "clip_energy_j",
    "micro_batches", "micro_batches_tried", "runtime", "largest_batch",
    "training", "fits_device",
)  # fmt: skip
"""The fields that `solve` writes into a plan file."""
OBJECTIVE = ("name", "unit", "value", "baseline", "overhead", "bound", "scope_bound")
"""The fields of `objective`."""
OF_FAILURES = ("least_ram_bytes", "ram_bound_bytes", "least_deadline_s", "deadline_bound_s", "fitting_batch")
"""What is said where there is no plan, and null beside one."""

_DEPTHS = re.escape(kind_words("depth<=99")).replace("99", r"\d{1,9}")
_OTHERS = (kind_words(scope) for scope in ("depth<=0", "depth<=1", NEEDED, "forward", "full", "store-all"))
_KIND = "|".join((_DEPTHS, *map(re.escape, _OTHERS)))
_SHARE = r"[\d.,e+-]+ %"
REASON = re.compile(
    "|".join(
        (
            f"a schedule of the next kind, (?:{_KIND}), may save up to {_SHARE} of the overhead",
            f"nothing is proven of schedules of the next kind, (?:{_KIND}): give more --time-limit to search them",
            f"the plan is of a wider kind, (?:{_KIND}); a better one of that kind may save up to {_SHARE} of the "
            rf"overhead \(asked: {_SHARE}\)",
            "found after the time limit, in looking for what would help; more of it may find a better schedule",
            r"imported from [^\n]+ \(\w+ format\): simulated and laid out here, nothing proven",
            r"the plan is that of [\w+.-]+",
        )
    )
)
"""What is said of plans that were found."""


def check_told(report: Entry, simulation: Simulation) -> None:
    """Refuse what no solve writes beside a plan, and what contradicts itself. Kinds of values are checked already.

    Raises PlanError, naming the field.
    """
    found = report.data.get("objective")
    objective: Mapping[str, object] = found if isinstance(found, Mapping) else {}
    for key in OF_FAILURES:
        if key == "ram_bound_bytes" and objective.get("name") == RAM:
            if report.data.get(key) != objective.get("bound"):
                _refuse(report, key, "the objective has another bound")
        elif report.data.get(key) is not None:
            _refuse(report, key, "that is said only where there is no plan; null")
    if report.data.get("why"):
        _refuse(report, "why", "that is said only where there is no plan; []")
    if "total_s" in report.data:
        for key in ("build_s", "solve_s"):
            if key in report.data and report.number(key) > report.number("total_s") * (1 + RELATIVE_TOLERANCE):
                _refuse(report, key, f"all took {report.number('total_s')} s")
    if "asked_scope" in report.data and str(report.data.get("formulation")).partition("+")[0] in NAMES:
        _asked(report)
    _important(report)


def unknown(report: Mapping[str, object]) -> Iterator[str]:
    """Fields that this version doesn't write, `objective`'s included."""
    known = _written(report)
    yield from (key for key in report if key not in known)
    objective = report.get("objective")
    if isinstance(objective, Mapping):
        yield from (f"objective.{key}" for key in objective if key not in OBJECTIVE)


def missing(report: Mapping[str, object]) -> Iterator[str]:
    """Fields that this version writes, and the report hasn't, but for those that are null beside a plan."""
    yield from (key for key in _written(report) if key not in report and key not in OF_FAILURES)


def _written(report: Mapping[str, object]) -> Sequence[str]:
    """The fields that this version writes into such a report: of a solve, or of a method that was compared."""
    if "method" in report:
        return COLUMNS
    return SOLVED


def foreign(report: Mapping[str, object]) -> bool:
    """Whether its `reason` is a text that this version doesn't write."""
    reason = report.get("reason")
    return isinstance(reason, str) and bool(reason) and not REASON.fullmatch(reason)


def _asked(report: Entry) -> None:
    asked = report.text("asked_scope")
    if asked != "auto":
        try:
            scope_depth(asked)
        except FormulationError:
            report.refuse("asked_scope", '"auto", "depth:D", "needed", "forward" or "full"')


def _important(report: Entry) -> None:
    """Each of the important ones is one of the notes, of one of the kinds."""
    if "important" not in report.data:
        return
    notes = report.data.get("notes")
    said = notes if isinstance(notes, list) else []
    for index, value in enumerate(report.rows("important")):
        note = Entry(value, f'"report": important[{index}]')
        if note.text("about") not in tuple(About):
            note.refuse("about", " or ".join(f'"{about}"' for about in About))
        if note.text("text") not in said:
            _refuse(note, "text", '"notes" haven\'t that')


def _refuse(entry: Entry, key: str, why: str) -> NoReturn:
    says = shortened(shown(json.dumps(entry.data[key], ensure_ascii=False)))
    raise PlanError(f"{entry.where} says {key} = {says}, and {why}; solve it again")
