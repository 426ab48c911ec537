"""A model: `load` reads it, `differentiate` makes a training step of it."""

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
"""Keys of the recipe of a step whose cross-entropy doesn't take all labels and classes alike."""
ANY_TYPE = (*LABELS, "rates")
"""Options of the recipe whose values are checked where they are used."""
TRAINS = ("clip_norm", "rates", "straight_through", "class_weights", "label_smoothing")
"""Options that make no sense where nothing is trained."""


@dataclass(frozen=True, kw_only=True)
class DerivedOptions(TrainingOptions):
    """The same, and what the steps of older plans lack.

    maxima
        Whether an activation that a MaxPool alone reads has its gradient taken of the maxima; older plans are run
        without.
    over
        Whether gradients may be written over what they are computed of (`poetopt.autodiff.passes.in_place`); older
        plans are run without.
    """

    maxima: bool = True
    over: bool = True


@dataclass(frozen=True, kw_only=True)
class GraphOptions(StepOptions):
    """The options of a training graph.

    rows
        Whether tables are by the rows of a batch (`poetopt.autodiff.passes.rows`).
    row_bytes
        What a row of such a table is a multiple of; others stay whole.
    """

    rows: bool = False
    row_bytes: int = 1
    maxima: bool = True
    over: bool = True


@dataclass(frozen=True)
class Model:
    """A forward network, as `load` returns it. `recipe` is what was asked of the frontend."""

    graph: Graph
    recipe: Mapping[str, object]

    def __repr__(self) -> str:
        return f"<Model {described(self.graph)}>"

    @keywords(DerivedOptions)
    def differentiate(self, options: DerivedOptions) -> Training:
        """Attach a loss and derive the backward operators.

        An operator that works in place is one with the operator that writes what it writes over (see
        `poetopt.autodiff.passes.in_place`). What works in place is the runtime's to say: onnxruntime's, until `cost`
        names a device with another.

        {options}
        Raises MissingVjpError where an operator on the way has no rule, ModelError where the loss doesn't fit.
        """
        granularity, optimizer = options.granularity, options.optimizer
        if granularity not in GRANULARITIES:
            raise OptionError(f"--with granularity={granularity}: must be {' or '.join(GRANULARITIES)}")
        rule = autodiff.label_rule(options.ignore_index, options.class_weights, options.label_smoothing)
        named = self.graph.named or self.graph.parts > 1
        trains = options.lazy_tables or optimizer != "none" or not {*TRAINS}.isdisjoint(changed(options, StepOptions))
        if options.loss == FORWARD_ONLY and (trains or options.ignore_index is not None or named):
            raise OptionError(
                "--loss forward-only: nothing is trained; leave out --train, --freeze, --optimizer, --micro-batch, "
                "and --with clip-norm, rates, lazy-tables, straight-through and of labels"
            )
        asked = {**part(options, StepOptions), "maxima": options.maxima, "over": options.over}
        derived = self.training_graph(**asked)
        recipe = {**self.recipe, "loss": options.loss, "output": options.output}
        recipe |= {name: True for name in ("maxima", OVER) if getattr(options, name)} | _of_labels(rule)
        recipe |= {"straight_through": True} if options.straight_through else {}
        recipe |= {"granularity": granularity} if granularity == "block" else {}
        if optimizer != "none":
            recipe |= {"optimizer": optimizer} if options.fuse else {"optimizer": optimizer, "fuse": False}
        recipe |= {CLIP: True} if options.clip_norm else {}
        recipe |= {"rates": autodiff.parse_rates(options.rates)} if options.rates else {}
        recipe |= {LAZY: True} if options.lazy_tables else {}
        tables = by_rows(self.graph) is not self.graph
        anew = tables or (self.graph.parts > 1 and optimizer == "none")
        paged = partial(self.training_graph, **{**asked, "rows": tables}) if anew else None
        return Training(scheduled(derived, granularity, DEFAULT), recipe, derived=derived, by_rows=paged)

    @keywords(GraphOptions)
    def training_graph(self, options: GraphOptions) -> TrainingGraph:
        """The training step with each of its operators by itself, as `poetopt grad` writes it.

        {options}
        Errors are those of `differentiate`.
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


def _of_labels(rule: LabelRule) -> dict[str, object]:
    """A recipe's words on how labels are taken."""
    said = (rule.ignore_index, list(rule.class_weights) or None, rule.smoothing or None)
    return {name: value for name, value in zip(LABELS, said, strict=True) if value is not None}


@keywords(ReadingOptions)
def load(model: str | os.PathLike[str] | onnx.ModelProto, options: ReadingOptions) -> Model | TrainingFile:
    """Read a model: an ONNX file (or one in memory), a problem file, or the name of a zoo network.

    {options}
    Raises ModelError (or UnsupportedOpError) naming file, node and operator; OptionError for sizes and values that
    aren't the model's, or contradict each other.
    """
    return read(model, frontends.read_options(**part(options, ReadingOptions)))


def read(model: str | os.PathLike[str] | onnx.ModelProto, options: ReadOptions) -> Model | TrainingFile:
    """Read a model as `load` does, with all that is said of the file in one."""
    if advice := exported(model):
        raise TypeError(f"a model is needed here, not a {type(model).__name__}: {advice}")
    try:
        with building():
            found = frontends.load_model(model, options)
    except ModelError as error:
        if isinstance(model, str) and not os.path.exists(model) and canonical(model) is not None:
            raise ModelError(
                f"{model}: a device, no model; the model comes first, as in poetopt solve net.onnx --device {model}"
            ) from error
        raise
    return Model(found, options.to_recipe()) if isinstance(found, Graph) else TrainingFile(found)


def differentiated(loaded: Model | TrainingFile, recipe: Mapping[str, object]) -> Training | TrainingFile:
    """The training step that a plan's recipe asks for; what `differentiate` wouldn't take counts as not asked."""
    if isinstance(loaded, TrainingFile):
        return loaded
    asked: dict[str, Any] = {"maxima": False, "over": False}
    for one in fields(DerivedOptions):
        value = recipe.get(one.name)
        if value is not None and (one.name in ANY_TYPE or isinstance(value, type(one.default))):
            asked[one.name] = value
    if isinstance(recipe.get("output"), str):
        asked["output"] = recipe["output"]
    return loaded.differentiate(**asked)


def device(name: str | os.PathLike[str]) -> Device:
    """The device of that name (or alias) in the catalogue, or that a TOML file describes.

    Raises DeviceError, naming the closest ones.
    """
    return devices.device(name)
