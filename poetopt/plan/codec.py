"""Plan files: readable JSON with everything that is needed to check a plan without its model.

A plan file has, in this order:

    format, version     "poetopt-plan" and the version of this layout
    written_by          the version of poetopt
    model               name, reference, SHA-256, SHA-256 of its structure (older files lack it), and how the problem
                        was made from it (recipe, device, notes)
    budget              ram_bytes and deadline_s that the plan was made for, or null
    device              dma, paging, alignment, reserve_bytes, wake_j, resident_bytes, ram_bytes, and
                        storage_bytes (null: unknown), storage_block_bytes, runtime, runtime_version; older files
                        lack the last four
    tensors             name, bytes, producer (null: it exists when the step begins), costs of paging, home; and if
                        they differ from the default carried, result, updated_by
    operators           name, kind, count, inputs, outputs, workspace_bytes, time_s, energy_j, and flags; variants
                        if there are any
    inputs_at           byte offset of each graph input
    closing             tensors and operators of the updates that follow the last part of a batch, if there are any
    instructions        ["compute", operator, offset of each new output ..., offset of the workspace],
                        ["stream", operator, number of the variant, offsets as for compute],
                        ["page_out", tensor], ["page_in", tensor, offset], ["free", tensor]
    report              output of `solve --json`, if there is one

Version 1 lacks home and the fields after it. `poetopt.plan.tables` maps fields to keys.

Tensors and operators are named by their index in their table. A plan that has not been laid out has no
`inputs_at` and no offsets. Reading a file simulates the plan and checks its layout again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from poetopt.graph.problem import CLOSING, Problem, ProblemOperator, ProblemTensor
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.plan.layout import buffers, check_layout
from poetopt.plan.simulate import simulate
from poetopt.plan.tables import BLOCKS, LARGEST, number, parsed, report_model, table, told, whole_number
from poetopt.util import __version__
from poetopt.util.errors import PlanError, ProblemError
from poetopt.util.files import PLAN_BYTES, read_text, write_atomically
from poetopt.util.process import building

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = [
    "PlanFile",
    "from_json",
    "load",
    "save",
    "to_json",
    "to_text",
    "with_problem",
]

FORMAT = "poetopt-plan"
VERSION = 2
READ = (1, 2)
"""Versions that are read; fields that the first one lacks have their defaults."""

MOST_INSTRUCTIONS = 1_000_000
"""Maximum of a plan file. Plans of networks with 10,000 operators have about 60,000, and are read in seconds."""
STREAM = "stream"
"""Name of a compute by a variant: a program that knows no variants then rejects it."""
_ACTIONS = {str(action): action for action in Action}
UPDATES_KEY = "closing"
"""Key of the updates that follow the last part of a batch."""
_NOWHERE: list[int] = []
"""Offsets of an instruction that allocates nothing."""


@dataclass(frozen=True)
class PlanFile:
    """Content of a plan file.

    Attributes
    ----------
    plan
        The plan. Its problem has no graph unless `load` was called with a `problem_loader`.
    ram_bytes, deadline_s
        Budgets that the plan was made for.
    report
        Report of the solve loop; empty if the file has none.
    """

    plan: Plan
    ram_bytes: int | None = None
    deadline_s: float | None = None
    report: Mapping[str, object] = field(default_factory=dict, repr=False)


def to_json(
    plan: Plan,
    report: Mapping[str, object] | None = None,
    *,
    ram_bytes: int | None = None,
    deadline_s: float | None = None,
) -> dict[str, object]:
    """Return the object of a plan file, of dicts, lists, strings and finite numbers. `plan` must be valid."""
    problem = plan.problem
    offsets = _offsets(plan) if plan.offsets else None
    return {
        "format": FORMAT,
        "version": VERSION,
        "written_by": __version__,
        "model": BLOCKS["model"].row(problem),
        "budget": {"ram_bytes": ram_bytes, "deadline_s": deadline_s},
        "device": BLOCKS["device"].row(problem),
        **_tables(problem),
        **({} if problem.closing is None else {UPDATES_KEY: _tables(problem.closing)}),
        "inputs_at": offsets[0] if offsets else None,
        "instructions": [
            [*_row_head(step), *(offsets[index + 1] if offsets else ())] for index, step in enumerate(plan.instructions)
        ],
        "report": dict(report or {}),
    }


def _tables(problem: Problem) -> dict[str, object]:
    return {
        "tensors": [table(ProblemTensor).row(tensor) for tensor in problem.tensors],
        "operators": [table(ProblemOperator).row(operator) for operator in problem.operators],
    }


def to_text(
    plan: Plan,
    report: Mapping[str, object] | None = None,
    *,
    ram_bytes: int | None = None,
    deadline_s: float | None = None,
) -> str:
    """Return the text of a plan file: `to_json` with one line for each entry of the long tables."""
    return _to_readable(to_json(plan, report, ram_bytes=ram_bytes, deadline_s=deadline_s))


def save(
    plan: Plan,
    path: str | os.PathLike[str],
    report: Mapping[str, object] | None = None,
    *,
    ram_bytes: int | None = None,
    deadline_s: float | None = None,
) -> None:
    """Write a plan file completely or not at all. Raises OutputError if it can't be written."""
    write_atomically(path, to_text(plan, report, ram_bytes=ram_bytes, deadline_s=deadline_s))


def load(path: str | os.PathLike[str], problem_loader: Callable[[PlanFile], Problem] | None = None) -> PlanFile:
    """Read a plan file, simulate its plan and check its layout.

    Parameters
    ----------
    problem_loader
        Function that builds the problem again from the file's data. The plan's problem is then the file's, with the
        graph of the new one.

    Raises
    ------
    PlanError
        If the file can't be read, is damaged or of another version, if its plan isn't valid within its RAM budget, or
        if the new problem isn't the one in the file.
    """
    shown = os.fspath(path)
    try:
        text = read_text(path, PLAN_BYTES)
    except OSError as error:
        raise PlanError(f"can't read the plan file {shown}: {_describe_os_error(shown, error)}") from error
    except UnicodeDecodeError as error:
        raise PlanError(
            f"{shown} is not a plan file: it is not text. If it is a network, {_solve_hint(shown)}"
        ) from error
    try:
        file = from_json(parsed(text))
    except (PlanError, ProblemError) as error:
        raise PlanError(f"{shown}: {error}") from error
    return file if problem_loader is None else with_problem(file, problem_loader(file), shown)


def _describe_os_error(name: str, error: OSError) -> str:
    if isinstance(error, IsADirectoryError):
        return f"it is a folder. Give the plan in it, as in {os.path.join(name, 'plan.json')}"
    if isinstance(error, FileNotFoundError) and not os.path.splitext(name)[1]:
        return f"no such file. If {name} is a network, {_solve_hint(name)}"
    if isinstance(error, FileNotFoundError):
        return "no such file. `poetopt solve MODEL --device DEVICE -o PLAN` writes a plan"
    return error.strerror or str(error)


def _solve_hint(model: str) -> str:
    return f"solve it first: poetopt solve {model} --device a72 -o plan.json"


def with_problem(found: PlanFile, again: Problem, shown: str) -> PlanFile:
    """Return the plan file with the graph of its problem, which was built again; the file's costs stay.

    Parameters
    ----------
    shown
        Name of the file in messages.

    Raises
    ------
    PlanError
        If the new problem isn't the one in the file.
    """
    before = found.plan.problem
    if _structure(again) != _structure(before):
        raise PlanError(f"{shown}: the model {before.name!r} has changed since the plan was made. Solve it again")
    return replace(found, plan=replace(found.plan, problem=replace(before, graph=again.graph)))


def from_json(data: object) -> PlanFile:
    """Return the plan of a plan file's object, after simulating it and checking its layout.

    Raises
    ------
    PlanError
        For damaged or invalid data.
    ProblemError
        For a problem that can't be simulated yet.
    """
    if not isinstance(data, dict):
        raise PlanError("the plan file is not an object. The file is damaged")
    if data.get("format") != FORMAT:
        raise PlanError(f'it is not a plan file: "format" is not "{FORMAT}". If it is a model, {_solve_hint("MODEL")}')
    if data.get("version") not in READ:
        raise PlanError(
            f"it is a plan file of version {data.get('version')!r}, and this program reads version "
            f"{' or '.join(map(str, READ))}. Solve the model again, or use the poetopt that wrote it"
        )
    with building():
        top = _validate(data)
        problem = _problem(top)
        instructions, offsets = _instructions(top, problem)
    plan = Plan(problem, instructions)
    ram_bytes, deadline_s = top.budget.ram_bytes, top.budget.deadline_s
    simulate(plan, ram_bytes=ram_bytes)
    if offsets is not None:
        plan = Plan(problem, instructions, tuple(offset for group in offsets for offset in group))
        if any(len(group) != count for group, count in zip(offsets, _buffer_counts(plan), strict=True)):
            raise PlanError("an instruction has more or fewer offsets than buffers. The file is damaged")
        check_layout(plan, None if ram_bytes is None else ram_bytes - problem.reserve_bytes)
    return PlanFile(plan, ram_bytes, deadline_s, data["report"])


@cache
def _schema() -> type[BaseModel]:
    """Return the pydantic model of a plan file, down to each number; instructions are read one by one."""
    from pydantic import ConfigDict, create_model

    strict = ConfigDict(strict=True)
    budget = create_model(
        "Budget", __config__=strict, ram_bytes=(whole_number() | None, ...), deadline_s=(number() | None, ...)
    )
    parts: dict[str, Any] = {
        "model": BLOCKS["model"].model,
        "device": BLOCKS["device"].model,
        "tensors": list[table(ProblemTensor).model],  # type: ignore[misc]  # made at run time
        "operators": list[table(ProblemOperator).model],  # type: ignore[misc]
        "budget": budget,
        "inputs_at": list[whole_number()] | None,  # type: ignore[misc]
        "instructions": list[Any],
        "report": report_model(),
    }
    tables: dict[str, Any] = {key: (parts[key], ...) for key in ("tensors", "operators")}
    closing = create_model("Closing", __config__=strict, **tables)
    definitions: dict[str, Any] = {key: (kind, ...) for key, kind in parts.items()}
    definitions[UPDATES_KEY] = (closing | None, None)
    return create_model("PlanTable", __config__=strict, **definitions)


def _validate(data: dict[str, object]) -> Any:
    from pydantic import ValidationError

    try:
        return _schema().model_validate(data)
    except ValidationError as error:
        raise PlanError(told(error)) from error


def _structure(problem: Problem) -> tuple[object, ...]:
    """Return the facts that must agree for a plan to be executed: all but costs."""
    return (
        [(operator.name, operator.inputs, operator.outputs) for operator in problem.operators],
        [(tensor.name, tensor.nbytes, tensor.producer) for tensor in problem.tensors],
        problem.parts,
        None if problem.closing is None else _structure(problem.closing),
    )


def _problem(top: Any) -> Problem:
    tensors, operators = table(ProblemTensor), table(ProblemOperator)
    shared = {key: value for name, block in BLOCKS.items() for key, value in block.given(getattr(top, name)).items()}

    def build(rows: Any, updates: Problem | None, **extra: Any) -> Problem:
        return Problem(
            tensors=tuple(map(tensors.value, rows.tensors)),
            operators=tuple(map(operators.value, rows.operators)),
            closing=updates,
            **{**shared, **extra},
        )

    update_rows = getattr(top, UPDATES_KEY)
    try:
        return build(top, None if update_rows is None else build(update_rows, None, **CLOSING))
    except ProblemError as error:
        raise PlanError(f"{error}. The file is damaged") from error


def _instructions(top: Any, problem: Problem) -> tuple[tuple[Instruction, ...], list[list[int]] | None]:
    """Return the instructions, and the offsets of the graph inputs and of each instruction's allocations."""
    laid_out = top.inputs_at is not None
    offset_groups = [top.inputs_at] if laid_out else []
    rows = top.instructions
    if len(rows) > MOST_INSTRUCTIONS:
        raise PlanError(
            f"it has {len(rows):,} instructions, and at most {MOST_INSTRUCTIONS:,} are read. No plan of a training "
            "step needs that many. Solve the model again"
        )
    steps: list[Instruction] = []
    known: dict[tuple[str, int, int], Instruction] = {}  # few differ, so each is made once
    counts = {Action.COMPUTE: len(problem.operators)}
    for index, row in enumerate(rows):
        if type(row) is not list or len(row) < 2 or type(row[0]) is not str or type(row[1]) is not int:
            raise PlanError(f"instructions[{index}] is not an action, a target and offsets. The file is damaged")
        name, target, *offsets = row
        variant = 0
        if name == STREAM:
            if not offsets or type(offsets[0]) is not int:
                raise PlanError(f"instructions[{index}] has no variant number. The file is damaged")
            name, variant = str(Action.COMPUTE), offsets.pop(0)
            if not 0 <= target < len(problem.operators) or not 0 < variant <= len(problem.operators[target].variants):
                raise _index_error(index)
        step = known.get((name, target, variant))
        if step is None:
            action = _ACTIONS.get(name)
            if action is None:
                raise PlanError(f"instructions[{index}] is not an action, a target and offsets. The file is damaged")
            if not 0 <= target < counts.get(action, len(problem.tensors)):
                raise _index_error(index)
            step = known[name, target, variant] = Instruction(action, target, variant)
        for offset in offsets:
            if type(offset) is not int or not 0 <= offset <= LARGEST:
                raise _index_error(index)
        steps.append(step)
        offset_groups.append(offsets or _NOWHERE)
    return tuple(steps), offset_groups if laid_out else None


def _row_head(step: Instruction) -> list[Any]:
    """Return the beginning of the row of an instruction."""
    return [STREAM, step.target, step.variant] if step.variant else [str(step.action), step.target]


def _index_error(index: int) -> PlanError:
    return PlanError(f"instructions[{index}] has an impossible target or offset. The file is damaged")


def _offsets(plan: Plan) -> list[list[int]]:
    """Return the offsets of the graph inputs, then of the allocations of each instruction."""
    groups: list[list[int]] = [[] for _ in range(len(plan.instructions) + 1)]
    for buffer in buffers(plan):
        groups[buffer.first + 1].append(buffer.offset)
    return groups


def _buffer_counts(plan: Plan) -> list[int]:
    """Return the number of buffers before the first instruction, and the number that each one allocates."""
    counts = [0] * (len(plan.instructions) + 1)
    for buffer in buffers(Plan(plan.problem, plan.instructions)):
        counts[buffer.first + 1] += 1
    return counts


def _to_readable(data: Mapping[str, object]) -> str:
    """Return JSON with one line for each entry of the long tables."""
    entries = []
    for key, value in data.items():
        if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
            rows = ",\n  ".join(_dump(row) for row in value)
            entries.append(f"{_dump(key)}: [\n  {rows}\n ]")
        else:
            entries.append(f"{_dump(key)}: {_dump(value)}")
    return "{\n " + ",\n ".join(entries) + "\n}\n"


def _dump(value: object) -> str:
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise PlanError(f"the plan can't be written as JSON: {error}") from error
