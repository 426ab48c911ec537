"""The Python interface: load, differentiate, cost, solve, simulate, execute.

    import poetopt as po
    problem = po.load("model.onnx").differentiate(loss="cross-entropy").cost(po.device("a72"))
    report = po.solve(problem, ram="40%", deadline="1.2x")
    po.execute(report)

It is also all that the command line uses: what a command does, a script can do with one call.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from poetopt.errors import InfeasibleError, ModelError, NoScheduleError, OptionError, PlanError
from poetopt.units import Factor, Share, parse_deadline, parse_fraction, parse_ram, parse_time

if TYPE_CHECKING:
    import onnx

    from poetopt.backends.ort import Execution, TrainingRun
    from poetopt.backends.solver import Backend
    from poetopt.devices import Device
    from poetopt.devices.profile import Profile
    from poetopt.engine.solution import Listener, Options, Solution
    from poetopt.formulations.language import Block, Formulation
    from poetopt.frontends.problem_file import ProblemFile
    from poetopt.graph import Graph, TrainingGraph
    from poetopt.plan.codec import PlanFile
    from poetopt.plan.instructions import Plan
    from poetopt.plan.simulate import Simulation
    from poetopt.problem import Problem
    from poetopt.report.report import Report

SAME_BYTES = "a72"
"""Bytes don't depend on the device: the one to take where only they matter."""


@dataclass(frozen=True)
class Model:
    """A forward network, as `load` returns it. `recipe` is what was asked of the frontend."""

    graph: Graph
    recipe: Mapping[str, object]

    def differentiate(
        self, *, loss: str = "auto", output: str | None = None, granularity: str = "operator"
    ) -> Training:
        """Attach a loss and derive the backward operators.

        loss
            `cross-entropy`, `mse`, `none` (the model's output is the loss), or `auto`, which picks by the output.
        output
            The output that the loss is on, where the model has several.
        granularity
            `operator`, or `block`: chains of cheap operators are scheduled as one (see `poetopt.devices.blocks`).

        Raises MissingVjpError where an operator on the way has no rule, ModelError where the loss doesn't fit.
        """
        from poetopt.autodiff import differentiate
        from poetopt.devices.blocks import GRANULARITIES, blocks

        if granularity not in GRANULARITIES:
            raise OptionError(f"--granularity {granularity}: must be {' or '.join(GRANULARITIES)}")

        try:
            graph = differentiate(self.graph, loss=loss, output=output)
        except ModelError as error:
            if self.graph.source in str(error):
                raise
            raise type(error)(f"{self.graph.source}: {error}") from error
        recipe = {**self.recipe, "loss": loss, "output": output}
        if granularity == "block":
            return Training(blocks(graph), {**recipe, "granularity": granularity})
        return Training(graph, recipe)


@dataclass(frozen=True)
class Training:
    """One training step: forward, loss and backward. `recipe` is how it was made."""

    graph: TrainingGraph
    recipe: Mapping[str, object]

    def cost(self, device: Device | str, *, profile: Profile | str | os.PathLike[str] | None = None) -> Problem:
        """What the step costs on `device`, a `Device` or its name.

        profile
            Measured costs, or their file (`poetopt profile`): they count wherever there are any.

        Raises DeviceError for an unknown name, or a profile that can't be read.
        """
        from poetopt.devices import device as device_of
        from poetopt.devices.cost import cost

        found = device_of(device) if isinstance(device, str) else device
        problem = cost(self.graph, found)
        problem = replace(problem, recipe=dict(self.recipe), notes=(*problem.notes, _pedigree(found)))
        if profile is None:
            return problem
        from poetopt.devices.profile import Profile, load_profile, with_profile

        return with_profile(problem, found, profile if isinstance(profile, Profile) else load_profile(profile))

    def profile(self, *, power_w: float | None = None, workdir: str | os.PathLike[str] | None = None) -> Profile:
        """Measure this machine with this step: operators on onnxruntime, storage by files, energy where it is counted.

        power_w
            Watts of computing over idling, for where no energy counter can be read.
        workdir
            The folder whose storage is measured; by default the system's temporary one.

        Raises ExecutionError where a kernel or the storage fails.
        """
        from poetopt.backends.ort.profiling import profile

        return profile(self.graph, power_w=power_w, workdir=workdir)


@dataclass(frozen=True)
class TrainingFile:
    """A problem file: a training step already, with costs of its own. It can't be executed."""

    file: ProblemFile

    def differentiate(
        self, *, loss: str = "auto", output: str | None = None, granularity: str = "operator"
    ) -> TrainingFile:
        """Itself: its backward operators are in the file. Raises OptionError where anything is asked for."""
        if loss != "auto" or output is not None or granularity != "operator":
            raise OptionError(
                f"{self.file.source}: a problem file has its backward operators already; leave out --loss, --output "
                "and --granularity"
            )
        return self

    def cost(self, device: Device | str, *, profile: Profile | str | os.PathLike[str] | None = None) -> Problem:
        """The problem under the file's own costs for the device of that name.

        Raises DeviceError for a device that it has no costs for, OptionError where a profile is given.
        """
        if profile is not None:
            raise OptionError(f"{self.file.source}: a problem file has costs of its own; leave out --profile")
        return self.file.cost(device if isinstance(device, str) else device.name)


def load(
    model: str | os.PathLike[str] | onnx.ModelProto,
    *,
    batch: int | None = None,
    train: str | Sequence[str] | None = None,
) -> Model | TrainingFile:
    """Read a model: an ONNX file (or one in memory), a problem file, or the name of a zoo network.

    batch
        The size of the batch axis where the file leaves it open, or is to be changed.
    train
        Pattern, or patterns, of the parameters to train (`fc.*`); all of them by default.

    Raises ModelError (or UnsupportedOpError) naming file, node and operator.
    """
    from poetopt import frontends
    from poetopt.frontends.problem_file import ProblemFile

    found = frontends.load(model, batch=batch, train=train)
    if isinstance(found, ProblemFile):
        return TrainingFile(found)
    patterns = train if train is None or isinstance(train, str) else list(train)
    return Model(found, {"batch": batch, "train": patterns})


def device(name: str) -> Device:
    """The device of the catalogue with that name. Raises DeviceError, naming the closest ones."""
    from poetopt import devices

    return devices.device(name)


def solve(
    problem: Problem,
    *,
    ram: str | float | Share | None = None,
    deadline: str | float | Factor | None = None,
    steps: int = 1,
    deadline_model: str = "makespan",
    formulation: str | Formulation = "retention",
    blocks: Sequence[str | Block] = (),
    backend: str | Backend = "highs",
    scope: str = "auto",
    paging: bool = True,
    remat: bool = True,
    time_limit: str | float = 60.0,
    gap: str | float = 1e-3,
    order: str = "given",
    threads: int = 0,
    solver_options: Mapping[str, str] | None = None,
    log: str | os.PathLike[str] | None = None,
    listener: Listener | None = None,
) -> Report:
    """The schedule of least energy that keeps a RAM budget and a deadline.

    ram
        Bytes, a size (`"300KiB"`) or a share of the store-all peak (`"40%"`). By default the device's RAM less the
        resident region.
    deadline
        Seconds, a time (`"250ms"`) or a multiple of one compute of each operator (`"1.5x"`). By default there is none.
    steps
        Training steps that an absolute deadline is for; totals that blocks are asked for (joules, bytes) as well.
    deadline_model
        `makespan`, or `paper` (the sum of compute times).
    formulation
        Its name, or the object: `po.formulations.retention.with_block(...)`.
    blocks
        More blocks: objects, or texts such as `"static-power=0.5W"`, `"energy-limit=3J"`, `"flash-wear=10MB"`.
    backend
        A solver's name (`highs`, `gurobi`, `cbc`), or the object.
    scope
        `auto`, `depth:D`, `forward` or `full`: the space that the proof is for.
    paging, remat
        False forbids it.
    time_limit, gap
        When to stop: after so many seconds, or with an overhead proven to be that close to the least.
    order
        `given`, or `search`: look for an order of the operators that costs less. The report's problem is then in
        that order, and the proof is of it alone.
    threads
        Of the solver; 0 lets it choose.
    solver_options
        The solver's own options, by its own names: `{"mip_heuristic_effort": "0.2"}`.
    log
        A file for what the solver prints. It is begun anew.
    listener
        Called with each `Progress`.

    Raises InfeasibleError where there is no schedule (with what would be feasible), NoScheduleError where none was
    found in time, OptionError for an option that can't be understood, BackendUnavailableError.
    """
    from poetopt.engine.loop import solve as search
    from poetopt.engine.solution import Status
    from poetopt.report.report import Report
    from poetopt.report.words import failure_words

    searching = _searching(order, bool(blocks) or not isinstance(formulation, str))
    options = asked(
        problem,
        ram=ram,
        deadline=deadline,
        steps=steps,
        deadline_model=deadline_model,
        formulation=formulation,
        blocks=blocks,
        backend=backend,
        scope=scope,
        paging=paging,
        remat=remat,
        time_limit=time_limit,
        gap=gap,
        threads=threads,
        solver_options=solver_options,
        log=log,
    )
    if options.log is not None:
        from poetopt.files import write_atomically

        write_atomically(options.log, "")
    if options.ram_bytes <= 0 and ram is None:
        report = Report(problem=problem, solution=_no_room(problem, options))
    elif searching:
        from poetopt.engine.ordered import solve_ordered

        used, solution = solve_ordered(problem, options, listener)
        report = Report(problem=used, solution=solution)
    else:
        report = Report(problem=problem, solution=search(problem, options, listener))
    if report.plan is None:
        failure = InfeasibleError if report.status is Status.INFEASIBLE else NoScheduleError
        raise failure(failure_words(problem, report.solution), report=report.to_dict())
    return report


def asked(
    problem: Problem,
    *,
    ram: str | float | Share | None = None,
    deadline: str | float | Factor | None = None,
    steps: int = 1,
    deadline_model: str = "makespan",
    formulation: str | Formulation = "retention",
    blocks: Sequence[str | Block] = (),
    backend: str | Backend = "highs",
    scope: str = "auto",
    paging: bool = True,
    remat: bool = True,
    time_limit: str | float = 60.0,
    gap: str | float = 1e-3,
    threads: int = 0,
    solver_options: Mapping[str, str] | None = None,
    log: str | os.PathLike[str] | None = None,
) -> Options:
    """What `solve` takes, as the engine does: every text read, and checked. Raises OptionError."""
    from poetopt.engine.solution import DeadlineModel, Options
    from poetopt.formulations import formulation as formulation_of
    from poetopt.formulations.options import with_options

    if deadline_model not in tuple(DeadlineModel):
        raise OptionError(f"--deadline-model {deadline_model}: must be {' or '.join(DeadlineModel)}")
    if threads < 0:
        raise OptionError(f"--threads {threads}: must be at least 1, or 0 to let the solver choose")
    chosen = with_options(formulation_of(formulation), blocks, problem, steps) if blocks else formulation
    return Options(
        ram_bytes=_ram_bytes(problem, None if ram is None else parse_ram(ram)),
        deadline_s=_deadline_s(problem, None if deadline is None else parse_deadline(deadline), steps, bool(blocks)),
        deadline_model=DeadlineModel(deadline_model),
        formulation=chosen,
        backend=backend,
        scope=_scope(scope),
        paging=paging,
        remat=remat,
        time_limit_s=parse_time(time_limit, option="--time-limit"),
        gap=parse_fraction(gap, option="--gap"),
        threads=threads,
        solver_options=dict(solver_options or {}),
        log=None if log is None else os.fspath(log),
    )


def store_all_peak_bytes(problem: Problem) -> int:
    """The least budget in bytes of ordinary training, which keeps what it will still read: what a RAM share is of."""
    from poetopt.plan.storeall import store_all_bytes

    return store_all_bytes(problem)


def simulate(
    plan: Plan | PlanFile | Report, *, ram_bytes: int | None = None, deadline_s: float | None = None
) -> Simulation:
    """Bytes, joules and seconds of a plan, exactly. Raises PlanError for one that is not valid or breaks a budget."""
    from poetopt.plan.simulate import simulate as run

    return run(_plan(plan), ram_bytes=ram_bytes, deadline_s=deadline_s)


def load_plan(path: str | os.PathLike[str], *, model: str | os.PathLike[str] | None = None) -> PlanFile:
    """Read a plan file and the model that it is for, so that its `plan` can be executed.

    model
        Where the model is now; by default where the plan says, or beside the plan.

    Raises PlanError for a damaged file, the plan of a problem file, or a model that is gone or has changed; ModelError
    for one that can't be read.
    """
    from poetopt.engine.order import reordered_like
    from poetopt.plan import codec

    shown = os.fspath(path)

    def again(found: PlanFile) -> Problem:
        problem = found.plan.problem
        reference = _model_of(shown, problem, model)
        loaded = load(
            reference, batch=_whole(problem.recipe.get("batch")), train=_patterns(problem.recipe.get("train"))
        )
        if isinstance(loaded, TrainingFile):
            raise PlanError(
                f"{reference}: a problem file has no network to execute; give the plan's ONNX model (--model)"
            )
        if loaded.graph.content_hash != problem.model_hash:
            raise PlanError(
                f"{reference}: it is not the model that {shown} was made for (its content has changed since); "
                "solve it again, or say where the right one is with --model FILE"
            )
        loss, output = problem.recipe.get("loss"), problem.recipe.get("output")
        granularity = problem.recipe.get("granularity")
        training = loaded.differentiate(
            loss=loss if isinstance(loss, str) else "auto",
            output=output if isinstance(output, str) else None,
            granularity=granularity if isinstance(granularity, str) else "operator",
        )
        return reordered_like(training.cost(SAME_BYTES), [operator.name for operator in problem.operators])

    return codec.load(path, again)


def execute(
    plan: Plan | PlanFile | Report,
    *,
    data: str | os.PathLike[str] | Mapping[str, object] | None = None,
    dump: str | os.PathLike[str] | None = None,
    seed: int = 0,
    workdir: str | os.PathLike[str] | None = None,
    threads: int = 1,
) -> Execution:
    """Run a plan on onnxruntime inside one arena, and ordinary training beside it, and compare bit by bit.

    data
        A batch: arrays by input name, or an `.npz` file of them. By default a random one, drawn with `seed`.
    dump
        Where to write the batch, the loss and the gradients, as `.npz`.
    workdir
        Where the paging file lies meanwhile; by default the system's temporary folder.
    threads
        Of each kernel. What kernels allocate is only planned for one.

    The budget is the one of the report or plan file; of a bare plan, its own peak. What the checks found is in
    the result (`ok`, `message`). Raises PlanError for a plan without a network behind it, ModelError for data that
    don't fit, ExecutionError where a kernel or the storage fails.
    """
    from poetopt.backends.ort import execute as run
    from poetopt.backends.ort import save_results

    execution = run(_plan(plan), ram_bytes=_budget(plan), data=data, seed=seed, workdir=workdir, threads=threads)
    if dump is not None:
        save_results(execution, dump)
    return execution


def train(
    plan: Plan | PlanFile | Report,
    steps: int,
    lr: float,
    *,
    momentum: float = 0.0,
    data: str | os.PathLike[str] | Mapping[str, object] | None = None,
    dump: str | os.PathLike[str] | None = None,
    seed: int = 0,
    workdir: str | os.PathLike[str] | None = None,
) -> TrainingRun:
    """Take steps of gradient descent with a plan, and the same without one beside, and compare every loss bit by bit.

    lr, momentum
        The update is v = momentum v + gradient, parameter = parameter - lr v, in place.
    data
        Arrays by input name, or an `.npz` file of them. An array of exactly an input's shape is fed in every step; one
        that is longer along the first axis is a data set, taken in batches in its order and round again. By default
        one random batch, drawn with `seed`.
    dump
        Where to write `losses`, and parameters and statistics after the last step, as `.npz`.

    Raises OptionError for numbers that make no sense; else as `execute`.
    """
    from poetopt.backends.ort import train as run
    from poetopt.backends.ort.training import save_training

    ended = run(
        _plan(plan),
        steps,
        lr,
        momentum=momentum,
        ram_bytes=_budget(plan),
        data=data,
        seed=seed,
        workdir=workdir,
    )
    if dump is not None:
        save_training(ended, dump)
    return ended


def _pedigree(device: Device) -> str:
    """How the figures behind every second and joule are known."""
    kinds = Counter(str(figure.kind) for figure in device.figures)
    known = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return f"seconds and joules are the cost model's, from {device.name}'s figures ({known})"


def _model_of(plan: str, problem: Problem, given: str | os.PathLike[str] | None) -> str:
    """Where a plan's model is: as given, as the plan says, or beside the plan. Raises PlanError."""
    from poetopt.frontends import zoo

    if not problem.recipe:
        raise PlanError(
            f"{plan}: the plan of a problem file ({problem.model_ref or problem.name}), with no network to execute; "
            "solve an ONNX model"
        )
    if given is not None:
        return os.fspath(given)
    reference = problem.model_ref
    if reference in zoo.names():
        return reference
    for place in (reference, os.path.join(os.path.dirname(plan), os.path.basename(reference))):
        if reference and os.path.isfile(place):
            return place
    raise PlanError(f"{plan}: its model {reference or problem.name!r} is not there; say where with --model FILE")


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _patterns(value: object) -> str | list[str] | None:
    return [str(entry) for entry in value] if isinstance(value, list) else value if isinstance(value, str) else None


def _budget(plan: Plan | PlanFile | Report) -> int | None:
    from poetopt.plan.codec import PlanFile
    from poetopt.plan.instructions import Plan

    if isinstance(plan, Plan):
        return None
    return plan.ram_bytes if isinstance(plan, PlanFile) else plan.solution.options.ram_bytes


def _plan(plan: Plan | PlanFile | Report) -> Plan:
    from poetopt.plan.instructions import Plan

    found = plan if isinstance(plan, Plan) else plan.plan
    if found is None:
        raise PlanError("the report has no plan: the problem was not solved")
    return found


def _ram_bytes(problem: Problem, ram: int | Share | None) -> int:
    """The budget in bytes; not positive where the resident region alone fills the device."""
    if isinstance(ram, Share):
        return int(ram.fraction * store_all_peak_bytes(problem))
    if ram is not None:
        return ram
    if problem.device_ram_bytes is None:
        raise OptionError(f"{problem.name}: the RAM of {problem.device} is not known here; say how much with --ram")
    return problem.device_ram_bytes - problem.resident_bytes


def _deadline_s(problem: Problem, deadline: float | Factor | None, steps: int, totals: bool = False) -> float | None:
    """Seconds of a step. `totals`: whether the steps divide something else as well."""
    if steps < 1:
        raise OptionError(f"--steps {steps}: must be at least 1")
    if isinstance(deadline, Factor):
        return deadline.times * problem.baseline_time_s
    if deadline is None:
        if steps > 1 and not totals:
            raise OptionError(f"--steps {steps} divides a total deadline: give one with --deadline, as in 3h")
        return None
    return deadline / steps


def _searching(order: str, own_blocks: bool) -> bool:
    """Whether orders are to be searched. Raises OptionError."""
    if order not in ("given", "search"):
        raise OptionError(f"--order {order}: must be given or search")
    if order == "search" and own_blocks:
        raise OptionError(
            "--order search: orders are judged by their energy alone; leave out --with and own formulations"
        )
    return order == "search"


def _scope(scope: str) -> str:
    kind, _, depth = scope.partition(":")
    if scope in ("auto", "forward", "full") or (kind == "depth" and depth.isdecimal()):
        return scope
    raise OptionError(f"--scope {scope}: must be auto, depth:D (as in depth:4), forward or full")


def _no_room(problem: Problem, options: Options) -> Solution:
    """The answer where no `--ram` was given and the resident region alone fills the device."""
    from poetopt.engine.solution import Solution, Status

    return Solution(
        status=Status.INFEASIBLE,
        scope="full",
        options=options,
        store_all_peak_bytes=store_all_peak_bytes(problem),
        ram_bound_bytes=problem.least_ram_bytes,
        reason=(
            f"its resident region (parameters, their gradients and constants) takes {problem.resident_bytes:,} bytes, "
            f"and the device has {problem.device_ram_bytes:,} bytes of RAM in all; a schedule needs at least "
            f"{problem.least_ram_bytes:,} bytes beside the region. Train fewer parameters (--train), take a smaller "
            "model or another device, or give --ram for the schedule alone"
        ),
    )
