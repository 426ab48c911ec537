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
    """Bytes, joules and seconds of a plan, or of the one in a file, exactly.

    Raises PlanError for one that is not valid or breaks a budget.
    """
    return check_plan(plan_in(read_plan(plan)), ram_bytes=ram_bytes, deadline_s=deadline_s)


def load_plan(
    path: str | os.PathLike[str], *, model: str | os.PathLike[str] | None = None, allow_symlinks: bool = False
) -> PlanFile:
    """Read a plan file and the model that it is for, so that its `plan` can be executed.

    model
        Where the model is now; by default where the plan says, or beside the plan.
    allow_symlinks
        As in `load`; a plan can't say it for its model.

    Raises PlanError for a damaged file, the plan of a problem file, or a model that is gone or has changed; ModelError
    for one that can't be read.
    """
    shown = os.fspath(path)
    return codec.load(
        path,
        lambda found: _to_execute(
            shown, found.plan.problem, _model_of(shown, found.plan.problem, model), allow_symlinks=allow_symlinks
        ),
    )


def model_place(plan: str, problem: Problem, given: str | os.PathLike[str] | None = None) -> str | None:
    """The place of a plan's model: as given, as the plan says, or beside the plan; None where it isn't there."""
    if given is not None:
        return os.fspath(given)
    reference = problem.model_ref
    return reference if reference in zoo.names() else beside(plan, reference)


def beside(plan: str, reference: str, what: str = "model") -> str | None:
    """The place of a file that a plan names: there, or beside the plan; None where it isn't.

    what
        `model` or `device`, as errors and options call it.
    """
    for place in (reference, os.path.join(os.path.dirname(plan), os.path.basename(reference))):
        if reference and os.path.exists(place):
            if is_special(place):
                raise PlanError(
                    f"{plan}: names {place} as its {what}, and that is no regular file; say where with --{what} FILE"
                )
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
    """Run a plan on onnxruntime inside one arena, and ordinary training beside it, and compare bit by bit.

    plan
        A plan, what `solve` or `load_plan` gave, or a plan file's path.
    data
        A batch: arrays by input name, or an `.npz` file of them. By default a random one, drawn with `seed`.
    dump
        Where to write the batch, the loss and the gradients, as `.npz`; a model with a tensor called `loss` has
        its loss there as in the training graph, `loss.2`.
    workdir
        Where the paging file lies meanwhile; by default the system's temporary folder.
    threads
        How many each kernel uses. A plan reserves what kernels allocate with one; with more the budget may be missed.
    told, progress
        Called with what is done next, never while a clock runs; whether that goes to stderr. Whoever listens to the log
        `poetopt` at INFO gets it there.

    The budget is the one of the report or plan file; of a bare plan, its own peak. What the checks found is in
    the result (`ok`, `message`). Raises PlanError for a plan without a network behind it, or of the runtime c
    (`execute_on` is for those), ModelError for data that don't fit, ExecutionError where a kernel or the storage fails.
    """
    found = read_plan(plan)
    execution = onnxruntime.execute(
        plan_in(found),
        ram_bytes=budget_of(found),
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
    """Take steps of gradient descent with a plan, and nothing beside them.

    plan
        As for `execute`, or what `prepared` gave.
    lr, momentum
        Of the step's own optimizer, its default momentum by default; a step that ends with gradients takes plain
        descent.
        Where the plan's step has an optimizer, they are that one's.
    data
        Arrays by input name, or an `.npz` file of them. An array of exactly an input's shape is fed in every step; one
        that is longer along the first axis is a data set, taken in batches in its order and round again. By default
        one random batch, drawn with `seed`.
    dump
        Where to write `losses` (`losses.2` where a parameter is called so), and parameters and statistics after the
        last step, as `.npz`.
    check
        With `1`, every step is compared with ordinary training, bit by bit; with N, each Nth one from the first on.
        That comes after the last step; of what `prepared` gave, in a process of its own.
    meter
        As for `Trainer.fit`.
    told, progress
        As for `execute`.

    Raises OptionError for numbers that make no sense; else as `execute`.
    """
    found = plan if isinstance(plan, onnxruntime.Prepared) else read_plan(plan)
    return onnxruntime.train(
        found if isinstance(found, onnxruntime.Prepared) else plan_in(found),
        steps,
        lr,
        momentum=momentum,
        ram_bytes=found.ram_bytes if isinstance(found, onnxruntime.Prepared) else budget_of(found),
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
    """The problem of a plan file, made again of the model in `reference`, with the costs that `costed` gives it.

    Raises PlanError for another model, ModelError for one that can't be read.
    """
    try:
        options = from_recipe(problem.recipe, allow_symlinks=allow_symlinks)
    except (ModelError, OptionError) as error:
        raise PlanError(f"{plan}: it says how its model is read, and that can't be: {error}") from error
    loaded = read(reference, options)
    if not made_for(problem, loaded):
        what = "operators, shapes or types are" if problem.structure_hash else "content is"
        raise PlanError(
            f"{reference}: it is not the model that {plan} was made for (its {what} another one's); "
            "solve it again, or say where the right one is with --model FILE"
        )
    return costed(differentiated(loaded, problem.recipe))


def made_for(problem: Problem, loaded: Model | TrainingFile) -> bool:
    """Tell whether a problem is of this model, however far that was trained; an older plan knows its content alone."""
    if isinstance(loaded, TrainingFile):
        return loaded.file.content_hash == problem.model_hash
    if loaded.graph.content_hash == problem.model_hash:
        return True
    return problem.structure_hash != "" and loaded.graph.structure_hash == problem.structure_hash


def _to_execute(plan: str, problem: Problem, reference: str, *, allow_symlinks: bool) -> Problem:
    """The same for a plan that is to be executed, with any costs: a problem file is refused."""

    def costed(step: Training | TrainingFile) -> Problem:
        if isinstance(step, TrainingFile):
            raise PlanError(
                f"{reference}: a problem file has no network to execute; give the plan's ONNX model (--model)"
            )
        recipe = problem.recipe
        where = parameters_of(recipe)
        alike = step.cost(bytes_alone(recipe), runtime=problem.runtime or None, parameters=where, stream="never")
        return alike.keeping(problem.lasting)

    return again(plan, problem, reference, costed, allow_symlinks=allow_symlinks)


def _model_of(plan: str, problem: Problem, given: str | os.PathLike[str] | None) -> str:
    """The model that a plan is executed with. Raises PlanError."""
    if not problem.recipe:
        raise PlanError(
            f"{plan}: the plan of a problem file ({problem.called}), with no network to execute; solve an ONNX model"
        )
    place = model_place(plan, problem, given)
    if place is None:
        raise PlanError(f"{plan}: its model {problem.called!r} is not there; say where with --model FILE")
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
        raise TypeError(f"a plan is needed here, a plan file's path, or a report, not {type(plan).__name__}: {advice}")
    found = plan if isinstance(plan, Plan) else plan.plan
    if found is None:
        raise PlanError("the report has no plan: the problem was not solved")
    return found
