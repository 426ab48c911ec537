"""A model: `load` reads it, and `differentiate` makes a training step from it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from poetopt import autodiff, devices, frontends
from poetopt.api.options import ReadingOptions, StepOptions, TrainingOptions, changed, keywords, part
from poetopt.api.training import LAZY, OVER, Training, TrainingFile, described, scheduled
from poetopt.autodiff.optimizers import CLIP
from poetopt.autodiff.passes.blocks import GRANULARITIES
from poetopt.autodiff.passes.rows import by_rows, with_states
from poetopt.devices.loading import canonical
from poetopt.graph import FORWARD_ONLY, Graph
from poetopt.ops.runtimes import DEFAULT
from poetopt.util.errors import ModelError, OptionError
from poetopt.util.process import building
from poetopt.util.text import exported

if TYPE_CHECKING:
    import onnx

    from poetopt.devices import Device
    from poetopt.frontends.reading import ReadOptions
    from poetopt.graph import LabelRule, TrainingGraph


LABELS = ("ignore_index", "class_weights", "label_smoothing")
"""Keys of the recipe for a cross-entropy that treats labels or classes differently."""
ANY_TYPE = (*LABELS, "rates")
"""Options of the recipe whose values are checked on use."""
TRAINS = ("clip_norm", "rates", "straight_through", "class_weights", "label_smoothing")
"""Options that require training."""


@dataclass(frozen=True, kw_only=True)
class DerivedOptions(TrainingOptions):
    """Options of `Model.differentiate`, including those that steps of older plans lack.

    Parameters
    ----------
    maxima
        Whether an activation that only a MaxPool reads has its gradient computed from the maxima; older plans run
        without.
    over
        Whether gradients may overwrite the tensors that they are computed from (`poetopt.autodiff.passes.in_place`);
        older plans run without.
    """

    maxima: bool = True
    over: bool = True


@dataclass(frozen=True, kw_only=True)
class GraphOptions(StepOptions):
    """Options of a training graph.

    Parameters
    ----------
    rows
        Whether tables have only the rows of a batch (`poetopt.autodiff.passes.rows`).
    row_bytes
        Unit of a row's bytes; tables whose rows aren't a multiple stay whole.
    """

    rows: bool = False
    row_bytes: int = 1
    maxima: bool = True
    over: bool = True


@dataclass(frozen=True)
class Model:
    """A forward network, as `load` returns it.

    Attributes
    ----------
    recipe
        Options of the frontend.
    """

    graph: Graph
    recipe: Mapping[str, object]

    def __repr__(self) -> str:
        return f"<Model {described(self.graph)}>"

    @keywords(DerivedOptions)
    def differentiate(self, options: DerivedOptions) -> Training:
        """Attach a loss and derive the backward operators.

        An operator that works in place is merged with the operator whose output it overwrites (see
        `poetopt.autodiff.passes.in_place`). The runtime decides which operators do: onnxruntime, until `cost` names a
        device with another runtime.

        Parameters
        ----------
        {options}

        Raises
        ------
        MissingVjpError
            If an operator on a differentiable path has no rule.
        ModelError
            If the loss doesn't fit the model.
        """
        granularity, optimizer = options.granularity, options.optimizer
        if granularity not in GRANULARITIES:
            raise OptionError(f"--granularity {granularity}: must be {' or '.join(GRANULARITIES)}")
        rule = autodiff.label_rule(options.ignore_index, options.class_weights, options.label_smoothing)
        has_fixed_training = self.graph.named or self.graph.parts > 1
        trains = options.lazy_tables or optimizer != "none" or not {*TRAINS}.isdisjoint(changed(options, StepOptions))
        if options.loss == FORWARD_ONLY and (trains or options.ignore_index is not None or has_fixed_training):
            raise OptionError(
                "--loss forward-only: nothing is trained. Leave out --train, --freeze, --optimizer, --micro-batch, and "
                "--clip-norm, --rates, --lazy-tables, --straight-through, ignore-index, class-weights, label-smoothing"
            )
        graph_options = {**part(options, StepOptions), "maxima": options.maxima, "over": options.over}
        derived = self.training_graph(**graph_options)
        recipe = {**self.recipe, "loss": options.loss, "output": options.output}
        recipe |= {name: True for name in ("maxima", OVER) if getattr(options, name)} | _label_recipe(rule)
        recipe |= {"straight_through": True} if options.straight_through else {}
        recipe |= {"granularity": granularity} if granularity == "block" else {}
        if optimizer != "none":
            recipe |= {"optimizer": optimizer} if options.fuse else {"optimizer": optimizer, "fuse": False}
        recipe |= {CLIP: True} if options.clip_norm else {}
        recipe |= {"rates": autodiff.parse_rates(options.rates)} if options.rates else {}
        recipe |= {LAZY: True} if options.lazy_tables else {}
        tables = by_rows(self.graph) is not self.graph
        needs_paged_step = tables or (self.graph.parts > 1 and optimizer == "none")
        paged_step = partial(self.training_graph, **{**graph_options, "rows": tables}) if needs_paged_step else None
        return Training(scheduled(derived, granularity, DEFAULT), recipe, derived=derived, by_rows=paged_step)

    @keywords(GraphOptions)
    def training_graph(self, options: GraphOptions) -> TrainingGraph:
        """Return the training step before operators are merged, as `poetopt grad` writes it.

        Parameters
        ----------
        {options}

        Raises
        ------
        PoetError
            As `differentiate`.
        """
        try:
            with building():
                graph = by_rows(self.graph, options.row_bytes) if options.rows else self.graph
                rule = autodiff.label_rule(options.ignore_index, options.class_weights, options.label_smoothing)
                step = autodiff.differentiate(
                    graph,
                    loss=options.loss,
                    output=options.output,
                    straight_through=options.straight_through,
                    maxima=options.maxima,
                    over=options.over,
                    label_rule=rule,
                )
                step = autodiff.with_updates(
                    step,
                    options.optimizer,
                    fuse=options.fuse,
                    clip=options.clip_norm,
                    rates=autodiff.parse_rates(options.rates),
                )
                return with_states(step, graph.rows)
        except (ModelError, OptionError) as error:
            if self.graph.source in str(error):
                raise
            raise type(error)(f"{self.graph.source}: {error}") from error


def _label_recipe(rule: LabelRule) -> dict[str, object]:
    """Return the entries of a recipe for the treatment of labels."""
    values = (rule.ignore_index, list(rule.class_weights) or None, rule.smoothing or None)
    return {name: value for name, value in zip(LABELS, values, strict=True) if value is not None}


@keywords(ReadingOptions)
def load(model: str | os.PathLike[str] | onnx.ModelProto, options: ReadingOptions) -> Model | TrainingFile:
    """Read a model: an ONNX file (or one in memory), a problem file, or the name of a zoo network.

    Parameters
    ----------
    {options}

    Raises
    ------
    ModelError
        For an invalid model; the message names file, node and operator. UnsupportedOpError for an unsupported operator.
    OptionError
        For sizes and values that don't fit the model or contradict each other.
    """
    return read(model, frontends.read_options(**part(options, ReadingOptions)))


def read(model: str | os.PathLike[str] | onnx.ModelProto, options: ReadOptions) -> Model | TrainingFile:
    """Read a model as `load` does, with all options in one object."""
    if hint := exported(model):
        raise TypeError(f"a model is needed, not a {type(model).__name__}: {hint}")
    try:
        with building():
            loaded = frontends.load_model(model, options)
    except ModelError as error:
        if isinstance(model, str) and not os.path.exists(model) and canonical(model) is not None:
            raise ModelError(
                f"{model}: a device, not a model. The model comes first, as in poetopt solve net.onnx --device {model}"
            ) from error
        raise
    return Model(loaded, options.to_recipe()) if isinstance(loaded, Graph) else TrainingFile(loaded)


def differentiated(loaded: Model | TrainingFile, recipe: Mapping[str, object]) -> Training | TrainingFile:
    """Return the training step of a plan's recipe; invalid values of `differentiate` are ignored."""
    if isinstance(loaded, TrainingFile):
        return loaded
    step_options: dict[str, Any] = {"maxima": False, "over": False}
    for one in fields(DerivedOptions):
        value = recipe.get(one.name)
        if value is not None and (one.name in ANY_TYPE or isinstance(value, type(one.default))):
            step_options[one.name] = value
    if isinstance(recipe.get("output"), str):
        step_options["output"] = recipe["output"]
    return loaded.differentiate(**step_options)


def device(name: str | os.PathLike[str]) -> Device:
    """Return the device with that name (or alias) in the catalogue, or that a TOML file describes.

    Raises DeviceError, which names the closest devices.
    """
    return devices.device(name)
