"""Plans as files: readable JSON that holds all that is needed to check a plan without its model.

A plan file has, in this order:

    format, version     "poetopt-plan" and the version of this layout
    written_by          the version of poetopt
    model               name, reference, SHA-256, that of its structure (older files lack it), and how the problem was
                        made of it (recipe, device, notes)
    budget              ram_bytes and deadline_s that the plan was made for, or null
    device              dma, paging, alignment, reserve_bytes, wake_j, resident_bytes, ram_bytes, and
                        storage_bytes (null: not known), storage_block_bytes, runtime, runtime_version; files before
                        them lack the four
    tensors             name, bytes, producer (null: there when the step begins), costs of paging, home; and where
                        they are not the default carried, result, updated_by
    operators           name, kind, count, inputs, outputs, workspace_bytes, time_s, energy_j, and flags; variants
                        where there are any
    inputs_at           byte offset of each graph input
    closing             tensors and operators of what follows the last part of a batch, where something does
    instructions        ["compute", operator, offset of each new output ..., offset of the workspace],
                        ["stream", operator, number of the variant, offsets as of compute],
                        ["page_out", tensor], ["page_in", tensor, offset], ["free", tensor]
    report              what `solve --json` printed, where there is one

Version 1 lacks home and what follows it. `poetopt.plan.tables` says how fields become keys.

Tensors and operators are named by their place in their table. A plan that has not been laid out has no
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
"""Files of these versions are read: what the first lacks has its default."""

MOST_INSTRUCTIONS = 1_000_000
"""Of a plan file: networks of 10,000 operators have plans of some 60,000, and these take some seconds."""
STREAM = "stream"
"""The name of a compute by a variant, so that a program that knows none takes it for nothing else."""
_ACTIONS = {str(action): action for action in Action}
_NOWHERE: list[int] = []
"""The offsets of an instruction that allocates nothing."""


@dataclass(frozen=True)
class PlanFile:
    """The content of a plan file.

    plan
        Its problem has no graph, unless `load` was given a `problem_loader`.
    ram_bytes, deadline_s
        The budgets that the plan was made for.
    report
        What the solve loop said of it; empty where the file has none.
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
    """The plan file's object, of dicts, lists, strings and finite numbers alone. `plan` must be valid."""
    problem = plan.problem
    places = _offsets(plan) if plan.offsets else None
    return {
        "format": FORMAT,
        "version": VERSION,
        "written_by": __version__,
        "model": BLOCKS["model"].row(problem),
        "budget": {"ram_bytes": ram_bytes, "deadline_s": deadline_s},
        "device": BLOCKS["device"].row(problem),
        **_tables(problem),
        **({} if problem.closing is None else {"closing": _tables(problem.closing)}),
        "inputs_at": places[0] if places else None,
        "instructions": [
            [*_named(step), *(places[index + 1] if places else ())] for index, step in enumerate(plan.instructions)
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
    """The plan file's content: `to_json`, with one line for each entry of the long tables."""
    return _readable(to_json(plan, report, ram_bytes=ram_bytes, deadline_s=deadline_s))


def save(
    plan: Plan,
    path: str | os.PathLike[str],
    report: Mapping[str, object] | None = None,
    *,
    ram_bytes: int | None = None,
    deadline_s: float | None = None,
) -> None:
    """Write a plan file, whole or not at all. Raises OutputError where it can't be written."""
    write_atomically(path, to_text(plan, report, ram_bytes=ram_bytes, deadline_s=deadline_s))


def load(path: str | os.PathLike[str], problem_loader: Callable[[PlanFile], Problem] | None = None) -> PlanFile:
    """Read a plan file, simulate its plan and check its layout.

    problem_loader
        Makes the problem again from what the file says; the plan's problem is then the file's, with that graph.

    Raises PlanError where the file can't be read, is damaged, of another version, holds a plan that is not valid
    within its RAM budget, or where the problem made again is not the one in the file.
    """
    shown = os.fspath(path)
    try:
        text = read_text(path, PLAN_BYTES)
    except OSError as error:
        raise PlanError(f"can't read the plan file {shown}: {_unread(shown, error)}") from error
    except UnicodeDecodeError as error:
        raise PlanError(f"{shown} is not a plan file: it is not text; {_solve_it(shown)}") from error
    try:
        found = from_json(parsed(text))
    except (PlanError, ProblemError) as error:
        raise PlanError(f"{shown}: {error}") from error
    return found if problem_loader is None else with_problem(found, problem_loader(found), shown)


def _unread(shown: str, error: OSError) -> str:
    if isinstance(error, IsADirectoryError):
        return f"it is a folder; give the plan in it, as in {os.path.join(shown, 'plan.json')}"
    if isinstance(error, FileNotFoundError) and not os.path.splitext(shown)[1]:
        return f"no such file; if {shown} is a network, {_solve_it(shown)}"
    if isinstance(error, FileNotFoundError):
        return "no such file; a plan is what `poetopt solve MODEL --device DEVICE -o PLAN` writes"
    return error.strerror or str(error)


def _solve_it(model: str) -> str:
    return f"solve it first: poetopt solve {model} --device a72 -o plan.json"


def with_problem(found: PlanFile, again: Problem, shown: str) -> PlanFile:
    """The plan file with the graph of its problem, made again; its own costs stay.

    shown
        What messages call the file.

    Raises PlanError where that isn't the problem in the file.
    """
    before = found.plan.problem
    if _structure(again) != _structure(before):
        raise PlanError(f"{shown}: the model {before.name!r} has changed since the plan was made; solve it again")
    return replace(found, plan=replace(found.plan, problem=replace(before, graph=again.graph)))


def from_json(data: object) -> PlanFile:
    """The plan of a plan file's object, simulated and with its layout checked.

    Raises PlanError for what is damaged or not valid, ProblemError for a problem that can't be simulated yet.
    """
    if not isinstance(data, dict):
        raise PlanError("the plan file is not an object; the file is damaged")
    if data.get("format") != FORMAT:
        raise PlanError(f'it is not a plan file: "format" is not "{FORMAT}"; where it is a model, {_solve_it("MODEL")}')
    if data.get("version") not in READ:
        raise PlanError(
            f"it is a plan file of version {data.get('version')!r}, and this program reads version "
            f"{' or '.join(map(str, READ))}; solve the model again, or use the poetopt that wrote it"
        )
    with building():
        top = _checked(data)
        problem = _problem(top)
        instructions, places = _instructions(top, problem)
    plan = Plan(problem, instructions)
    ram_bytes, deadline_s = top.budget.ram_bytes, top.budget.deadline_s
    simulate(plan, ram_bytes=ram_bytes)
    if places is not None:
        plan = Plan(problem, instructions, tuple(offset for group in places for offset in group))
        if any(len(group) != count for group, count in zip(places, _counts(plan), strict=True)):
            raise PlanError("an instruction has more or fewer offsets than it makes buffers; the file is damaged")
        check_layout(plan, None if ram_bytes is None else ram_bytes - problem.reserve_bytes)
    return PlanFile(plan, ram_bytes, deadline_s, data["report"])


@cache
def _schema() -> type[BaseModel]:
    """The content of a plan file, checked down to each number; instructions are read one by one."""
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
    both: dict[str, Any] = {key: (parts[key], ...) for key in ("tensors", "operators")}
    closing = create_model("Closing", __config__=strict, **both)
    definitions: dict[str, Any] = {key: (kind, ...) for key, kind in parts.items()}
    definitions["closing"] = (closing | None, None)
    return create_model("PlanTable", __config__=strict, **definitions)


def _checked(data: dict[str, object]) -> Any:
    from pydantic import ValidationError

    try:
        return _schema().model_validate(data)
    except ValidationError as error:
        raise PlanError(told(error)) from error


def _structure(problem: Problem) -> tuple[object, ...]:
    """The facts that have to be the same for a plan to be executed: all but costs."""
    return (
        [(operator.name, operator.inputs, operator.outputs) for operator in problem.operators],
        [(tensor.name, tensor.nbytes, tensor.producer) for tensor in problem.tensors],
        problem.parts,
        None if problem.closing is None else _structure(problem.closing),
    )


def _problem(top: Any) -> Problem:
    tensors, operators = table(ProblemTensor), table(ProblemOperator)
    own = {key: value for name, block in BLOCKS.items() for key, value in block.given(getattr(top, name)).items()}

    def made(rows: Any, **more: Any) -> Problem:
        return Problem(
            tensors=tuple(map(tensors.value, rows.tensors)),
            operators=tuple(map(operators.value, rows.operators)),
            **{**own, **more},
        )

    try:
        last = None if top.closing is None else made(top.closing, **CLOSING)
        return made(top, closing=last)
    except ProblemError as error:
        raise PlanError(f"{error}; the file is damaged") from error


def _instructions(top: Any, problem: Problem) -> tuple[tuple[Instruction, ...], list[list[int]] | None]:
    """The instructions; the offsets of the graph inputs and of what each instruction allocates."""
    laid_out = top.inputs_at is not None
    places = [top.inputs_at] if laid_out else []
    rows = top.instructions
    if len(rows) > MOST_INSTRUCTIONS:
        raise PlanError(
            f"it has {len(rows):,} instructions, and at most {MOST_INSTRUCTIONS:,} are read: no plan of a step that is "
            "trained has as many; solve the model again"
        )
    steps: list[Instruction] = []
    known: dict[tuple[str, int, int], Instruction] = {}  # few are different: they are made once
    counts = {Action.COMPUTE: len(problem.operators)}
    for index, row in enumerate(rows):
        if type(row) is not list or len(row) < 2 or type(row[0]) is not str or type(row[1]) is not int:
            raise PlanError(f"instructions[{index}] is not an action, a target and offsets; the file is damaged")
        name, target, *offsets = row
        variant = 0
        if name == STREAM:
            if not offsets or type(offsets[0]) is not int:
                raise PlanError(f"instructions[{index}] has no number of a variant; the file is damaged")
            name, variant = str(Action.COMPUTE), offsets.pop(0)
            if not 0 <= target < len(problem.operators) or not 0 < variant <= len(problem.operators[target].variants):
                raise _impossible(index)
        step = known.get((name, target, variant))
        if step is None:
            action = _ACTIONS.get(name)
            if action is None:
                raise PlanError(f"instructions[{index}] is not an action, a target and offsets; the file is damaged")
            if not 0 <= target < counts.get(action, len(problem.tensors)):
                raise _impossible(index)
            step = known[name, target, variant] = Instruction(action, target, variant)
        for offset in offsets:
            if type(offset) is not int or not 0 <= offset <= LARGEST:
                raise _impossible(index)
        steps.append(step)
        places.append(offsets or _NOWHERE)
    return tuple(steps), places if laid_out else None


def _named(step: Instruction) -> list[Any]:
    """The beginning of an instruction's row."""
    return [STREAM, step.target, step.variant] if step.variant else [str(step.action), step.target]


def _impossible(index: int) -> PlanError:
    return PlanError(f"instructions[{index}] has a target or offset that can't be; the file is damaged")


def _offsets(plan: Plan) -> list[list[int]]:
    """Offsets of the graph inputs, then of what each instruction allocates."""
    groups: list[list[int]] = [[] for _ in range(len(plan.instructions) + 1)]
    for buffer in buffers(plan):
        groups[buffer.first + 1].append(buffer.offset)
    return groups


def _counts(plan: Plan) -> list[int]:
    """Numbers of buffers before the first instruction, and how many each one makes."""
    counts = [0] * (len(plan.instructions) + 1)
    for buffer in buffers(Plan(plan.problem, plan.instructions)):
        counts[buffer.first + 1] += 1
    return counts


def _readable(data: Mapping[str, object]) -> str:
    """JSON with one line for each entry of the long tables."""
    parts = []
    for key, value in data.items():
        if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
            rows = ",\n  ".join(_dumped(row) for row in value)
            parts.append(f"{_dumped(key)}: [\n  {rows}\n ]")
        else:
            parts.append(f"{_dumped(key)}: {_dumped(value)}")
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def _dumped(value: object) -> str:
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise PlanError(f"the plan can't be written as JSON: {error}") from error
