"""`solve`: from a problem to a report with a plan and a proof."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Unpack

from poetopt.api.batches import AUTO, MAX, largest_batch, least_energy
from poetopt.api.problems import SolveOptions, asked, problems, step_of, store_all_peak_bytes, total_bytes
from poetopt.api.training import Training, TrainingFile
from poetopt.frontends.reading import LARGEST_SIZE
from poetopt.graph.problem import Problem
from poetopt.util.errors import InfeasibleError, NoScheduleError, OptionError
from poetopt.util.files import write_atomically
from poetopt.util.units import Factor, Share, parse_energy, parse_ram, parse_time

if TYPE_CHECKING:
    from poetopt.api.problems import Solvable
    from poetopt.backends.solvers.solver import Backend
    from poetopt.devices import Device
    from poetopt.devices.profile import Profile
    from poetopt.formulations.block import Block
    from poetopt.formulations.language import Formulation
    from poetopt.plan.schedule import Schedule
    from poetopt.report.goals import LargestBatch
    from poetopt.report.report import Report
    from poetopt.search.solution import Listener, Options, Solution


def solve(
    problem: Solvable,
    *,
    device: Device | str | os.PathLike[str] | None = None,
    profile: Profile | str | os.PathLike[str] | None = None,
    runtime: str | None = None,
    ram: str | float | Share | None = None,
    total_ram: str | float | None = None,
    parameters: str = "auto",
    stream: str = "auto",
    deadline: str | float | Factor | None = None,
    steps: int = 1,
    epochs: int | None = None,
    samples: int | None = None,
    deadline_model: str = "makespan",
    minimize: str = "energy",
    energy_limit: str | float | Factor | None = None,
    formulation: str | Formulation | ModuleType = "retention",
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
    listener: Listener | None = None,
    progress: bool = False,
    begin: float | None = None,
    **model: Unpack[SolveOptions],
) -> Report:
    """The schedule of least energy that keeps a RAM budget and a deadline.

    problem
        A problem, or a model (the path of its file, a zoo network's name, what `load` or `differentiate` gave): then
        with `device`, and for a path with what `load` (`batch`, `train`, ...) and `Model.differentiate` (`loss`,
        `optimizer`, ...) take, as the command has them.
        `batch="max"`: the largest one that fits the RAM, and the deadline; `report.largest` says what refuses more.
        `micro_batch="auto"`: the batch in as many parts as take the least energy; `report.tried` has them all.
    device, profile, runtime
        As for `Training.cost`.
    ram
        The budget of the schedule alone, as in the paper: bytes, a size (`"300KiB"`) or a share of the store-all peak
        (`"40%"`). By default the RAM is for all of the step.
    total_ram
        Bytes, or a size, for all that the step takes: schedule, parameters, gradients, optimizer states, constants. By
        default the device's RAM.
    parameters
        `resident`, `paged` (they have their home on storage, and are scheduled like everything else), or `auto`:
        resident where that fits, or where `ram` is given. Paged ones are updated in the step, by `sgd` where no
        optimizer is named.
    stream
        `auto`: where parameters are paged, operators may stream operands from storage and outputs to it, chunk by
        chunk, in the ways that the runtime has (`c` has some). `never`: they run with all of them in RAM.
    deadline
        Seconds, a time (`"250ms"`) or a multiple of one compute of each operator (`"1.5x"`). By default there is none.
    steps
        How many training steps an absolute deadline is for, and totals that blocks are given (joules, bytes).
    epochs, samples
        The same in epochs (1 by default) of so many samples, divided by the batch.
    deadline_model
        `makespan`, or `paper` (the sum of compute times).
    minimize
        `energy`, or `ram`: the least budget that has a schedule within `energy_limit` and the deadline, no more than
        `ram` where that is given. Status, gap and bound are then of that budget: `ram_bound_bytes` is proven.
    energy_limit
        Joules (`"3J"`) or a multiple of one compute of each operator (`"1.1x"`, `"110%"`) that a step may take. With
        `minimize="energy"` the least time within it is looked for.
    formulation
        Its name, the object (`po.formulations.retention.with_block(...)`) or a module with an object of its name.
    blocks
        More blocks: objects, or texts such as `"static-power=0.5W"`, `"energy-limit=3J"`, `"flash-wear=10MB"`.
    backend
        A solver's name (`highs`, `gurobi`, `cbc`, `scip`, any that Pyomo knows, or a package registers), or the object.
    scope
        `auto`, `depth:D`, `forward` or `full`: the space that the proof is for.
    paging, remat
        False forbids it.
    time_limit, gap
        When to stop: after this many seconds, or with an overhead proven to be that close to the least.
    threads
        How many the solver uses; 0 lets it choose. Unless it is 1, a search of ours runs beside the solver's, in one
        thread more; with 1, a solve that isn't ended by its time limit gives the same plan every time.
    solver_options
        The solver's own options, by its own names: `{"mip_heuristic_effort": "0.2"}`.
    log
        A file for what the solver prints. It is begun anew.
    listener
        Called with each `Progress`.
    progress
        Write a line to stderr where something is new. Whoever listens to the log `poetopt` at INFO gets them there.

    begin
        The moment (of `time.monotonic`) at which the time limit begins; by default now, so that reading a model that is
        given by its path counts.

    Raises InfeasibleError where there is no schedule (with what would be feasible), NoScheduleError where none was
    found in time, OptionError for an option that can't be understood, UnsupportedOpError for an operator that the
    runtime c can't run, BackendUnavailableError for a solver that isn't installed. An interrupt (Ctrl-C) gives
    the best plan so far, or the proof that there is none; KeyboardInterrupt where it comes before either.
    """
    from poetopt.util import imports, interrupts

    imports.check_solving()
    from poetopt.formulations import formulation as formulation_of
    from poetopt.ops.runtimes.c.steps import check_runs
    from poetopt.report.goals import training_run
    from poetopt.report.layout import listening
    from poetopt.report.proof import failure_words
    from poetopt.report.report import Report
    from poetopt.search.diagnosis.least_budget import least_budget, limited
    from poetopt.search.diagnosis.solve import solve as search
    from poetopt.search.solution import Status
    from poetopt.util.progress import telling

    given, now = problem, time.monotonic()
    total = total_bytes(total_ram, ram)
    if begin is None and not isinstance(given, Problem | Training | TrainingFile):
        begin = now
    listener = listening(telling(progress), listener)
    run_of = partial(training_run, steps=steps, epochs=epochs, samples=samples)
    least = _least_ram(minimize, model)
    if energy_limit is not None and not least:
        text = f"{energy_limit.times}x" if isinstance(energy_limit, Factor) else energy_limit
        blocks = [*blocks, f"energy-limit={text}"]
    options_of = partial(
        asked,
        total=total,
        deadline=deadline,
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

    logged = False

    def ask(problem: Problem) -> Options:
        nonlocal logged
        if problem.runtime == "c" and problem.graph is not None:
            check_runs(problem.graph.joint)
        run = run_of(problem)
        steps = 1 if run is None else run.steps
        most = "100%" if least and ram is None and total is None and problem.device_ram_bytes is None else ram
        options = options_of(problem, ram=most, steps=steps, counted=samples is not None or energy_limit is not None)
        if least:
            found = None if energy_limit is None else parse_energy(energy_limit, option="--with energy-limit=")
            one_pass_j = formulation_of(options.formulation).baseline_j(problem)
            limit_j = found.times * one_pass_j if isinstance(found, Factor) else found and found / steps
            options = limited(problem, options, limit_j)
        if options.log is not None and not logged:  # what is tried after this goes behind it
            write_atomically(options.log, "")
            logged = True
        return options

    at = partial(
        problems,
        device=device,
        profile=profile,
        runtime=runtime,
        parameters=parameters,
        stream=stream,
        total=total,
        ram=ram,
    )
    largest: LargestBatch | None = None
    starts: tuple[Schedule, ...] = ()

    def answer(
        tried: Iterable[Problem], starts: tuple[Schedule, ...] = (), least_j: float | None = None, **more: float
    ) -> tuple[Problem, Report | None]:
        """The first problem that has a schedule, with its report; none where one pass takes `least_j` already."""
        since = time.monotonic() if more else begin
        for made in tried:
            if least_j is not None and made.baseline_energy_j >= least_j:
                return made, None
            options = replace(ask(made), **more)  # type: ignore[arg-type]
            if options.ram_bytes <= 0 and ram is None:
                found = Report(problem=made, solution=_no_room(made, options, total))
            elif least:
                found = Report(problem=made, solution=least_budget(made, options, listener, begin=since))
            else:
                found = Report(problem=made, solution=search(made, options, listener, starts=starts, begin=since))
            if not _without(found.solution):
                break
        return made, found

    if model.get("micro_batch") == AUTO:
        if model.get("batch") == MAX:
            raise OptionError(f"--batch {MAX}: --micro-batch cuts a batch of a known size; give a number")

        def in_parts(
            parts: int, least_j: float | None, limit_s: float, known: tuple[Schedule, ...]
        ) -> tuple[Problem, Report | None]:
            return answer(at(cut(parts)), known, least_j, time_limit_s=limit_s)

        def cut(parts: int) -> Problem | Training | TrainingFile:
            return uncut if parts == 1 else step_of(given, **{**model, "micro_batch": parts})

        uncut = step_of(given, **{**model, "micro_batch": 1})
        limit_s = parse_time(time_limit, option="--time-limit")
        made, report = least_energy(_batch_of(uncut, given), cut, in_parts, limit_s, now if begin is None else begin)
    else:
        if model.get("batch") == MAX:
            most = LARGEST_SIZE if samples is None else samples
            since = now if begin is None else begin
            largest, tried, starts = _of_largest(given, model, at, ask, ram, listener, since, most)
        else:
            tried = at(step_of(given, **model))
        made, answered = answer(tried, starts)
        assert answered is not None
        report = answered
    if report.plan is None and report.solution.interrupted and report.status is not Status.INFEASIBLE:
        raise KeyboardInterrupt
    report = replace(report, run=run_of(made), largest=largest)
    interrupts.hold()
    if report.plan is None:
        failure = InfeasibleError if report.status is Status.INFEASIBLE else NoScheduleError
        whole = total is not None or (made.parameters == "paged" and ram is None)
        steps = 1 if report.run is None else report.run.steps
        words = failure_words(made, report.solution, whole=whole, steps=steps)
        none = f"--batch {MAX}: not even a batch of 1 has a schedule: " if model.get("batch") == MAX else ""
        if report.tried:
            numbers = ", ".join(str(one.parts) for one in report.tried)
            none = f"--micro-batch {AUTO}: in none of {numbers} parts does the batch have a schedule; in the last: "
        raise failure(none + words, report=report.to_dict())
    return report


def _least_ram(minimize: str, model: SolveOptions) -> bool:
    """Tell whether the least RAM is asked for. Raises OptionError for another word, and for what doesn't go with it."""
    if minimize not in ("energy", "ram"):
        raise OptionError(f"--with minimize={minimize}: must be energy or ram")
    if minimize == "ram" and (model.get("batch") == MAX or model.get("micro_batch") == AUTO):
        raise OptionError("--with minimize=ram: is of one problem; leave out --batch max and --micro-batch auto")
    return minimize == "ram"


def _batch_of(step: Problem | Training | TrainingFile, given: Solvable) -> int:
    """The batch to cut into parts. Raises OptionError where there is none."""
    graph = step.graph if isinstance(step, Training) else None
    shape = graph.tensors[graph.inputs[0]].shape if graph is not None and graph.inputs else ()
    if not shape:
        raise OptionError(f"{given}: --micro-batch {AUTO}: there is no batch to cut into parts")
    return shape[0]


def _of_largest(
    given: Solvable,
    model: SolveOptions,
    at: Callable[..., Iterator[Problem]],
    ask: Callable[[Problem], Options],
    ram: object,
    listener: Listener | None,
    begin: float,
    most: int,
) -> tuple[LargestBatch | None, Iterator[Problem], tuple[Schedule, ...]]:
    """The largest batch, the problems to solve there, and a schedule to begin with; the smallest where none fits.

    Raises OptionError where nothing bounds the batch, or it can't be changed any more.
    """
    from poetopt.search.solution import Progress

    if isinstance(ram, str | Share) and isinstance(parse_ram(ram), Share):
        raise OptionError(f"--batch {MAX}: --ram {ram} grows with the batch; say a size, or --total-ram")

    def told(batch: int) -> None:
        if listener is not None:
            listener(Progress(time.monotonic() - begin, f"looking at a batch of {batch:,}", "", None, None))

    def problems_at(batch: int, *, roomiest: bool = False) -> Iterator[Problem]:
        return at(step_of(given, **{**model, "batch": batch}), roomiest=roomiest)

    found = largest_batch(partial(problems_at, roomiest=True), problems_at, ask, told, begin, most)
    if found is None:
        return None, problems_at(1), ()
    largest, best = found
    assert best.problem is not None
    assert best.schedule is not None
    return largest, iter((best.problem,)), (best.schedule,)


def _without(solution: Solution) -> bool:
    """Tell whether more time would find no plan: another way of asking may."""
    from poetopt.search.solution import Status

    return (solution.status is Status.INFEASIBLE or solution.exhausted) and not solution.interrupted


def _no_room(problem: Problem, options: Options, total: int | None) -> Solution:
    """The answer where no `--ram` was given and what lies beside the schedule fills the device, or `--total-ram`."""
    from poetopt.search.limits import kind
    from poetopt.search.solution import Solution, Status

    stack = f" and {problem.stack_bytes:,} of stack" if problem.stack_bytes else ""
    what = f"{problem.resident_bytes:,} resident bytes of parameters, gradients and constants{stack}"
    bound = problem.least_ram_bytes
    if total is not None:
        reason = (
            f"{total:,} bytes in all don't hold the {what}, and the {bound:,} bytes that any {kind(problem)} needs: "
            f"{problem.beside_bytes + bound:,} together"
        )
    else:
        reason = (
            f"the device's {problem.device_ram_bytes:,} bytes of RAM don't hold the {what}, and the {bound:,} bytes "
            f"that any {kind(problem)} needs. Train fewer parameters (--train), take a smaller model or another "
            "device, or give --ram for the schedule alone"
        )
    return Solution(
        status=Status.INFEASIBLE,
        scope="full",
        options=options,
        store_all_peak_bytes=store_all_peak_bytes(problem),
        ram_bound_bytes=problem.least_ram_bytes,
        reason=reason,
    )
