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
    """Trains a network by a plan, with nothing beside the schedule; a context manager.

        report = po.solve(po.load("net.onnx").differentiate(optimizer="adam").cost("a72"), ram="60%")
        with po.Trainer(report, lr=1e-3) as trainer:
            trainer.fit({"input": x, "labels": y}, epochs=3, validate={"input": x_test, "labels": y_test})
            trainer.export("trained.onnx")

    plan
        A plan, what `solve` or `load_plan` gave, a plan file's path, or a step that is prepared.
    model
        The network that `export` writes anew; with a plan file's path also the one whose weights training begins with.
        By default the plan's own.
    lr, momentum, weight_decay, hyperparameters
        Of the plan's optimizer; the others (`beta1`, `eps`, ...) by their names. What isn't given has its default.
        A plan whose step ends with gradients takes plain descent behind it, with `lr` alone; other updates are part of
        the step (`solve --optimizer`), or your own: `step(batch, lr=0)`, then `parameters` by `gradients`.
    lr_schedule
        `constant`, `cosine`, or `step:EPOCHS:FACTOR` (`step:10:0.1`), for `fit`; `warmup:500,cosine` lets it rise
        over so many steps first, `warmup:5%,cosine` over a share of all.
    clip_norm
        The bound of the norm of all gradients, 1 by default, where the plan's step clips (`solve --with clip-norm`).
    seed
        Of the order of batches.
    workdir
        Where paged tensors lie, and data that must be unpacked; by default the system's temporary folder.
    allow_symlinks
        As in `load`, for a plan file's path with a `model`, and for `export`.
    told, progress
        As for `execute`.

    Raises OptionError for what the plan's step can't do, PlanError for a plan that can't be executed.
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
            made: Plan | Prepared = plan
            ram_bytes = plan.ram_bytes
        else:
            path = isinstance(plan, (str, os.PathLike)) and isinstance(model, (str, os.PathLike))
            found = (
                load_plan(plan, model=model, allow_symlinks=allow_symlinks)  # type: ignore[arg-type]
                if path
                else read_plan(plan)
            )
            made, ram_bytes = plan_in(found), budget_of(found)
        said = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            CLIP: clip_norm,
            **(hyperparameters or {}),
        }
        self._learner = Learner(
            made,
            {name: float(value) for name, value in said.items() if value is not None},
            ram_bytes=ram_bytes,
            workdir=None if workdir is None else Path(workdir),
            threads=threads,
            told=self._told,
        )
        self.plan, self.graph = self._learner.plan, self._learner.graph
        self._model, self._allow_symlinks = model, allow_symlinks

    @property
    def hyperparameters(self) -> dict[str, float]:
        """Those of the steps that follow, by name; they may be changed."""
        return self._learner.hyperparameters

    @property
    def taken(self) -> int:
        """Number of steps that were taken."""
        return self._learner.step.taken

    @property
    def gradients(self) -> Mapping[str, Array]:
        """Of the last step, by parameter, where the plan's step ends with them. Views, until the next step."""
        return self._learner.step.gradients

    @property
    def parameters(self) -> Mapping[str, Array]:
        """Of such a step: views, to be updated in place."""
        return self._learner.step.parameters

    def values(self) -> Mapping[str, Array]:
        """Parameters, running statistics and optimizer states by name, fetched when they are asked for. Read-only."""
        self._learner.check_open()
        return self._learner.step.values()

    def step(self, batch: Mapping[str, object], *, lr: float | None = None) -> float:
        """Take one step, the update included; the batch's loss before it, which may be no number: `fit` ends there.

        Raises ModelError for a batch that doesn't fit or holds what `fit` refuses (NaN, labels out of range),
        OptionError for rates that make no sense and after `close`, ExecutionError where a kernel or the storage fails.
        """
        self._learner.check_open(lr)
        return self._learner.take(checked_batch(self._learner.graph.whole, batch, f"step {self.taken + 1:,}"), lr)

    def batches(self, data: Data, *, epoch: int = 0, batch_order: str = "shuffle") -> Iterator[Mapping[str, Array]]:
        """The whole batches of an epoch (from 0), for a loop of one's own around `step`.

        data
            Arrays by input name, the path of an `.npz` file, of a folder of such files, of a `.csv` file, or of a
            folder with a folder of images for each class; or an iterable of batches, or a function that takes the epoch
            and gives one.
        batch_order
            `shuffle`, by seed and epoch alone, or `sequential`. Iterables keep their own.

        Raises ModelError for what can't be read, or fits no input; its message names file and row.
        """
        learner = self._learner
        return source_of(data, learner.graph.whole, batch_order, self.seed, learner.workdir).epoch(epoch)

    def evaluate(self, data: Data, *, metrics: Asked = ()) -> Evaluation:
        """Loss and accuracy on rows that nothing is learned from: a forward pass in the way of inference.

        It runs node by node, keeps nothing for a backward pass, and takes no copy of the weights.

        metrics
            Names of others (`top5`, `f1`, `iou`, `perplexity`, `mae`; `"top5,f1"`), or functions that take scores
            [rows, classes, ...] and labels [rows, ...] (output and target) of some rows, and give a number, or one for
            each; what counts is their mean over all rows.

        Raises as `batches`, and OptionError for metrics that the loss has not.
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
        """Train for `epochs`, from where a checkpoint has left off.

        data, batch_order
            As in `batches`. The last rows of an epoch, which fill no batch, are left out; shuffled, they are others in
            each epoch.
        validate
            Data that are evaluated after each epoch.
        checkpoint
            A folder for checkpoints: one after each epoch, and after every `every` steps. The two newest whole ones
            are kept, whenever the process is killed.
        resume
            Go on from the newest checkpoint in the folder, if there is one: to the same bits. Data, their order, the
            schedule of rates and the starting weights must be those that it was made with; other hyperparameters count
            from here on.
        keep
            `best`: when it ends, the parameters are those of the epoch with the least loss, of validation where there
            is one; its checkpoint is in a folder `best` beside the others, or in `workdir` meanwhile. Or `last`.
        patience
            How many epochs without a better one end the training.
        metrics
            Of validation, as `evaluate` takes them; each epoch's are in `validations`.
        log
            A CSV file that gets a row for each step as it ends: `epoch`, `step`, `lr`, `loss`, `seconds`, and in the
            last of an epoch what validation says. A resumed training goes on in it; another one begins it anew. Or a
            folder (a name without an ending), which gets TensorBoard's event files.
        augment
            How batches are changed before each step: `"flip,crop"` for images, or a function (or several) of a batch,
            arrays by input name, and a `numpy.random.RandomState` of its own, which gives the batch to be trained on.
            What is random is of seed, epoch and batch alone.
        meter
            What measures the joules of the steps, beside those planned (`energy`): `rapl`, `hwmon`, `hwmon:LABEL`,
            `pmic`, a table of readings (`supply.csv`), or an object of your own (`poetopt.devices.meters.Meter`).
        after_epoch
            Called after each epoch with where training stands, and `epochs`.
        noted
            Called before the first step with each sentence on what is otherwise than the checkpoint was made with.

        Raises OptionError for numbers that make no sense, or others than a checkpoint was made with, ModelError for
        data that don't fit, OutputError where a checkpoint can't be written, PlanError where it can't be read or is
        another network's, and DivergedError, an ExecutionError, where the loss is no finite number any more, or ten
        times the first batch's: the parameters are then the best epoch's where there is one, `error.ended` is what else
        would be returned, and the checkpoints are from before.
        """
        from poetopt.training.augment import Augmented, augment_words
        from poetopt.training.evaluate import validation_of

        learner, folder = self._learner, None if checkpoint is None else Path(checkpoint)
        learner.check_open()
        asked = FitOptions(
            epochs, self._schedule, self.lr_schedule, batch_order, self.seed, folder, every, resume, keep, patience,
            metrics, None if log is None else Path(log), "" if augment is None else augment_words(augment),
            None if meter is None else open_meter(meter),
        )  # fmt: skip
        source = source_of(data, learner.graph.whole, batch_order, self.seed, learner.workdir)
        if augment is not None:
            source = Augmented(source, augment, learner.graph.whole, self.seed)
        held_out = None if validate is None else validation_of(validate, learner.graph, learner.workdir)
        return Fit(learner, asked, source, held_out, after_epoch, noted).run()

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write a checkpoint into a folder, whole or not at all; its path. Raises OutputError."""
        self._learner.check_open()
        return self._learner.save(Path(folder), {})

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Go on from the newest checkpoint of a folder.

        Raises PlanError where there is none, it is damaged, or another network's.
        """
        self._learner.check_open()
        found = newest(Path(folder))
        if found is None:
            raise PlanError(f"{os.fspath(folder)}: there is no checkpoint in it; give the folder that one was saved to")
        self._learner.load(found)

    def export(self, path: str | os.PathLike[str], *, training_form: bool = False) -> None:
        """Write the trained network: the model's file with the values so far, in the form of inference.

        training_form
            Whether BatchNormalization in training mode and Dropout stay, to train on with that file.

        Raises ModelError where the model's file isn't there, OutputError where `path` can't be written.
        """
        self._learner.check_open()
        self._exporting(training_form).write(self.values(), path, self._learner.step.given())

    def check_export(self, path: str | os.PathLike[str] | None = None, *, training_form: bool = False) -> None:
        """Raise ModelError, or OutputError for `path`, now where `export` would: to be asked before a long training."""
        exporting = self._exporting(training_form)
        if path is not None:
            exporting.check(path)
        exporting.write(self.values(), None, self._learner.step.given())

    def _exporting(self, training_form: bool) -> Exporting:
        recipe = self.plan.problem.recipe
        return Exporting(self.graph, recipe, self._model, training_form, self._allow_symlinks)

    def close(self) -> None:
        """Give up the storage."""
        self._learner.close()
