"""Plans that are run where their memory counts: made ready by one process, run by another that reads no model.

The network, its training graph and ordinary training take several times what a plan does. All of that happens in
processes that have ended when the step begins, or begin when it has ended.
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
    """The outcome of a comparison with ordinary training.

    document, title, rows
        Of `run --json`, and for people.
    message
        What failed, in one sentence; empty where nothing did.
    digests
        Of what the step gave.
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
    """The step of a plan file and its data, made ready in a process of its own, for `po.train` in this one.

    model, allow_symlinks
        As for `load_plan`.
    data, seed
        As for `train`.
    check
        Whether `execute` compares the step with ordinary training there first; its outcome is the second of the two.
    dump, workdir
        As for `execute`, where it does.
    evaluates
        Whether the network is to be evaluated, too.

    Raises as `load_plan`, `load_batch` and `execute`; ExecutionError where the temporary folder has no room.
    """
    with _folder() as folder:
        # Written there first: a signal ends that process at once, and may leave no half of it beside `dump`.
        written = None if dump is None else folder / "dump.npz"
        asked = (plan, model, allow_symlinks, data, written, seed, workdir, check, evaluates, folder)
        what = "the plan beside ordinary training" if check else "reading the plan and its model"
        found = _call(what, _make_ready, *asked, told=told)
        if dump is not None and written is not None:
            with replacing(dump) as place:
                shutil.copyfile(written, place)
            written.unlink()
        with _room_in(folder):
            made = onnxruntime.Prepared.load(folder)
        yield made, found


def evaluated(path: Place, made: onnxruntime.Prepared, data: Place, *, told: Told = silent) -> Evaluation | None:
    """Loss and accuracy of a network's file by plain onnxruntime, in a process of its own; None where it can't tell.

    made
        The step that it was trained by, as `prepared` gave it.
    """
    return _call("the written file", _evaluate, Path(path), made.folder, data, told=told)


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
def _room_in(folder: Path) -> Iterator[None]:
    """Raise ExecutionError where the temporary folder fails; in the process that writes there, too."""
    try:
        yield
    except OSError as error:
        if isinstance(error, PoetError):
            raise
        raise ExecutionError(
            f"a step can't be made ready in {folder.parent}: {error.strerror or error}; make room there, or name "
            "another temporary folder (TMPDIR)"
        ) from error


def _call(what: str, function: Callable[..., T], *arguments: object, told: Told) -> T:
    """As `apart.call`; in this process where there are pipes to be read, which another one doesn't have."""
    if any(isinstance(path, (str, os.PathLike)) and is_special(path) for path in arguments):
        return function(*arguments, told=told)
    return process.call(what, function, *arguments, told=told)


def _read(plan: Place, model: Place | None, allow_symlinks: bool) -> PlanFile:
    found = load_plan(plan, model=model, allow_symlinks=allow_symlinks)
    if found.plan.problem.runtime == "c":
        raise OtherRuntimeError(f"{plan}: it is a plan for kernels in C, and onnxruntime's are other ones")
    return found


def _make_ready(
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

    loaded = _read(plan, model, allow_symlinks)
    found, graph, outcome = loaded.plan, graph_of(loaded.plan), None
    if check:
        from poetopt.report.execution import execution_document, execution_rows

        execution = execute(loaded, data=data, dump=dump, seed=seed, workdir=workdir, told=told)
        fed, (title, rows) = execution.batch, execution_rows(found, execution)
        document, left = execution_document(found, execution), digests(execution.results)
        outcome = Compared(document, title, tuple(rows), execution.message, left)
    elif data is None:
        fed = onnxruntime.random_batch(graph.whole, seed)
    else:
        fed = onnxruntime.load_batch(data, graph.whole, sets=True)
    made = onnxruntime.Prepared.of(found, graph, ram_bytes=loaded.ram_bytes, fed=fed, written=True)
    if evaluates:
        from poetopt.training.evaluate import Forward

        made = replace(made, models={**Forward.of(made.graph).models(), **made.models})
    with _room_in(folder):
        made.save(folder)
    return outcome
