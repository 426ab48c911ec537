"""A model: `load` reads it, `differentiate` makes a training step of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from poetopt.api.training import LAZY, OVER, LoadOptions, StepOptions, Training, TrainingFile, described, scheduled
from poetopt.autodiff.optimizers import CLIP
from poetopt.graph import FORWARD_ONLY
from poetopt.ops.runtimes import DEFAULT
from poetopt.util.errors import ModelError, OptionError
from poetopt.util.process import building
from poetopt.util.text import exported

if TYPE_CHECKING:
    import onnx

    from poetopt.devices import Device
    from poetopt.frontends.reading import ReadOptions
    from poetopt.graph import Graph, LabelRule, TrainingGraph


LABELS = ("ignore_index", "class_weights", "label_smoothing")
"""Keys of the recipe of a step whose cross-entropy doesn't take all labels and classes alike."""
TRAINS = ("clip_norm", "rates", "straight_through", "class_weights", "label_smoothing")
"""Options that make no sense where nothing is trained."""


@dataclass(frozen=True)
class Model:
    """A forward network, as `load` returns it. `recipe` is what was asked of the frontend."""

    graph: Graph
    recipe: Mapping[str, object]

    def __repr__(self) -> str:
        return f"<Model {described(self.graph)}>"

    def differentiate(
        self,
        *,
        granularity: str = "operator",
        lazy_tables: bool = False,
        maxima: bool = True,
        over: bool = True,
        **step: Unpack[StepOptions],
    ) -> Training:
        """Attach a loss and derive the backward operators.

        An operator that works in place is one with the operator that writes what it writes over (see
        `poetopt.autodiff.passes.in_place`). What works in place is the runtime's to say: onnxruntime's, until `cost`
        names a device with another.

        loss
            `cross-entropy`, `bce`, `mse`, `none` (the model's output is the loss), or `auto`, which picks by what the
            model does last and by the output's shape. `forward-only`: none, and no backward operators; the step is the
            network as it is used.
        output
            The output that the loss is on, where several could have it.
        ignore_index, class_weights, label_smoothing
            Of a cross-entropy that is attached, as of `torch.nn.CrossEntropyLoss`: the label of what is left out of the
            mean (-100), a weight for each class, and the share of a label that all classes have in equal parts.
        granularity
            `operator`, or `block`: chains of cheap operators are scheduled as one (see
            `poetopt.autodiff.passes.blocks`).
        straight_through
            Whether gradients pass QuantizeLinear with DequantizeLinear behind it, where nothing is clipped.
        optimizer
            `sgd`, `momentum`, `adam` or `adamw`: its updates are part of the step (see `poetopt.autodiff.optimizers`).
            With `none`, the step ends with the gradients.
        fuse
            Whether an update is one operator with the gradient that it alone reads.
        clip_norm
            Whether updates clip the gradients by the norm of all of them. The bound is given with each step
            (`clip_norm`), as a learning rate is; each gradient waits for that norm.
        rates
            What the learning rate of some parameters is multiplied with, by pattern: `{"features.*": 0.1}`. The first
            that matches counts.
        maxima
            Whether an activation that a MaxPool alone reads has its gradient taken of the maxima; older plans are run
            without.
        over
            Whether gradients may be written over what they are computed of (`poetopt.autodiff.passes.in_place`); older
            plans are run without.
        lazy_tables
            Whether, where parameters are paged, a row of an embedding and its optimizer states change in those steps
            alone that use it, so that momentum and Adam page such tables by rows, as SGD does in any case.

        Raises MissingVjpError where an operator on the way has no rule, ModelError where the loss doesn't fit.
        """
        from poetopt.autodiff.losses import label_rule
        from poetopt.autodiff.optimizers.attach import parse_rates
        from poetopt.autodiff.passes.blocks import GRANULARITIES
        from poetopt.autodiff.passes.rows import by_rows as with_rows

        if granularity not in GRANULARITIES:
            raise OptionError(f"--with granularity={granularity}: must be {' or '.join(GRANULARITIES)}")
        rule = label_rule(step.get("ignore_index"), step.get("class_weights"), step.get("label_smoothing", 0.0))
        named = self.graph.named or self.graph.parts > 1
        trains = lazy_tables or step.get("optimizer", "none") != "none" or any(map(step.get, TRAINS))
        if step.get("loss") == FORWARD_ONLY and (trains or step.get("ignore_index") is not None or named):
            raise OptionError(
                "--loss forward-only: nothing is trained; leave out --train, --freeze, --optimizer, --micro-batch, "
                "and --with clip-norm, rates, lazy-tables, straight-through and of labels"
            )
        derived = self.training_graph(**step, maxima=maxima, over=over)
        recipe = {**self.recipe, "loss": step.get("loss", "auto"), "output": step.get("output")}
        recipe |= {name: True for name, asked in (("maxima", maxima), (OVER, over)) if asked} | _of_labels(rule)
        recipe |= {"straight_through": True} if step.get("straight_through") else {}
        recipe |= {"granularity": granularity} if granularity == "block" else {}
        if (optimizer := step.get("optimizer", "none")) != "none":
            recipe |= {"optimizer": optimizer} if step.get("fuse", True) else {"optimizer": optimizer, "fuse": False}
        recipe |= {CLIP: True} if step.get("clip_norm") else {}
        recipe |= {"rates": parse_rates(step["rates"])} if step.get("rates") else {}
        recipe |= {LAZY: True} if lazy_tables else {}
        asked: dict[str, Any] = {
            **{name: value for name, value in step.items() if name != "optimizer"},
            "maxima": maxima,
            "over": over,
        }
        tables = with_rows(self.graph) is not self.graph
        anew = tables or (self.graph.parts > 1 and optimizer == "none")
        by_rows = partial(self.training_graph, **asked, rows=tables) if anew else None
        return Training(scheduled(derived, granularity, DEFAULT), recipe, derived=derived, by_rows=by_rows)

    def training_graph(
        self,
        *,
        loss: str = "auto",
        output: str | None = None,
        ignore_index: int | str | None = None,
        class_weights: Sequence[float] | str | None = None,
        label_smoothing: float | str = 0.0,
        straight_through: bool = False,
        optimizer: str = "none",
        fuse: bool = True,
        clip_norm: bool = False,
        rates: Mapping[str, float] | str | Sequence[str] | None = None,
        rows: bool = False,
        row_bytes: int = 1,
        maxima: bool = True,
        over: bool = True,
    ) -> TrainingGraph:
        """The training step with each of its operators by itself, as `poetopt grad` writes it.

        rows
            Whether tables are by the rows of a batch (`poetopt.autodiff.passes.rows`).
        row_bytes
            What a row of such a table is a multiple of; others stay whole.

        Other arguments and errors are those of `differentiate`.
        """
        from poetopt.autodiff import differentiate
        from poetopt.autodiff.losses import label_rule
        from poetopt.autodiff.optimizers import with_updates
        from poetopt.autodiff.optimizers.attach import parse_rates
        from poetopt.autodiff.passes.rows import by_rows, with_states

        try:
            with building():
                graph = by_rows(self.graph, row_bytes) if rows else self.graph
                step = differentiate(
                    graph, loss=loss, output=output, straight_through=straight_through, maxima=maxima, over=over,
                    label_rule=label_rule(ignore_index, class_weights, label_smoothing),
                )  # fmt: skip
                made = with_updates(step, optimizer, fuse=fuse, clip=clip_norm, rates=parse_rates(rates))
                return with_states(made, graph.rows)
        except (ModelError, OptionError) as error:
            if self.graph.source in str(error):
                raise
            raise type(error)(f"{self.graph.source}: {error}") from error


def _of_labels(rule: LabelRule) -> dict[str, object]:
    """A recipe's words on how labels are taken."""
    said = (rule.ignore_index, list(rule.class_weights) or None, rule.smoothing or None)
    return {name: value for name, value in zip(LABELS, said, strict=True) if value is not None}


def load(model: str | os.PathLike[str] | onnx.ModelProto, **options: Unpack[LoadOptions]) -> Model | TrainingFile:
    """Read a model: an ONNX file (or one in memory), a problem file, or the name of a zoo network.

    batch
        The size of the batch axis where the file leaves it open, or is to be changed.
    train
        Pattern, or patterns, of the parameters to train (`fc.*`); all of them by default.
    dims
        Sizes of dimensions that the file names: `{"height": 160}`.
    shapes
        Whole shapes of inputs, as numbers or in a text: `{"input": "1x3x160x160"}`; None, or `?`, for a size that the
        file, `batch` or `dims` says.
    values
        Inputs that become constants: `{"sr": 16000}`. A number fills an input of any size; lists and arrays are whole.
    allow_symlinks
        Whether weights in files of their own may lie outside of the model's folder, behind symbolic links.
    micro_batch
        Into how many parts of one size the batch is cut; the network is that of one part, and what is made of it sums
        the gradients of all. Refused where that isn't what the whole batch gives.
    micro_batch_statistics
        Whether BatchNormalization in training mode may take statistics of each part.

    Raises ModelError (or UnsupportedOpError) naming file, node and operator; OptionError for sizes and values that
    aren't the model's, or contradict each other.
    """
    from poetopt import frontends

    return read(model, frontends.read_options(**options))


def read(model: str | os.PathLike[str] | onnx.ModelProto, options: ReadOptions) -> Model | TrainingFile:
    """Read a model as `load` does, with all that is said of the file in one."""
    from poetopt import frontends
    from poetopt.frontends.problem_file import ProblemFile

    if advice := exported(model):
        raise TypeError(f"a model is needed here, not a {type(model).__name__}: {advice}")
    try:
        with building():
            found = frontends.load_model(model, options)
    except ModelError as error:
        if isinstance(model, str) and not os.path.exists(model) and _is_device(model):
            raise ModelError(
                f"{model}: a device, no model; the model comes first, as in poetopt solve net.onnx --device {model}"
            ) from error
        raise
    return TrainingFile(found) if isinstance(found, ProblemFile) else Model(found, options.to_recipe())


def differentiated(loaded: Model | TrainingFile, recipe: Mapping[str, object]) -> Training | TrainingFile:
    """The training step that a plan's recipe asks for; what `differentiate` wouldn't take counts as not asked."""
    if isinstance(loaded, TrainingFile):
        return loaded
    loss, output, granularity, optimizer = (recipe.get(k) for k in ("loss", "output", "granularity", "optimizer"))
    return loaded.differentiate(
        loss=loss if isinstance(loss, str) else "auto",
        output=output if isinstance(output, str) else None,
        granularity=granularity if isinstance(granularity, str) else "operator",
        straight_through=recipe.get("straight_through") is True,
        **{name: recipe[name] for name in (*LABELS, "rates") if name in recipe},  # type: ignore[arg-type]
        optimizer=optimizer if isinstance(optimizer, str) else "none",
        fuse=recipe.get("fuse") is not False,
        clip_norm=recipe.get(CLIP) is True,
        maxima=recipe.get("maxima") is True,
        over=recipe.get(OVER) is True,
        lazy_tables=recipe.get(LAZY) is True,
    )


def device(name: str | os.PathLike[str]) -> Device:
    """The device of that name (or alias) in the catalogue, or that a TOML file describes.

    Raises DeviceError, naming the closest ones.
    """
    from poetopt import devices

    return devices.device(name)


def _is_device(name: str) -> bool:
    from poetopt.devices.loading import canonical

    return canonical(name) is not None
