"""A training step, and its costs on a device: `cost`."""

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
"""Device to use if only bytes matter, which depend on the runtime but not on the device."""
FLASH = "flash"
"""Key of the recipe of a problem with paged parameters: bytes of mapped flash for untrained weights."""
DEVICE, PROFILE = "device", "profile"
"""Keys of a problem's recipe: path of the device file, and SHA-256 of the profile's content, if there is one."""
STREAMS = "stream"
"""Key of the recipe of a problem whose operators may stream operands."""
OVER = "over"
"""Key of the recipe of a step whose gradients may overwrite the tensors that they are computed from."""
LAZY = "lazy_tables"
"""Key of the recipe of a step whose paged tables and their optimizer states are lazy."""


@dataclass(frozen=True)
class Training:
    """One training step: forward, loss and backward.

    Attributes
    ----------
    graph
        Step as it is scheduled, for the runtime `runtime`.
    recipe
        Options that it was made with.
    derived
        Step from autodiff, before operators are merged; None if `graph` is for every runtime.
    by_rows
        Function that makes `derived` again for an `optimizer`, with tables by the rows of a batch; None if there is no
        table, unless a batch in parts has no updates yet.
    """

    graph: TrainingGraph
    recipe: Mapping[str, object]
    runtime: str = DEFAULT
    derived: TrainingGraph | None = field(default=None, repr=False)
    by_rows: Callable[..., TrainingGraph] | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"<Training {described(self.graph)}, loss {self.graph.loss_kind}>"

    def on(self, runtime: str) -> Training:
        """Return the step as it is scheduled for another runtime, with its in-place operators. Raises DeviceError."""
        if self.derived is None or runtime == self.runtime:
            return self
        return replace(self, runtime=runtime)._scheduled(self.derived)

    def _scheduled(self, derived: TrainingGraph, **recipe: object) -> Training:
        """Return the step scheduled from `derived`, with `recipe` added to its own."""
        graph = scheduled(derived, str(self.recipe.get("granularity", "operator")), self.runtime)
        return replace(self, graph=graph, recipe={**self.recipe, **recipe}, derived=derived)

    def with_optimizer(self, optimizer: str, *, fuse: bool = True) -> Training:
        """Return the step with the updates of an optimizer. Raises OptionError if it has updates already."""
        if self.derived is None or self.graph.optimizer != "none":
            raise OptionError(f"--optimizer {optimizer}: the step is made already. Give its model with that option")
        recipe = {"optimizer": optimizer} if fuse else {"optimizer": optimizer, "fuse": False}
        return self._scheduled(autodiff.with_updates(self.derived, optimizer, fuse=fuse), **recipe)

    def _for_device(self, device: Device, parameters: str = "resident") -> Training:
        """Return the step as it is scheduled on a device; `cost` only computes its costs.

        If parameters are paged, it has updates, and tables by rows if the other rows don't change.
        """
        lacks_updates = self.graph.optimizer == "none" and not self.graph.forward_only
        is_changed = parameters == "paged" and (lacks_updates or self.by_rows is not None)
        return (self._with_paged_parameters(device) if is_changed else self).on(device.runtime)

    def _with_paged_parameters(self, device: Device) -> Training:
        optimizer = self.graph.optimizer if self.graph.optimizer != "none" else "sgd"
        without_rows, device_runtime = replace(self, by_rows=None), runtime_of(device.runtime)
        if self.by_rows is not None and (optimizer in OPTIMIZERS or self.recipe.get(LAZY) is True):
            row_bytes = device_runtime.block_bytes(1 if device.storage is None else device.storage.block_bytes)
            keeps_tables = self.graph.parts > 1 and not device_runtime.rows_of_parts
            derived = self.by_rows(
                optimizer=optimizer, row_bytes=row_bytes, **({"rows": False} if keeps_tables else {})
            )
            if derived.rows or derived.parts > 1:
                return without_rows._scheduled(derived, optimizer=optimizer)
        return without_rows if self.graph.optimizer != "none" else without_rows.with_optimizer(optimizer)

    def cost(
        self,
        device: Device | str | os.PathLike[str],
        *,
        profile: Profile | str | os.PathLike[str] | None = None,
        runtime: str | None = None,
        parameters: str = "resident",
        stream: str = STREAM[0],
    ) -> Problem:
        """Return the problem of the step on `device`: a `Device`, its name, or the path of its TOML file.

        Parameters
        ----------
        profile
            Measured costs, or their file (`poetopt profile`): they replace estimates.
        runtime
            Runtime of the operators (`onnxruntime`, `c`), if it isn't the device's.
        parameters
            `resident`, or `paged`: parameters and optimizer states have their home on storage, and are scheduled. A
            step without an optimizer then gets `sgd`, because gradients couldn't stay in RAM.
        stream
            `auto`: if parameters are paged, operators may stream operands and outputs in chunks, as the runtime's
            variants allow; not with a profile, which measures only runs without streaming. `never`: each operator runs
            with its operands in RAM.

        Raises
        ------
        DeviceError
            For an unknown name, a device with unusable figures, or a profile that can't be read.
        """
        target = device_of(device) if isinstance(device, (str, os.PathLike)) else device
        if not isinstance(target, Device):
            raise DeviceError(f'device: give a name, as in device="a72" (po.devices.names()), not {device!r}')
        check_usable(target)
        target = running(target, runtime)
        if self.graph.label_weight and not runtime_of(target.runtime).rows_of_parts:
            raise OptionError(
                f"--micro-batch {self.graph.parts}: with ignore-index or class-weights the mean needs the labels of "
                f"all parts, but on the runtime {target.runtime} a batch comes part by part. Leave --micro-batch out"
            )
        step = self._for_device(target, parameters)
        graph = step.graph
        streaming = stream if parameters == "paged" and profile is None else STREAM[1]
        with building():
            over = step.recipe.get(OVER) is True
            problem = cost(graph, target, parameters=parameters, stream=streaming, over=over)
            updates = graph.closing
            update_problem = (
                None if updates is None else cost(updates, target, parameters=parameters, stream=streaming, over=over)
            )
        recipe = {**step.recipe, **_device_file(device)}
        if parameters != "resident":
            recipe |= {"parameters": parameters, FLASH: target.flash_room_bytes}
        if streaming != STREAM[1]:
            recipe |= {STREAMS: streaming}
        notes = (*_lazy_notes(graph, step.recipe.get(LAZY) is True), _source_note(target))
        problem = replace(problem, recipe=recipe, notes=(*problem.notes, *notes))
        if profile is not None:
            measured = profile if isinstance(profile, Profile) else load_profile(profile)
            problem = replace(problem, recipe={**recipe, PROFILE: measured.content_hash})
            problem = with_profile(problem, target, measured)
        if graph.parts == 1:
            return problem
        return of_all_parts(problem, update_problem, graph, target, parameters)

    def profile(self, *, power_w: float | None = None, workdir: str | os.PathLike[str] | None = None) -> Profile:
        """Measure this machine with this step: operators on onnxruntime, storage by files, energy by a counter if any.

        Parameters
        ----------
        power_w
            Watts of computing above idling, if no energy counter can be read.
        workdir
            Folder whose storage is measured; by default the system's temporary one.

        Raises
        ------
        ExecutionError
            If a kernel or the storage fails.
        """
        from poetopt.backends.onnxruntime.profiling import profile

        return profile(self.graph, power_w=power_w, workdir=workdir)

    def profile_on(
        self, on: str, *, clock_hz: float | None = None, seed: int = 0, told: Told | None = None, progress: bool = False
    ) -> EmulatedProfile:
        """Count the instructions of this step's operators in C on an emulated core, and model their seconds.

        The result's `profile` is an argument of `cost`.

        Parameters
        ----------
        on
            `cortex-m4`, `cortex-m7` or `cortex-m0plus`.
        clock_hz
            By default that of the catalogue's m4, stm32f767 or m0.
        seed, told, progress
            As for `execute`.

        Raises
        ------
        UnsupportedOpError
            If an operator has no kernel in C.
        BackendUnavailableError
            Without compiler or emulator.
        ExecutionError
            If the step fails.
        """
        from poetopt.backends.c.profiling import profile_on

        problem = self.cost(SAME_BYTES, runtime="c")
        return profile_on(problem, on, clock_hz=clock_hz, seed=seed, told=told or telling(progress))


@dataclass(frozen=True)
class TrainingFile:
    """A problem file: a complete training step with its own costs. It can't be executed."""

    file: ProblemFile

    def __repr__(self) -> str:
        return f"<TrainingFile {shown(self.file.source)}, costs for {shown(', '.join(self.file.costs))}>"

    @keywords(TrainingOptions)
    def differentiate(self, options: TrainingOptions) -> TrainingFile:
        """Return itself: the file contains its backward operators. Raises OptionError for any option."""
        if changed(options, TrainingOptions):
            raise OptionError(
                f"{self.file.source}: a problem file has its backward operators already. Leave out --loss, --output, "
                "--optimizer, and --ignore-index, --class-weights, --label-smoothing, --granularity, "
                "--straight-through, --separate-updates, --clip-norm, --rates and --lazy-tables"
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
        """Return the problem with the file's own costs for the device of that name; operators don't stream.

        Raises
        ------
        DeviceError
            For a device that the file has no costs for.
        OptionError
            For a profile, a runtime or paged parameters.
        """
        if parameters != "resident":
            raise OptionError(
                f"{self.file.source}: a problem file has homes of its tensors. Leave out --parameters {parameters}"
            )
        if runtime is not None:
            raise OptionError(f"{self.file.source}: a problem file has costs of its operators. Leave out --runtime")
        if profile is not None:
            raise OptionError(f"{self.file.source}: a problem file has its own costs. Leave out --profile")
        name = os.fspath(device) if isinstance(device, (str, os.PathLike)) else device.name
        if name not in self.file.costs:
            name = canonical(name) or name
        return self.file.cost(name)


def bytes_alone(recipe: Mapping[str, object]) -> Device:
    """Return a device on which a problem has the operators, tensors and homes of that recipe, at any costs."""
    flash = recipe.get(FLASH)
    return replace(device_of(SAME_BYTES), flash_bytes=flash if isinstance(flash, int) and flash > 0 else None)


def running(device: Device, runtime: str | None) -> Device:
    """Return the device with another runtime, if one is named. Raises DeviceError for an unknown runtime."""
    if runtime is None:
        return device
    if fault := unknown(runtime):
        raise DeviceError(fault)
    return replace(device, runtime=runtime)


def parameters_of(recipe: Mapping[str, object]) -> str:
    """Return the place of parameters in the problem with that recipe: `resident`, or `paged`."""
    return "paged" if recipe.get("parameters") == "paged" else "resident"


def stream_of(recipe: Mapping[str, object]) -> str:
    """Return whether operators of the problem with that recipe may stream: `auto` or `never` (older plans)."""
    return STREAM[0] if recipe.get(STREAMS) == STREAM[0] else STREAM[1]


def scheduled(derived: TrainingGraph, granularity: str, name: str) -> TrainingGraph:
    """Return the graph that is scheduled on the runtime `name`: in-place operators joined, and blocks if requested."""
    target_runtime = runtime_of(name)
    with building():
        graph = in_place(dequantized_within(derived, target_runtime), target_runtime)
    return blocks(graph, target_runtime) if granularity == "block" else graph


def described(graph: Graph) -> str:
    size = f"{len(graph.operators)} operators, {len(graph.trained)} trained tensors"
    return f"{shown(graph.source or graph.name)}: {size}"


def _device_file(device: Device | str | os.PathLike[str]) -> Mapping[str, str]:
    """Return the recipe's entry for a device from a file."""
    return {DEVICE: os.fspath(device)} if isinstance(device, (str, os.PathLike)) and is_path(device) else {}


def _lazy_notes(graph: TrainingGraph, is_requested: bool) -> tuple[str, ...]:
    """Return notes on --lazy-tables."""
    tables = dict.fromkeys(rows.of for rows in graph.joint.rows.values() if rows.of)
    if tables:
        return (
            f"lazy: a row of {', '.join(tables)} and its states of {graph.optimizer} change only in steps that use "
            f"it, although {graph.optimizer} would change every row in every step",
        )
    return ("--lazy-tables changes nothing: no table with optimizer states is paged by rows",) if is_requested else ()


def _source_note(device: Device) -> str:
    """Return a note on the sources of all seconds and joules."""
    kinds = Counter(str(figure.kind) for figure in device.figures)
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    in_parentheses = f" ({counts})" if counts else ""
    return f"seconds and joules are the cost model's, from {device.name}'s figures{in_parentheses}"
