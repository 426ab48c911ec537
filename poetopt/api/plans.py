"""Uses of a plan: simulate it, load it from its file, execute it, train with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from poetopt import zoo
from poetopt.api.models import Model, differentiated, read
from poetopt.api.training import Training, TrainingFile, bytes_alone, parameters_of
from poetopt.backends import onnxruntime
from poetopt.devices.meters import Meter, open_meter
from poetopt.frontends.reading import from_recipe
from poetopt.plan import codec
from poetopt.plan.codec import PlanFile
from poetopt.plan.instructions import Plan
from poetopt.plan.simulate import Simulation
from poetopt.plan.simulate import simulate as check_plan
from poetopt.util.errors import ModelError, OptionError, PlanError
from poetopt.util.files import is_special
from poetopt.util.progress import telling
from poetopt.util.text import exported

if TYPE_CHECKING:
    from poetopt.graph.problem import Problem
    from poetopt.report.report import Report
    from poetopt.util.progress import Told


def simulate(
    plan: Plan | PlanFile | Report | str | os.PathLike[str],
    *,
    ram_bytes: int | None = None,
    deadline_s: float | None = None,
) -> Simulation:
    """Return exact bytes, joules and seconds of a plan, or of a plan file.

    Raises
    ------
    PlanError
        For a plan that is invalid or exceeds a budget.
    """
    return check_plan(plan_in(read_plan(plan)), ram_bytes=ram_bytes, deadline_s=deadline_s)


def load_plan(
    path: str | os.PathLike[str], *, model: str | os.PathLike[str] | None = None, allow_symlinks: bool = False
) -> PlanFile:
    """Read a plan file and its model, so that its `plan` can be executed.

    Parameters
    ----------
    model
        Path of the model; by default the path in the plan, or a file of that name beside the plan.
    allow_symlinks
        As in `load`; a plan can't allow it for its model.

    Raises
    ------
    PlanError
        For a damaged file, the plan of a problem file, or a model that is missing or has changed.
    ModelError
        For a model that can't be read.
    """
    shown = os.fspath(path)
    return codec.load(
        path,
        lambda found: _problem_to_execute(
            shown, found.plan.problem, _require_model(shown, found.plan.problem, model), allow_symlinks=allow_symlinks
        ),
    )


def model_place(plan: str, problem: Problem, given: str | os.PathLike[str] | None = None) -> str | None:
    """Return the path of a plan's model: `given`, the path in the plan, or beside the plan; None if it is missing."""
    if given is not None:
        return os.fspath(given)
    reference = problem.model_ref
    return reference if reference in zoo.names() else beside(plan, reference)


def beside(plan: str, reference: str, what: str = "model") -> str | None:
    """Return the path of a file that a plan names: that path, or one beside the plan; None if it is missing.

    Parameters
    ----------
    what
        `model` or `device`, for messages and their option.
    """
    for place in (reference, os.path.join(os.path.dirname(plan), os.path.basename(reference))):
        if reference and os.path.exists(place):
            if is_special(place):
                raise PlanError(f"{plan}: {place}, its {what}, is not a regular file. Give its path with --{what} FILE")
            return place
    return None


def execute(
    plan: Plan | PlanFile | Report | str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | Mapping[str, object] | None = None,
    dump: str | os.PathLike[str] | None = None,
    seed: int = 0,
    workdir: str | os.PathLike[str] | None = None,
    threads: int = 1,
    told: Told | None = None,
    progress: bool = False,
) -> onnxruntime.Execution:
    """Run a plan on onnxruntime inside one arena, run ordinary training too, and compare them bit by bit.

    The budget is that of the report or plan file, or the peak of a bare plan. The result has the outcome of the checks
    (`ok`, `message`).

    Parameters
    ----------
    plan
        A plan, the result of `solve` or `load_plan`, or the path of a plan file.
    data
        A batch: arrays by input name, or an `.npz` file of them. By default a random one, drawn with `seed`.
    dump
        File for the batch, the loss and the gradients, as `.npz`. If the model has a tensor `loss`, the loss is named
        as in the training graph, `loss.2`.
    workdir
        Folder of the paging file; by default the system's temporary folder.
    threads
        Threads of each kernel. A plan reserves the allocations of kernels with one; with more the budget may be
        exceeded.
    told, progress
        Function that is called with each next action, never while a clock runs; and whether to write that to stderr.
        Listeners to the log `poetopt` at INFO get it there.

    Raises
    ------
    PlanError
        For a plan without a network, or for the runtime c (see `execute_on`).
    ModelError
        For data that don't fit.
    ExecutionError
        If a kernel or the storage fails.
    """
    loaded = read_plan(plan)
    execution = onnxruntime.execute(
        plan_in(loaded),
        ram_bytes=budget_of(loaded),
        data=data,
        seed=seed,
        workdir=workdir,
        threads=threads,
        told=told or telling(progress),
    )
    if dump is not None:
        onnxruntime.save_results(execution, dump)
    return execution


def train(
    plan: Plan | PlanFile | Report | onnxruntime.Prepared | str | os.PathLike[str],
    steps: int,
    lr: float,
    *,
    momentum: float | None = None,
    data: str | os.PathLike[str] | Mapping[str, object] | None = None,
    dump: str | os.PathLike[str] | None = None,
    seed: int = 0,
    workdir: str | os.PathLike[str] | None = None,
    check: int | None = None,
    meter: str | Meter | None = None,
    told: Told | None = None,
    progress: bool = False,
) -> onnxruntime.TrainingRun:
    """Run steps of gradient descent with a plan, and nothing else.

    Parameters
    ----------
    plan
        As for `execute`, or the result of `prepared`.
    lr, momentum
        Hyperparameters of the plan's optimizer, with its default momentum. A step that ends with gradients takes plain
        descent.
    data
        Arrays by input name, or an `.npz` file of them. An array of exactly an input's shape is used in every step. An
        array that is longer along the first axis is a data set, which is read in batches, in order and repeatedly. By
        default one random batch, drawn with `seed`.
    dump
        File for `losses` (`losses.2` if a parameter has that name), and parameters and statistics after the last step,
        as `.npz`.
    check
        With `1`, every step is compared with ordinary training, bit by bit; with N, each Nth step from the first on.
        The comparison follows the last step; with the result of `prepared` it runs in another process.
    meter
        As for `Trainer.fit`.
    told, progress
        As for `execute`.

    Raises
    ------
    OptionError
        For invalid numbers.
    PoetError
        Other errors are those of `execute`.
    """
    loaded = plan if isinstance(plan, onnxruntime.Prepared) else read_plan(plan)
    return onnxruntime.train(
        loaded if isinstance(loaded, onnxruntime.Prepared) else plan_in(loaded),
        steps,
        lr,
        momentum=momentum,
        ram_bytes=loaded.ram_bytes if isinstance(loaded, onnxruntime.Prepared) else budget_of(loaded),
        data=data,
        dump=dump,
        seed=seed,
        workdir=workdir,
        check=check,
        meter=None if meter is None else open_meter(meter),
        told=told or telling(progress),
    )


def again(
    plan: str,
    problem: Problem,
    reference: str,
    costed: Callable[[Training | TrainingFile], Problem],
    *,
    allow_symlinks: bool = False,
) -> Problem:
    """Return the problem of a plan file, built again from the model in `reference`, with costs by `costed`.

    Raises
    ------
    PlanError
        For another model.
    ModelError
        For a model that can't be read.
    """
    try:
        options = from_recipe(problem.recipe, allow_symlinks=allow_symlinks)
    except (ModelError, OptionError) as error:
        raise PlanError(f"{plan}: its options for reading the model are invalid: {error}") from error
    loaded = read(reference, options)
    if not made_for(problem, loaded):
        what = "operators, shapes or types are" if problem.structure_hash else "content is"
        raise PlanError(
            f"{reference}: it is not the model that {plan} was made for (its {what} different). "
            "Solve it again, or give the path of the right one with --model FILE"
        )
    return costed(differentiated(loaded, problem.recipe))


def made_for(problem: Problem, loaded: Model | TrainingFile) -> bool:
    """Return whether a problem is of this model, before or after training; an older plan knows only its content."""
    if isinstance(loaded, TrainingFile):
        return loaded.file.content_hash == problem.model_hash
    if loaded.graph.content_hash == problem.model_hash:
        return True
    return problem.structure_hash != "" and loaded.graph.structure_hash == problem.structure_hash


def _problem_to_execute(plan: str, problem: Problem, reference: str, *, allow_symlinks: bool) -> Problem:
    """Return the problem of a plan for its execution, with any costs; a problem file is rejected."""

    def costed(step: Training | TrainingFile) -> Problem:
        if isinstance(step, TrainingFile):
            raise PlanError(
                f"{reference}: a problem file has no network to execute. Give the plan's ONNX model with --model"
            )
        recipe = problem.recipe
        place = parameters_of(recipe)
        problem_again = step.cost(
            bytes_alone(recipe), runtime=problem.runtime or None, parameters=place, stream="never"
        )
        return problem_again.keeping(problem.lasting)

    return again(plan, problem, reference, costed, allow_symlinks=allow_symlinks)


def _require_model(plan: str, problem: Problem, given: str | os.PathLike[str] | None) -> str:
    """Return the path of the model that a plan is executed with. Raises PlanError."""
    if not problem.recipe:
        raise PlanError(
            f"{plan}: a plan of a problem file ({problem.called}) has no network to execute. Solve an ONNX model"
        )
    place = model_place(plan, problem, given)
    if place is None:
        raise PlanError(f"{plan}: its model {problem.called!r} is missing. Give its path with --model FILE")
    return place


def read_plan(plan: Plan | PlanFile | Report | str | os.PathLike[str]) -> Plan | PlanFile | Report:
    return load_plan(plan) if isinstance(plan, (str, os.PathLike)) else plan


def budget_of(plan: Plan | PlanFile | Report) -> int | None:
    if isinstance(plan, Plan):
        return None
    return plan.ram_bytes if isinstance(plan, PlanFile) else plan.solution.options.ram_bytes


def plan_in(plan: Plan | PlanFile | Report) -> Plan:
    if not isinstance(plan, Plan) and not hasattr(plan, "plan"):
        advice = exported(plan) or 'po.solve(model, device="a72") makes one of a model'
        raise TypeError(f"a plan, the path of a plan file, or a report is needed, not {type(plan).__name__}: {advice}")
    bare_plan = plan if isinstance(plan, Plan) else plan.plan
    if bare_plan is None:
        raise PlanError("the report has no plan: the problem was not solved")
    return bare_plan
