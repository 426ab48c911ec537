"""`inspect`: contents of a model, and needs of its training, without solving."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from poetopt.api.models import Model, load
from poetopt.api.options import ModelOptions, ReadingOptions, TrainingOptions, changed, keywords, part
from poetopt.api.training import SAME_BYTES, TrainingFile, running
from poetopt.autodiff import unsupported
from poetopt.devices import device as device_of
from poetopt.devices.cost import homes
from poetopt.frontends.summary import summary
from poetopt.graph.problem import Problem
from poetopt.ops.nodes import resident_breakdown
from poetopt.ops.runtimes import runtime as runtime_of
from poetopt.report.inspection import Inspection, Needs, needs
from poetopt.util.errors import ModelError, OptionError
from poetopt.util.notes import document
from poetopt.util.process import building

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, kw_only=True)
class InspectOptions(ModelOptions):
    """Options of `inspect`: those of the training step; a loaded model takes only those of `differentiate`.

    Parameters
    ----------
    device
        Name or file of a device to compare with; for a problem file one of its own (default: its first).
    runtime
        Runtime of the operators, instead of the device's.
    """

    device: str | None = None
    runtime: str | None = None


@keywords(InspectOptions)
def inspect(
    model: Model | TrainingFile | onnx.ModelProto | str | os.PathLike[str], options: InspectOptions
) -> Inspection:
    """Report the contents of a model, its operators without a gradient rule, and the needs of its training.

    The result also reports a model that can't be trained, with the reason.

    Parameters
    ----------
    model
        Result of `load`, or its argument: a path, the name of a zoo network.
    {options}

    Raises
    ------
    DeviceError
        For an unknown device.
    """
    device, runtime, step_options = options.device, options.runtime, part(options, TrainingOptions)
    if not isinstance(model, Model | TrainingFile):
        model = load(model, **part(options, ReadingOptions))
    elif late_options := changed(options, ReadingOptions):
        raise OptionError(
            f"{', '.join(late_options)}: too late for a loaded model. Give the model's path with these options"
        )
    if isinstance(model, TrainingFile):
        model.differentiate(**step_options)
        problem = model.cost(device or next(iter(model.file.costs)), runtime=runtime)
        return Inspection(
            contents={
                "name": problem.name,
                "source": problem.model_ref,
                "content_hash": problem.model_hash,
                "notes": list(problem.notes),
            },
            needs=_needs(problem),
            device=device,
        )
    target = running(device_of(device or SAME_BYTES), runtime)
    contents = summary(model.graph)
    unsupported_operators = tuple(unsupported(model.graph, straight_through=options.straight_through))
    try:
        training = model.differentiate(**step_options).on(target.runtime)
    except ModelError as error:
        return Inspection(
            contents=contents, unsupported=unsupported_operators, training_error=str(error), device=device
        )
    problem = training.cost(target)
    step = training.graph.joint
    parts = resident_breakdown(step, homes(step, target).ram)
    if kernel_state_bytes := problem.resident_bytes - sum(parts.values()):
        parts = {**parts, "kernels' states": kernel_state_bytes}
    notes = [*runtime_of(target.runtime).notes(training.graph), *training.graph.notes]
    return Inspection(
        contents={**contents, "notes": notes, "important": document(notes)},
        unsupported=unsupported_operators,
        loss=training.graph.loss_kind,
        needs=_needs(problem),
        paged=_needs(training.cost(target, parameters="paged")) if device is not None and target.storage else None,
        resident=parts,
        device=device,
    )


def _needs(problem: Problem) -> Needs:
    """Return the needs of a problem, without garbage collections for its hundred thousand objects."""
    with building():
        return needs(problem)
