"""Runs of plans whose memory matters: one process prepares the step, another one runs it without reading the model.

The network, its training graph and ordinary training take several times the memory of a plan. All of them exist only
in processes that end before the step begins, or begin after it ends.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from poetopt.api.plans import execute, load_plan
from poetopt.backends import onnxruntime
from poetopt.util import process
from poetopt.util.errors import ExecutionError, OtherRuntimeError, PoetError
from poetopt.util.files import is_special, replacing, scratch_folder
from poetopt.util.progress import Told, silent

if TYPE_CHECKING:
    from poetopt.plan.codec import PlanFile
    from poetopt.training.evaluate import Evaluation

Place = str | os.PathLike[str]
T = TypeVar("T")


@dataclass(frozen=True)
class Compared:
    """Result of a comparison with ordinary training.

    Attributes
    ----------
    document, title, rows
        Output of `run --json`, and of its table.
    message
        Failure in one sentence; empty if there is none.
    digests
        Digests of the results of the step.
    """

    document: Mapping[str, object]
    title: str
    rows: tuple[tuple[str, str], ...]
    message: str
    digests: Mapping[str, bytes]


@contextmanager
def prepared(
    plan: Place,
    *,
    model: Place | None = None,
    allow_symlinks: bool = False,
    data: Place | None = None,
    dump: Place | None = None,
    seed: int = 0,
    workdir: Place | None = None,
    check: bool = False,
    evaluates: bool = False,
    told: Told = silent,
) -> Iterator[tuple[onnxruntime.Prepared, Compared | None]]:
    """Prepare the step of a plan file and its data in another process, for `po.train` in this one.

    Parameters
    ----------
    model, allow_symlinks
        As for `load_plan`.
    data, seed
        As for `train`.
    check
        Whether `execute` first compares the step with ordinary training there; the second value has the result.
    dump, workdir
        As for `execute`, if it runs.
    evaluates
        Whether the network will be evaluated too.

    Yields
    ------
    tuple
        The prepared step, and the result of the comparison or None.

    Raises
    ------
    ExecutionError
        If the temporary folder has no room.
    PoetError
        Other errors are those of `load_plan`, `load_batch` and `execute`.
    """
    with _folder() as folder:
        # The other process writes a copy: a signal ends it at once, and must not leave half a file at `dump`.
        dump_copy = None if dump is None else folder / "dump.npz"
        arguments = (plan, model, allow_symlinks, data, dump_copy, seed, workdir, check, evaluates, folder)
        task = "the plan beside ordinary training" if check else "reading the plan and its model"
        comparison = _call_in_subprocess(task, _prepare, *arguments, told=told)
        if dump is not None and dump_copy is not None:
            with replacing(dump) as path:
                shutil.copyfile(dump_copy, path)
            dump_copy.unlink()
        with _writing_to(folder):
            step = onnxruntime.Prepared.load(folder)
        yield step, comparison


def evaluated(path: Place, made: onnxruntime.Prepared, data: Place, *, told: Told = silent) -> Evaluation | None:
    """Return loss and accuracy of a network's file by onnxruntime alone, in another process; None if it has no loss.

    Parameters
    ----------
    made
        Step that trained it, from `prepared`.
    """
    return _call_in_subprocess("the written file", _evaluate, Path(path), made.folder, data, told=told)


def _evaluate(path: Path, folder: Path, data: Place, *, told: Told) -> Evaluation | None:
    from poetopt.training.data import open_data
    from poetopt.training.evaluate import evaluate_file

    graph = onnxruntime.Prepared.load(folder).graph.of_data
    return evaluate_file(path, graph, open_data(data, graph))


@contextmanager
def _folder() -> Iterator[Path]:
    with scratch_folder("step") as folder:
        yield Path(folder)


@contextmanager
def _writing_to(folder: Path) -> Iterator[None]:
    """Raise ExecutionError if the temporary folder can't be written, in either process."""
    try:
        yield
    except OSError as error:
        if isinstance(error, PoetError):
            raise
        raise ExecutionError(
            f"a step can't be prepared in {folder.parent}: {error.strerror or error}. Make room there, or name another "
            "temporary folder (TMPDIR)"
        ) from error


def _call_in_subprocess(task: str, function: Callable[..., T], *arguments: object, told: Told) -> T:
    """Call `function` in a subprocess, or in this process if an argument is a pipe, which a subprocess can't read."""
    if any(isinstance(path, (str, os.PathLike)) and is_special(path) for path in arguments):
        return function(*arguments, told=told)
    return process.call(task, function, *arguments, told=told)


def _load_plan(plan: Place, model: Place | None, allow_symlinks: bool) -> PlanFile:
    found = load_plan(plan, model=model, allow_symlinks=allow_symlinks)
    if found.plan.problem.runtime == "c":
        raise OtherRuntimeError(f"{plan}: it is a plan for kernels in C, not for onnxruntime")
    return found


def _prepare(
    plan: Place,
    model: Place | None,
    allow_symlinks: bool,
    data: Place | None,
    dump: Place | None,
    seed: int,
    workdir: Place | None,
    check: bool,
    evaluates: bool,
    folder: Path,
    *,
    told: Told,
) -> Compared | None:
    from poetopt.backends.onnxruntime.reference import digests
    from poetopt.backends.step.places import graph_of

    loaded = _load_plan(plan, model, allow_symlinks)
    loaded_plan, graph, outcome = loaded.plan, graph_of(loaded.plan), None
    if check:
        from poetopt.report.execution import execution_document, execution_rows

        execution = execute(loaded, data=data, dump=dump, seed=seed, workdir=workdir, told=told)
        batch, (title, rows) = execution.batch, execution_rows(loaded_plan, execution)
        document, result_digests = execution_document(loaded_plan, execution), digests(execution.results)
        outcome = Compared(document, title, tuple(rows), execution.message, result_digests)
    elif data is None:
        batch = onnxruntime.random_batch(graph.whole, seed)
    else:
        batch = onnxruntime.load_batch(data, graph.whole, sets=True)
    step = onnxruntime.Prepared.of(loaded_plan, graph, ram_bytes=loaded.ram_bytes, fed=batch, written=True)
    if evaluates:
        from poetopt.training.evaluate import Forward

        step = replace(step, models={**Forward.of(step.graph).models(), **step.models})
    with _writing_to(folder):
        step.save(folder)
    return outcome
