"""Training for epochs with a plan, in Python: `Trainer`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from poetopt.api.plans import budget_of, load_plan, plan_in, read_plan
from poetopt.autodiff.optimizers import CLIP
from poetopt.backends.onnxruntime.prepared import Prepared
from poetopt.devices.meters import Meter, open_meter
from poetopt.training.checkpoint import newest
from poetopt.training.export import Exporting
from poetopt.training.learner import Learner
from poetopt.training.loop import Fit, FitOptions, Position, Trained
from poetopt.training.source import checked_batch, parse_schedule, source_of
from poetopt.util.errors import PlanError
from poetopt.util.files import Closing
from poetopt.util.progress import telling
from poetopt.util.units import parse_whole

if TYPE_CHECKING:
    import onnx

    from poetopt.graph import Array
    from poetopt.plan.codec import PlanFile
    from poetopt.plan.instructions import Plan
    from poetopt.report.report import Report
    from poetopt.training.augment import Asked as Augment
    from poetopt.training.evaluate import Evaluation
    from poetopt.training.metrics import Asked
    from poetopt.training.source import Data
    from poetopt.util.progress import Told


class Trainer(Closing):
    """Trainer of a network by a plan, without anything besides the schedule; a context manager.

        report = po.solve(po.load("net.onnx").differentiate(optimizer="adam").cost("a72"), ram="60%")
        with po.Trainer(report, lr=1e-3) as trainer:
            trainer.fit({"input": x, "labels": y}, epochs=3, validate={"input": x_test, "labels": y_test})
            trainer.export("trained.onnx")

    Parameters
    ----------
    plan
        A plan, the result of `solve` or `load_plan`, the path of a plan file, or a prepared step.
    model
        Network that `export` writes with new values; with the path of a plan file also the one whose weights training
        begins with. By default the plan's own.
    lr, momentum, weight_decay, hyperparameters
        Hyperparameters of the plan's optimizer; others (`beta1`, `eps`, ...) by their names. Those that aren't given
        have their defaults. For a plan whose step ends with gradients, plain descent follows, with `lr` only. Other
        updates are part of the step (`solve --optimizer`), or your own: `step(batch, lr=0)`, then update `parameters`
        by `gradients`.
    lr_schedule
        `constant`, `cosine`, or `step:EPOCHS:FACTOR` (`step:10:0.1`), for `fit`. `warmup:500,cosine` first raises the
        rate over 500 steps, `warmup:5%,cosine` over a share of all steps.
    clip_norm
        Bound of the norm of all gradients, 1 by default, if the plan's step clips (`solve --clip-norm`).
    seed
        Seed of the order of batches.
    workdir
        Folder of paged tensors, and of data that must be unpacked; by default the system's temporary folder.
    allow_symlinks
        As in `load`, for the path of a plan file with a `model`, and for `export`.
    told, progress
        As for `execute`.

    Raises
    ------
    OptionError
        For options that the plan's step doesn't have.
    PlanError
        For a plan that can't be executed.
    """

    def __init__(
        self,
        plan: Plan | PlanFile | Report | Prepared | str | os.PathLike[str],
        *,
        model: str | os.PathLike[str] | onnx.ModelProto | None = None,
        lr: float | None = None,
        momentum: float | None = None,
        weight_decay: float | None = None,
        hyperparameters: Mapping[str, float] | None = None,
        lr_schedule: str = "constant",
        clip_norm: float | None = None,
        seed: int = 0,
        workdir: str | os.PathLike[str] | None = None,
        allow_symlinks: bool = False,
        threads: int = 1,
        told: Told | None = None,
        progress: bool = False,
    ) -> None:
        self.seed = parse_whole(seed, option="--seed", least=0)
        self.lr_schedule, self._schedule = lr_schedule, parse_schedule(lr_schedule)
        self._told = told or telling(progress)
        if isinstance(plan, Prepared):
            step_source: Plan | Prepared = plan
            ram_bytes = plan.ram_bytes
        else:
            has_paths = isinstance(plan, (str, os.PathLike)) and isinstance(model, (str, os.PathLike))
            loaded = (
                load_plan(plan, model=model, allow_symlinks=allow_symlinks)  # type: ignore[arg-type]
                if has_paths
                else read_plan(plan)
            )
            step_source, ram_bytes = plan_in(loaded), budget_of(loaded)
        settings = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            CLIP: clip_norm,
            **(hyperparameters or {}),
        }
        self._learner = Learner(
            step_source,
            {name: float(value) for name, value in settings.items() if value is not None},
            ram_bytes=ram_bytes,
            workdir=None if workdir is None else Path(workdir),
            threads=threads,
            told=self._told,
        )
        self.plan, self.graph = self._learner.plan, self._learner.graph
        self._model, self._allow_symlinks = model, allow_symlinks

    @property
    def hyperparameters(self) -> dict[str, float]:
        """Hyperparameters of the following steps, by name; they may be changed."""
        return self._learner.hyperparameters

    @property
    def taken(self) -> int:
        """Number of completed steps."""
        return self._learner.step.taken

    @property
    def gradients(self) -> Mapping[str, Array]:
        """Gradients of the last step by parameter, if the plan's step ends with them. Views, until the next step."""
        return self._learner.step.gradients

    @property
    def parameters(self) -> Mapping[str, Array]:
        """Parameters of a step that ends with gradients: views, to be updated in place."""
        return self._learner.step.parameters

    def values(self) -> Mapping[str, Array]:
        """Return parameters, running statistics and optimizer states by name, fetched on access. Read-only."""
        self._learner.check_open()
        return self._learner.step.values()

    def step(self, batch: Mapping[str, object], *, lr: float | None = None) -> float:
        """Take one step, including the update; return the batch's loss before it.

        The loss may be NaN or infinite, where `fit` would end.

        Raises
        ------
        ModelError
            For a batch that doesn't fit, or that `fit` rejects (NaN, labels out of range).
        OptionError
            For invalid rates, and after `close`.
        ExecutionError
            If a kernel or the storage fails.
        """
        self._learner.check_open(lr)
        return self._learner.take(checked_batch(self._learner.graph.whole, batch, f"step {self.taken + 1:,}"), lr)

    def batches(self, data: Data, *, epoch: int = 0, batch_order: str = "shuffle") -> Iterator[Mapping[str, Array]]:
        """Yield the whole batches of an epoch (from 0), for a loop around `step`.

        Parameters
        ----------
        data
            Arrays by input name; the path of an `.npz` file, of a folder of such files, of a `.csv` file, or of a
            folder with a folder of images for each class; an iterable of batches; or a function that takes the epoch
            and returns one.
        batch_order
            `shuffle`, which depends only on seed and epoch, or `sequential`. Iterables keep their own order.

        Raises
        ------
        ModelError
            For data that can't be read or fit no input; the message names file and row.
        """
        learner = self._learner
        return source_of(data, learner.graph.whole, batch_order, self.seed, learner.workdir).epoch(epoch)

    def evaluate(self, data: Data, *, metrics: Asked = ()) -> Evaluation:
        """Return loss and accuracy on held-out rows, by a forward pass as for inference.

        It runs node by node, keeps nothing for a backward pass, and takes no copy of the weights.

        Parameters
        ----------
        metrics
            Names of further metrics (`top5`, `f1`, `iou`, `perplexity`, `mae`; `"top5,f1"`), or functions. A function
            takes scores [rows, classes, ...] and labels [rows, ...] (or output and target) of some rows, and returns a
            number, or one for each row; the result is the mean over all rows.

        Raises
        ------
        OptionError
            For metrics that don't fit the loss.
        PoetError
            Other errors are those of `batches`.
        """
        from poetopt.training.evaluate import validation_of

        learner = self._learner
        learner.check_open()
        return learner.evaluate(validation_of(data, learner.graph, learner.workdir), metrics=metrics)

    def fit(
        self,
        data: Data,
        *,
        epochs: int = 1,
        batch_order: str = "shuffle",
        validate: Data | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        every: int | None = None,
        resume: bool = False,
        keep: str = "best",
        patience: int | None = None,
        metrics: Asked = (),
        log: str | os.PathLike[str] | None = None,
        augment: Augment | None = None,
        meter: str | Meter | None = None,
        after_epoch: Callable[[Position, int], object] | None = None,
        noted: Callable[[str], object] | None = None,
    ) -> Trained:
        """Train for `epochs`, from the position of a checkpoint if there is one.

        Parameters
        ----------
        data, batch_order
            As in `batches`. The last rows of an epoch, which fill no batch, are left out; if shuffled, each epoch
            leaves out other rows.
        validate
            Data that are evaluated after each epoch.
        checkpoint
            Folder for checkpoints: one after each epoch, and after every `every` steps. The two newest complete ones
            are kept, whenever the process is killed.
        resume
            Continue from the newest checkpoint in the folder, if there is one, with identical bits. Data, their order,
            the schedule of rates and the initial weights must be those of the checkpoint; other hyperparameters apply
            from here on.
        keep
            `best`: the final parameters are those of the epoch with the least loss, of validation if there is one. Its
            checkpoint is in a folder `best` beside the others, or in `workdir` during training. Or `last`.
        patience
            Number of epochs without a better one after which training ends.
        metrics
            Metrics of validation, as for `evaluate`; `validations` has those of each epoch.
        log
            A CSV file that gets a row for each step as it ends: `epoch`, `step`, `lr`, `loss`, `seconds`, and in the
            last of an epoch the results of validation. A resumed training continues it; another one overwrites it. Or a
            folder (a name without a suffix), which gets TensorBoard's event files.
        augment
            Changes of batches before each step: `"flip,crop"` for images, or a function (or several). A function takes
            a batch (arrays by input name) and its own `numpy.random.RandomState`, and returns the batch to train on.
            Random numbers depend only on seed, epoch and batch.
        meter
            Meter of the joules of the steps, to compare with those planned (`energy`): `rapl`, `hwmon`, `hwmon:LABEL`,
            `pmic`, a table of readings (`supply.csv`), or your own object (`poetopt.devices.meters.Meter`).
        after_epoch
            Function that is called after each epoch with the position of training, and `epochs`.
        noted
            Function that is called before the first step with each difference from the settings of the checkpoint.

        Raises
        ------
        OptionError
            For invalid numbers, or others than those of the checkpoint.
        ModelError
            For data that don't fit.
        OutputError
            If a checkpoint can't be written.
        PlanError
            If a checkpoint can't be read or is of another network.
        DivergedError
            (An ExecutionError.) If the loss is NaN or infinite, or ten times that of the first batch. The parameters
            are then those of the best epoch if there is one, `error.ended` has the result, and the checkpoints are
            earlier ones.
        """
        from poetopt.training.augment import Augmented, augment_words
        from poetopt.training.evaluate import validation_of

        learner, folder = self._learner, None if checkpoint is None else Path(checkpoint)
        learner.check_open()
        options = FitOptions(
            epochs, self._schedule, self.lr_schedule, batch_order, self.seed, folder, every, resume, keep, patience,
            metrics, None if log is None else Path(log), "" if augment is None else augment_words(augment),
            None if meter is None else open_meter(meter),
        )  # fmt: skip
        source = source_of(data, learner.graph.whole, batch_order, self.seed, learner.workdir)
        if augment is not None:
            source = Augmented(source, augment, learner.graph.whole, self.seed)
        held_out = None if validate is None else validation_of(validate, learner.graph, learner.workdir)
        return Fit(learner, options, source, held_out, after_epoch, noted).run()

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write a checkpoint into a folder, completely or not at all; return its path. Raises OutputError."""
        self._learner.check_open()
        return self._learner.save(Path(folder), {})

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Continue from the newest checkpoint of a folder.

        Raises PlanError if there is none, it is damaged, or of another network.
        """
        self._learner.check_open()
        checkpoint = newest(Path(folder))
        if checkpoint is None:
            raise PlanError(f"{os.fspath(folder)}: there is no checkpoint in it. Give the folder of a checkpoint")
        self._learner.load(checkpoint)

    def export(self, path: str | os.PathLike[str], *, training_form: bool = False) -> None:
        """Write the trained network: the model's file with the current values, in its form for inference.

        Parameters
        ----------
        training_form
            Whether to keep BatchNormalization in training mode and Dropout, for further training with that file.

        Raises
        ------
        ModelError
            If the model's file is missing.
        OutputError
            If `path` can't be written.
        """
        self._learner.check_open()
        self._exporting(training_form).write(self.values(), path, self._learner.step.given())

    def check_export(self, path: str | os.PathLike[str] | None = None, *, training_form: bool = False) -> None:
        """Raise now the ModelError, or OutputError for `path`, that `export` would raise after a long training."""
        exporting = self._exporting(training_form)
        if path is not None:
            exporting.check(path)
        exporting.write(self.values(), None, self._learner.step.given())

    def _exporting(self, training_form: bool) -> Exporting:
        recipe = self.plan.problem.recipe
        return Exporting(self.graph, recipe, self._model, training_form, self._allow_symlinks)

    def close(self) -> None:
        """Release the storage."""
        self._learner.close()
