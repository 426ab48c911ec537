"""Run a plan in C for a step or many, and the unscheduled step on the same kernels; compare both, and with onnxruntime.

One step is measured for its stack and, in an emulator, operator by operator; many go by the emitted example.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.autodiff.passes.rows import whole
from poetopt.backends.c.build import Built, build, write
from poetopt.backends.c.emulator import check_present
from poetopt.backends.c.execution import DeviceExecution, DeviceTraining, Predicted
from poetopt.backends.c.generations import check_room
from poetopt.backends.c.linking import STACK_BYTES
from poetopt.backends.c.program import DeviceProgram, device_program
from poetopt.backends.c.run import Ran, run, run_steps
from poetopt.backends.c.sensitivity import TRIALS, Steps, UlpSensitivity, distance, moved_by, predicted, sensitivity
from poetopt.backends.c.targets import compiler, target
from poetopt.backends.onnxruntime.batch import Batch, batch_of, batches_of
from poetopt.backends.onnxruntime.execution import compare
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.backends.onnxruntime.stepping import hyperparameters_of
from poetopt.backends.step.parted import cut
from poetopt.backends.step.places import graph_of
from poetopt.graph import TrainingGraph
from poetopt.plan.assemble import store_all, store_all_bytes
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes, check_layout, lay_out
from poetopt.plan.simulate import Simulation, simulate
from poetopt.util.errors import OptionError
from poetopt.util.files import scratch_folder
from poetopt.util.progress import Told, silent

if TYPE_CHECKING:
    from poetopt.graph import Array

LOSSES = "losses"
Predict = Callable[[Plan, TrainingGraph], Plan | None]
"""Finds a plan of po_predict for one of a step, which is laid out (`poetopt.search.predicting`)."""


class _Both:
    """A plan and the step that computes everything once, as programs for a target.

    Raises what `execute_on` does for a plan that can't be run there.
    """

    def __init__(
        self, plan: Plan, on: str, graph: TrainingGraph, ram_bytes: int | None, told: Told, predict: Predict | None
    ) -> None:
        self.plan, self.on, self.graph, self.ram_bytes, self.told = plan, on, graph, ram_bytes, told
        self.predict = predict or (lambda *_: None)
        self.target = target(on, "--on")
        self.program = device_program(plan, graph, prediction=self.predict(plan, graph))
        self.simulation: Simulation = simulate(plan, ram_bytes=ram_bytes)
        check_layout(plan, ram_bytes)
        if self.target.bare:
            check_room(self.program)
            check_present()
        compiler(self.target)  # nothing is written where there is none

    def built(self, folder: str, *, measuring: bool = True) -> tuple[Built, Built]:
        """Both, compiled."""
        self.told(f"compiling for {self.on}")

        def one(program: DeviceProgram, place: Path, stack_bytes: int | None = None) -> Built:
            write(program, self.target, place)
            return build(program, self.target, place, measuring=measuring, stack_bytes=stack_bytes)

        mine = one(self.program, Path(folder, "scheduled"))
        mine.check_stack()
        whole = unscheduled(self.plan)
        once = device_program(whole, self.graph, prediction=self.predict(whole, self.graph))
        # no device reserves what this one takes of the stack
        roomy = 2 * STACK_BYTES + self.program.storage.block_bytes
        return mine, one(once, Path(folder, "whole"), roomy)

    def figures(self, built: Built, ran: Ran) -> dict[str, Any]:
        """Gives what `DeviceChecks` has of any run."""
        arena, sizes = arena_bytes(self.plan), built.sizes
        return {
            "on": self.on,
            "compiler": built.compiler.name,
            "budget_bytes": arena if self.ram_bytes is None else self.ram_bytes,
            "arena_bytes": arena,
            "measured_peak_bytes": arena,
            "resident_bytes": self.program.resident.nbytes,
            "linked_ram_bytes": sizes.ram_bytes if sizes else None,
            "stack_bytes": ran.stack_bytes,
            "stack_bound_bytes": built.stack.nbytes if built.stack else None,
            "stack_reserved_bytes": built.stack_reserved_bytes if built.board else None,
            "code_bytes": sizes.code_bytes if sizes else None,
            "instructions": ran.instructions,
            "bytes_paged": self.simulation.bytes_paged,
            "bytes_streamed": self.simulation.bytes_streamed,
        }

    def predicted(self, asked: Sequence[Batch], mine: Ran, theirs: Ran) -> Predicted | None:
        """The outputs of both for what they were asked, beside onnxruntime's with the values that were left."""
        plan = self.program.predicts
        if plan is None or not asked:
            return None
        network, held = graph_of(plan.plan), whole(self.graph.joint)
        held |= {name: mine.results[name] for name in self.graph.trained if name in mine.results}
        held |= {old: mine.results[new] for old, new in self.graph.states.items() if new in mine.results}
        found, other = (
            {name: np.stack([one[name] for one in ran.outputs]) for name in network.outputs} if ran.outputs else {}
            for ran in (mine, theirs)
        )
        reference = predicted(network, held, asked)
        return Predicted(
            arena_bytes(plan.plan),
            not other or compare(found, other, network.outputs).identical,
            distance(found, reference.exact, network.outputs),
            reference.together,
            found,
        )


def execute_on(
    plan: Plan,
    on: str,
    *,
    graph: TrainingGraph | None = None,
    ram_bytes: int | None = None,
    data: Mapping[str, object] | str | os.PathLike[str] | None = None,
    seed: int = 0,
    predict: Predict | None = None,
    told: Told = silent,
) -> DeviceExecution:
    """Emit `plan`, compile it, run it on one batch, and check what it computes.

    on
        `host`, or a core that is emulated: `cortex-m4`, ...
    ram_bytes
        The budget for the arena; by default what the plan takes.
    data
        A batch, as for `execute`; by default a random one, drawn with `seed`.
    predict
        What finds the plan of po_predict.

    Raises `PlanError` for a plan that isn't for the runtime c or breaks its budget, `UnsupportedOpError` where a kernel
    is missing, `BackendUnavailableError` where compiler or emulator are, `ExecutionError` where the step fails.
    """
    chosen = graph_of(plan, graph)
    both = _Both(plan, on, chosen, ram_bytes, told, predict)
    batch = batch_of(chosen.whole, data, seed)
    asked = [next(iter(cut(chosen, batch)))]
    with scratch_folder("c") as folder:
        scheduled, plain = both.built(folder)
        told(f"running the schedule on {on}")
        mine = run(scheduled, batch, asked=asked)
        told("running the step that computes everything once")
        theirs = run(plain, batch, asked=asked)
        told("the same step on onnxruntime, and how far one ulp moves it")
        reference = measured_reference(chosen, batch)
        by_operator = instructions_by_operator(scheduled, mine)
    kept = tuple(row.name for row in (*both.program.results, *both.program.parameters))
    comparison = compare(mine.results, theirs.results, kept)
    if mine.again:
        comparison = comparison.joined(compare(mine.again, theirs.results, kept))
    went = moved(chosen, mine.results)
    return DeviceExecution(
        **both.figures(scheduled, mine),
        bit_identical=comparison.identical,
        different=comparison.different,
        gradients=len(chosen.gradients or chosen.trained),
        statistics=len(chosen.states),
        max_abs_diff=comparison.max_abs_diff,
        distance=distance(went, reference.exact, tuple(went)),
        sensitivity=reference.together,
        far=reference.far(went),
        kernel_workspace_bytes=0,
        store_all_peak_bytes=store_all_bytes(plan.problem),
        step_s=mine.step_s,
        store_all_step_s=theirs.step_s,
        fused_step_s=None,
        outputs=len(chosen.targets) if chosen.forward_only else 0,
        loss=None if chosen.forward_only else float(mine.results[chosen.loss].reshape(-1)[0]),
        by_operator=by_operator,
        results={name: mine.results[name] for name in kept},
        batch=batch,
        predicted=both.predicted(asked, mine, theirs),
    )


def unscheduled(plan: Plan) -> Plan:
    """The plan that computes everything once, plain."""
    return lay_out(store_all(replace(plan.problem, closing_ram_bytes=None)))


def moved(graph: TrainingGraph, results: Mapping[str, Array]) -> Mapping[str, Array]:
    """Gives what a step makes of a batch: gradients, how far updates move parameters, or outputs without a loss."""
    if graph.forward_only:
        return {name: results[name] for name in graph.targets}
    if graph.gradients:
        return {name: results[f"{name}.grad"] for name in graph.gradients}
    return moved_by(graph, whole(graph), results)


def measured_reference(graph: TrainingGraph, batch: Batch) -> UlpSensitivity:
    """Gives what the step makes of a batch on onnxruntime, node by node, and how far one ulp moves that."""
    sessions = Sessions(graph, 1)
    shown = {made: f"{name}.grad" for name, made in graph.gradients.items()}
    shown |= {name: name for name in graph.targets if graph.forward_only}
    shown |= {new: name for name, new in graph.joint.carried.items() if name in graph.trained}
    exact, *near = (
        {shown[name]: array for name, array in Steps(graph, sessions, seed).step(batch).items() if name in shown}
        for seed in (None, *range(TRIALS))
    )
    went = moved(graph, exact)
    kept = exact if graph.updaters and not graph.gradients else went
    return sensitivity(went, [moved(graph, one) for one in near], kept)


def instructions_by_operator(built: Built, ran: Ran) -> Mapping[str, int]:
    """Says how many instructions each operator took, what it calls of libraries included; nothing on this machine."""
    if ran.counts is None:
        return {}
    names = built.program.operator_names
    return {name: int(row[0]) for name, row in zip(names, ran.counts, strict=False) if row[0]}


@dataclass(frozen=True, slots=True)
class Way:
    """Says where steps went.

    losses
        Of each.
    moved
        By how much each parameter, from the first step to the last; in float64.
    """

    losses: Array
    moved: Mapping[str, Array]


def train_on(
    plan: Plan,
    on: str,
    steps: int,
    lr: float,
    *,
    momentum: float | None = None,
    graph: TrainingGraph | None = None,
    ram_bytes: int | None = None,
    data: Mapping[str, object] | str | os.PathLike[str] | None = None,
    seed: int = 0,
    predict: Predict | None = None,
    told: Told = silent,
) -> DeviceTraining:
    """Take `steps` steps with `plan` in C by the emitted example, and compare losses and parameters.

    on, ram_bytes
        As for `execute_on`.
    lr, momentum, data, seed
        As for `train` on onnxruntime.

    Raises `OptionError` for a step without an optimizer, or numbers that make no sense; else what `execute_on` does.
    """
    target(on, "--on")
    chosen = graph_of(plan, graph)
    given = hyperparameters_of(chosen, lr, momentum)
    if steps < 1:
        raise OptionError(f"--steps {steps}: must be at least 1")
    check_trainable(chosen)
    data_sets = batches_of(chosen.whole, data, seed)
    batches = [data_sets.get(step) for step in range(steps)]
    said = [numbers(chosen, step, given) for step in range(steps)]
    asked = [next(iter(cut(chosen, batches[-1])))]
    return train_batches_on(
        plan, on, batches, said, graph=chosen, ram_bytes=ram_bytes, predict=predict, asked=asked, told=told
    )


def check_trainable(graph: TrainingGraph) -> None:
    """Raise OptionError where the step of `graph` has no optimizer."""
    if graph.optimizer == "none":
        raise OptionError(
            "--on: the plan's step ends with gradients, and nothing on the device updates parameters by them; "
            "solve with --optimizer sgd"
        )


def train_batches_on(
    plan: Plan,
    on: str,
    batches: Sequence[Batch],
    said: Sequence[Mapping[str, Array]],
    *,
    graph: TrainingGraph,
    ram_bytes: int | None = None,
    predict: Predict | None = None,
    asked: Sequence[Batch] = (),
    told: Told = silent,
) -> DeviceTraining:
    """The same with a step on each of `batches`, at least one, with the hyperparameters that `said` has for it.

    graph
        One that `check_trainable` has passed.
    asked
        What is predicted after the last step, where the program has a plan for that.
    """
    both, steps = _Both(plan, on, graph, ram_bytes, told, predict), len(batches)
    with scratch_folder("c") as folder:
        scheduled, plain = both.built(folder, measuring=False)
        told(f"{steps:,} steps on {on}, as planned")
        mine = run_steps(scheduled, batches, said, asked)
        told(f"{steps:,} steps on {on}, everything computed once")
        theirs = run_steps(plain, batches, said, asked)
    told("the same steps on onnxruntime, and how far one ulp moves them")
    here = Way(mine.losses, moved_by(graph, whole(graph), mine.results))
    exact, near = reference_ways(graph, batches, said)
    reference = allowed(exact, near, mine.results)
    differing = [k for k in range(steps) if mine.losses[k].tobytes() != theirs.losses[k].tobytes()]
    different = compare(mine.results, theirs.results, tuple(mine.results)).different
    return DeviceTraining(
        **both.figures(scheduled, mine),
        steps=steps,
        optimizer=graph.optimizer,
        hyperparameters={name: value.item() for name, value in said[0].items() if name != "step"},
        losses=tuple(map(float, mine.losses)),
        reference_losses=tuple(map(float, exact.losses)),
        bit_identical=not differing and not different,
        different=different,
        first_difference=differing[0] + 1 if differing else 0,
        distance=apart(here, exact),
        sensitivity=reference.together,
        far=reference.far(here.moved),
        loss_distance=_losses_apart(here, exact),
        values={row.name: mine.results[row.name] for row in both.program.parameters},
        statistics={old: mine.results[new] for old, new in graph.states.items()},
        predicted=both.predicted(asked, mine, theirs),
    )


def numbers(graph: TrainingGraph, step: int, given: Mapping[str, float]) -> Mapping[str, Array]:
    """The hyperparameters of a step, from 0, by what the optimizer calls them: `given`, else the step's own."""
    values = graph.joint.values
    found = {name: values[tensor].copy() for name, tensor in graph.hyperparameters.items()}
    for name, value in {**given, "step": step + 1}.items():
        if name in found:
            found[name][...] = value
    return found


def reference_ways(
    graph: TrainingGraph, batches: Sequence[Batch], said: Sequence[Mapping[str, Array]]
) -> tuple[Way, Sequence[Way]]:
    """Says where the steps go on onnxruntime, node by node, and where if what they read is an ulp off."""
    sessions, first = Sessions(graph, 1), whole(graph.joint)

    def way(seed: int | None) -> Way:
        steps, losses = Steps(graph, sessions, seed), []
        for batch, hyperparameters in zip(batches, said, strict=True):
            steps.say(hyperparameters)
            losses.append(steps.take(batch)[graph.loss].reshape(-1)[0])
        return Way(np.array(losses), moved_by(graph, first, steps.held))

    return way(None), [way(seed) for seed in range(TRIALS)]


def allowed(exact: Way, near: Sequence[Way], values: Mapping[str, Array]) -> UlpSensitivity:
    """Says how far one ulp takes the parameters, whose last `values` these are, and the losses, if these go further."""
    found = sensitivity(exact.moved, [way.moved for way in near], {name: values[name] for name in exact.moved})
    return replace(found, together=max(found.together, *(_losses_apart(way, exact) for way in near)))


def apart(a: Way, b: Way) -> float:
    """Says how far apart the parameters' ways are, relative to that of `b`, in the norm."""
    return distance(a.moved, b.moved, tuple(b.moved))


def _losses_apart(a: Way, b: Way) -> float:
    return distance({LOSSES: a.losses}, {LOSSES: b.losses}, (LOSSES,))
