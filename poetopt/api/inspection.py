"""`inspect`: what a model consists of, and what training it takes, without solving anything."""

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
    """The options of `inspect`: those of the training step, which for what is loaded already are of the step alone.

    device
        Name or file of a device to compare with; for a problem file one of its own (default: its first).
    runtime
        What runs the operators, whatever the device names.
    """

    device: str | None = None
    runtime: str | None = None


@keywords(InspectOptions)
def inspect(
    model: Model | TrainingFile | onnx.ModelProto | str | os.PathLike[str], options: InspectOptions
) -> Inspection:
    """Look at a model: contents, what has no gradient rule, and what training it takes.

    model
        What `load` gave, or what it takes: a path, a zoo network's name.
    {options}
    Raises DeviceError for an unknown device. A model that can't be trained is told in the result.
    """
    device, runtime, asked = options.device, options.runtime, part(options, TrainingOptions)
    if not isinstance(model, Model | TrainingFile):
        model = load(model, **part(options, ReadingOptions))
    elif late := changed(options, ReadingOptions):
        raise OptionError(f"{', '.join(late)}: too late for what is loaded; give the model's path with them")
    if isinstance(model, TrainingFile):
        model.differentiate(**asked)
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
    found = running(device_of(device or SAME_BYTES), runtime)
    contents = summary(model.graph)
    missing = tuple(unsupported(model.graph, straight_through=options.straight_through))
    try:
        training = model.differentiate(**asked).on(found.runtime)
    except ModelError as error:
        return Inspection(contents=contents, unsupported=missing, training_error=str(error), device=device)
    problem = training.cost(found)
    step = training.graph.joint
    parts = resident_breakdown(step, homes(step, found).ram)
    if kept := problem.resident_bytes - sum(parts.values()):
        parts = {**parts, "kernels' states": kept}
    said = [*runtime_of(found.runtime).notes(training.graph), *training.graph.notes]
    return Inspection(
        contents={**contents, "notes": said, "important": document(said)},
        unsupported=missing,
        loss=training.graph.loss_kind,
        needs=_needs(problem),
        paged=_needs(training.cost(found, parameters="paged")) if device is not None and found.storage else None,
        resident=parts,
        device=device,
    )


def _needs(problem: Problem) -> Needs:
    """The find of `needs`; lists of a hundred thousand are no reason to look for garbage."""
    with building():
        return needs(problem)
