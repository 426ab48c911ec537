"""A training step, and what it costs on a device: `cost`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from poetopt import autodiff
from poetopt.api.options import TrainingOptions, changed, keywords
from poetopt.autodiff.passes.blocks import blocks
from poetopt.autodiff.passes.dequantized import dequantized_within
from poetopt.autodiff.passes.in_place import in_place
from poetopt.autodiff.passes.rows import OPTIMIZERS
from poetopt.devices import Device
from poetopt.devices import device as device_of
from poetopt.devices.cost import STREAM, cost, of_all_parts
from poetopt.devices.loading import canonical, is_path
from poetopt.devices.profile import Profile, load_profile, with_profile
from poetopt.devices.sanity import check_usable
from poetopt.ops.runtimes import DEFAULT, unknown
from poetopt.ops.runtimes import runtime as runtime_of
from poetopt.util.errors import DeviceError, OptionError
from poetopt.util.process import building
from poetopt.util.progress import telling
from poetopt.util.text import shown

if TYPE_CHECKING:
    from poetopt.backends.c.profiling import EmulatedProfile
    from poetopt.frontends.problem_file import ProblemFile
    from poetopt.graph import Graph, TrainingGraph
    from poetopt.graph.problem import Problem
    from poetopt.util.progress import Told

SAME_BYTES = "a72"
"""Bytes depend on the runtime alone: the device to take where only they matter."""
FLASH = "flash"
"""Key of the recipe of a problem whose parameters are paged: bytes of mapped flash for weights that nobody trains."""
DEVICE, PROFILE = "device", "profile"
"""Keys of a problem's recipe: the path of a device file, and the SHA-256 of a profile's content, where there is one."""
STREAMS = "stream"
"""Key of the recipe of a problem whose operators may stream operands."""
OVER = "over"
"""Key of the recipe of a step whose gradients may be written over what they are computed of."""
LAZY = "lazy_tables"
"""Key of the recipe of a step whose tables and their optimizer states are lazy, where they are paged."""


@dataclass(frozen=True)
class Training:
    """One training step: forward, loss and backward.

    graph
        The step as it is scheduled, for the runtime `runtime`.
    recipe
        How it was made.
    derived
        The step as autodiff left it, each operator by itself; None where `graph` stands for every runtime.
    by_rows
        Makes `derived` anew for an `optimizer`, with tables by the rows of a batch; None where there is no table,
        unless a batch in parts has no updates yet.
    """

    graph: TrainingGraph
    recipe: Mapping[str, object]
    runtime: str = DEFAULT
    derived: TrainingGraph | None = field(default=None, repr=False)
    by_rows: Callable[..., TrainingGraph] | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"<Training {described(self.graph)}, loss {self.graph.loss_kind}>"

    def on(self, runtime: str) -> Training:
        """The step as it is scheduled for another runtime: what works in place there. Raises DeviceError."""
        if self.derived is None or runtime == self.runtime:
            return self
        return replace(self, runtime=runtime)._scheduled(self.derived)

    def _scheduled(self, derived: TrainingGraph, **recipe: object) -> Training:
        """The step that is scheduled of `derived`, with `recipe` beside its own."""
        graph = scheduled(derived, str(self.recipe.get("granularity", "operator")), self.runtime)
        return replace(self, graph=graph, recipe={**self.recipe, **recipe}, derived=derived)

    def with_optimizer(self, optimizer: str, *, fuse: bool = True) -> Training:
        """The step with the updates of an optimizer, where it has none yet. Raises OptionError where it has."""
        if self.derived is None or self.graph.optimizer != "none":
            raise OptionError(f"--optimizer {optimizer}: the step is made already; give its model with that option")
        recipe = {"optimizer": optimizer} if fuse else {"optimizer": optimizer, "fuse": False}
        return self._scheduled(autodiff.with_updates(self.derived, optimizer, fuse=fuse), **recipe)

    def _for_device(self, device: Device, parameters: str = "resident") -> Training:
        """The step as it is scheduled on a device: `cost` counts what it takes, and changes nothing of it.

        Where parameters are paged, it has updates, and tables by rows where the other rows stay as they are.
        """
        updates = self.graph.optimizer == "none" and not self.graph.forward_only
        paged = parameters == "paged" and (updates or self.by_rows is not None)
        return (self._to_page(device) if paged else self).on(device.runtime)

    def _to_page(self, device: Device) -> Training:
        optimizer = self.graph.optimizer if self.graph.optimizer != "none" else "sgd"
        plain, takes = replace(self, by_rows=None), runtime_of(device.runtime)
        if self.by_rows is not None and (optimizer in OPTIMIZERS or self.recipe.get(LAZY) is True):
            multiple = takes.block_bytes(1 if device.storage is None else device.storage.block_bytes)
            whole = self.graph.parts > 1 and not takes.rows_of_parts
            derived = self.by_rows(optimizer=optimizer, row_bytes=multiple, **({"rows": False} if whole else {}))
            if derived.rows or derived.parts > 1:
                return plain._scheduled(derived, optimizer=optimizer)
        return plain if self.graph.optimizer != "none" else plain.with_optimizer(optimizer)

    def cost(
        self,
        device: Device | str | os.PathLike[str],
        *,
        profile: Profile | str | os.PathLike[str] | None = None,
        runtime: str | None = None,
        parameters: str = "resident",
        stream: str = STREAM[0],
    ) -> Problem:
        """The costs of the step on `device`: a `Device`, its name, or the path of its TOML file.

        profile
            Measured costs, or their file (`poetopt profile`): they count wherever there are any.
        runtime
            What runs the operators (`onnxruntime`, `c`), where it isn't what the device names.
        parameters
            `resident`, or `paged`: parameters and optimizer states have their home on storage, and are scheduled. A
            step that has no optimizer is made one with `sgd` then, as no gradient could stay.
        stream
            `auto`: where parameters are paged, operators may stream operands and outputs, chunk by chunk, in the ways
            that the runtime has; not with a profile, which measures plain runs alone. `never`: each operator runs with
            its operands in RAM.

        Raises DeviceError for an unknown name, a device that nothing can be costed on, or a profile that can't be read.
        """
        found = device_of(device) if isinstance(device, (str, os.PathLike)) else device
        if not isinstance(found, Device):
            raise DeviceError(f'device: give a name, as in device="a72" (po.devices.names()), not {device!r}')
        check_usable(found)
        found = running(found, runtime)
        if self.graph.label_weight and not runtime_of(found.runtime).rows_of_parts:
            raise OptionError(
                f"--micro-batch {self.graph.parts}: with ignore-index or class-weights the mean takes the labels of "
                f"all parts, and on the runtime {found.runtime} a batch comes part by part; leave --micro-batch out"
            )
        step = self._for_device(found, parameters)
        graph = step.graph
        ways = stream if parameters == "paged" and profile is None else STREAM[1]
        with building():
            over = step.recipe.get(OVER) is True
            problem = cost(graph, found, parameters=parameters, stream=ways, over=over)
            after = graph.closing
            last = None if after is None else cost(after, found, parameters=parameters, stream=ways, over=over)
        recipe = {**step.recipe, **_of_file(device)}
        if parameters != "resident":
            recipe |= {"parameters": parameters, FLASH: found.flash_room_bytes}
        if ways != STREAM[1]:
            recipe |= {STREAMS: ways}
        notes = (*_lazy_notes(graph, step.recipe.get(LAZY) is True), _pedigree(found))
        problem = replace(problem, recipe=recipe, notes=(*problem.notes, *notes))
        if profile is not None:
            measured = profile if isinstance(profile, Profile) else load_profile(profile)
            problem = replace(problem, recipe={**recipe, PROFILE: measured.content_hash})
            problem = with_profile(problem, found, measured)
        if graph.parts == 1:
            return problem
        return of_all_parts(problem, last, graph, found, parameters)

    def profile(self, *, power_w: float | None = None, workdir: str | os.PathLike[str] | None = None) -> Profile:
        """Measure this machine with this step: operators on onnxruntime, storage by files, energy where it is counted.

        power_w
            Watts of computing over idling, for where no energy counter can be read.
        workdir
            The folder whose storage is measured; by default the system's temporary one.

        Raises ExecutionError where a kernel or the storage fails.
        """
        from poetopt.backends.onnxruntime.profiling import profile

        return profile(self.graph, power_w=power_w, workdir=workdir)

    def profile_on(
        self, on: str, *, clock_hz: float | None = None, seed: int = 0, told: Told | None = None, progress: bool = False
    ) -> EmulatedProfile:
        """Count the instructions of this step's operators in C on an emulated core, and model their seconds.

        on
            `cortex-m4`, `cortex-m7` or `cortex-m0plus`.
        clock_hz
            By default that of the catalogue's m4, stm32f767 or m0.
        seed, told, progress
            As for `execute`.

        The result's `profile` is what `cost` takes. Raises UnsupportedOpError where an operator has no kernel in C,
        BackendUnavailableError without compiler or emulator, ExecutionError where the step fails.
        """
        from poetopt.backends.c.profiling import profile_on

        problem = self.cost(SAME_BYTES, runtime="c")
        return profile_on(problem, on, clock_hz=clock_hz, seed=seed, told=told or telling(progress))


@dataclass(frozen=True)
class TrainingFile:
    """A problem file: a training step already, with costs of its own. It can't be executed."""

    file: ProblemFile

    def __repr__(self) -> str:
        return f"<TrainingFile {shown(self.file.source)}, costs for {shown(', '.join(self.file.costs))}>"

    @keywords(TrainingOptions)
    def differentiate(self, options: TrainingOptions) -> TrainingFile:
        """Itself: its backward operators are in the file. Raises OptionError where anything is asked for."""
        if changed(options, TrainingOptions):
            raise OptionError(
                f"{self.file.source}: a problem file has its backward operators already; leave out --loss, --output, "
                "--optimizer, and --with ignore-index, class-weights, label-smoothing, granularity, straight-through, "
                "separate-updates, clip-norm, rates and lazy-tables"
            )
        return self

    def cost(
        self,
        device: Device | str | os.PathLike[str],
        *,
        profile: Profile | str | os.PathLike[str] | None = None,
        runtime: str | None = None,
        parameters: str = "resident",
        stream: str = STREAM[0],
    ) -> Problem:
        """The problem under the file's own costs for the device of that name; its operators run plain.

        Raises DeviceError for a device that it has no costs for, OptionError where a profile, a runtime or paged
        parameters are asked for.
        """
        if parameters != "resident":
            raise OptionError(
                f"{self.file.source}: a problem file says where its tensors are; leave out --parameters {parameters}"
            )
        if runtime is not None:
            raise OptionError(f"{self.file.source}: a problem file says what its operators take; leave out --runtime")
        if profile is not None:
            raise OptionError(f"{self.file.source}: a problem file has costs of its own; leave out --profile")
        name = os.fspath(device) if isinstance(device, (str, os.PathLike)) else device.name
        if name not in self.file.costs:
            name = canonical(name) or name
        return self.file.cost(name)


def bytes_alone(recipe: Mapping[str, object]) -> Device:
    """A device on which a problem has the operators, tensors and homes of the one with that recipe, at any costs."""
    flash = recipe.get(FLASH)
    return replace(device_of(SAME_BYTES), flash_bytes=flash if isinstance(flash, int) and flash > 0 else None)


def running(device: Device, runtime: str | None) -> Device:
    """The device with another runtime, where one is named. Raises DeviceError where there is none of that name."""
    if runtime is None:
        return device
    if wrong := unknown(runtime):
        raise DeviceError(wrong)
    return replace(device, runtime=runtime)


def parameters_of(recipe: Mapping[str, object]) -> str:
    """The place of parameters in the problem with that recipe: `resident`, or `paged`."""
    return "paged" if recipe.get("parameters") == "paged" else "resident"


def stream_of(recipe: Mapping[str, object]) -> str:
    """Tell whether operators of the problem with that recipe may stream operands; those of older plans don't."""
    return STREAM[0] if recipe.get(STREAMS) == STREAM[0] else STREAM[1]


def scheduled(derived: TrainingGraph, granularity: str, name: str) -> TrainingGraph:
    """The graph that is scheduled on the runtime `name`: what works in place joined, and blocks where asked for."""
    takes = runtime_of(name)
    with building():
        graph = in_place(dequantized_within(derived, takes), takes)
    return blocks(graph, takes) if granularity == "block" else graph


def described(graph: Graph) -> str:
    size = f"{len(graph.operators)} operators, {len(graph.trained)} trained tensors"
    return f"{shown(graph.source or graph.name)}: {size}"


def _of_file(device: Device | str | os.PathLike[str]) -> Mapping[str, str]:
    """A recipe's words on a device that has a file of its own."""
    return {DEVICE: os.fspath(device)} if isinstance(device, (str, os.PathLike)) and is_path(device) else {}


def _lazy_notes(graph: TrainingGraph, asked: bool) -> tuple[str, ...]:
    """Notes on --with lazy-tables."""
    tables = dict.fromkeys(rows.of for rows in graph.joint.rows.values() if rows.of)
    if tables:
        return (
            f"lazy: a row of {', '.join(tables)} and its states of {graph.optimizer} change in those steps alone that "
            f"use it, where {graph.optimizer} would move every row in every step",
        )
    return (
        ("--with lazy-tables changes nothing here: no table is paged by rows that has optimizer states",)
        if asked
        else ()
    )


def _pedigree(device: Device) -> str:
    """The pedigree of the figures behind every second and joule."""
    kinds = Counter(str(figure.kind) for figure in device.figures)
    known = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    kinds_known = f" ({known})" if known else ""
    return f"seconds and joules are the cost model's, from {device.name}'s figures{kinds_known}"
