"""Training loop: batches in order, learning rates, validations, checkpoints, and resuming from them."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from poetopt.devices.meters import Meter, Metered, metering
from poetopt.training import checkpoint
from poetopt.training.course_log import CourseLog, EventLog, open_log
from poetopt.training.data import DataSet
from poetopt.training.learner import Learner
from poetopt.training.metrics import Asked, metrics_of
from poetopt.training.source import USED_UP, RateSchedule, Source, batch_size
from poetopt.util import interrupts
from poetopt.util.errors import ExecutionError, ModelError, OptionError, PlanError, PoetError
from poetopt.util.figures import Figures, plain
from poetopt.util.files import scratch_folder
from poetopt.util.process import peak_bytes
from poetopt.util.progress import paced
from poetopt.util.units import show_seconds

DIVERGED = 10
"""A training has diverged if its mean loss exceeds that of the first batch by this factor."""


@dataclass
class Position:
    """Progress of a training; each checkpoint contains it.

    Attributes
    ----------
    epoch, batch
        The next batch; both count from 0.
    step
        Completed steps.
    losses
        Mean loss of each completed epoch.
    total
        Sum of the losses of this epoch so far.
    validations
        `epoch` (the number of completed epochs), `loss`, `accuracy`, `metrics` of each validation.
    seconds
        Duration of the training over all its processes, with validations and checkpoints.
    first
        Loss of the first batch, before any update.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    losses: list[float] = field(default_factory=list)
    total: float = 0.0
    validations: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    first: float | None = None

    def best(self, *, validated: bool) -> int:
        """Return the epoch with the least loss (of validation if there is one), or 0 before the first ends."""
        if validated:
            candidates = [(float(v["loss"] or 0.0), int(v["epoch"] or 0)) for v in self.validations]
        else:
            candidates = [(loss, epoch) for epoch, loss in enumerate(self.losses, 1)]
        return min(candidates, default=(0.0, 0))[1]

    def worse(self, epoch: int) -> bool:
        """Return whether the mean loss of an epoch exceeds the initial loss by the factor `DIVERGED`."""
        return self.first is not None and 0 < DIVERGED * self.first < self.losses[epoch - 1]

    @property
    def judged(self) -> bool:
        """Return whether the last completed epoch has been validated."""
        return bool(self.validations) and self.validations[-1]["epoch"] == self.epoch

    def check(self, path: str, batches: int | None) -> None:
        """Raise ModelError if the fields contradict each other, or epochs of `batches` batches (None: unknown)."""
        is_consistent = batches is None or (self.batch < batches and self.step == self.epoch * batches + self.batch)
        if len(self.losses) != self.epoch or not is_consistent:
            raise ModelError(
                f"{path}: step {self.step:,} and {len(self.losses):,} losses contradict epoch {self.epoch:,}, "
                f"batch {self.batch:,}. The checkpoint is damaged. Remove it; --resume continues from the one before."
            )

    def over(self, batches: int) -> None:
        """Complete an epoch of `batches` batches."""
        self.losses.append(self.total / max(1, batches))
        self.epoch, self.batch, self.total = self.epoch + 1, 0, 0.0


@dataclass(frozen=True, kw_only=True)
class Trained(Figures):
    """Result of a training.

    Attributes
    ----------
    epochs, steps, batch
        Epochs, steps, and rows of a step.
    resumed_at
        Step of the checkpoint that the training resumed from; 0 if it began anew.
    left_out
        Rows of each epoch that filled no batch.
    losses
        Mean loss of each epoch.
    validations
        `epoch`, `loss`, `accuracy` (null if the loss has none) and `metrics` of each validation on this data.
    optimizer, hyperparameters, lr_schedule, batch_order, seed
        The options of the training.
    seconds, step_s
        Duration over all processes, and mean duration of a step of this process, with its batch.
    total_ram_bytes
        Bytes that the plan needs: arena, kernels and resident region.
    process_base_bytes, process_peak_bytes
        Resident bytes of this process before the step was prepared, and at most; None if the system doesn't report
        them.
    checkpoint
        Path of the newest checkpoint, or "".
    passed_over
        Damaged checkpoints newer than the one that was resumed from, with their faults.
    changed
        Options that differ from those of the checkpoint that was resumed from.
    kept
        Epoch that the parameters belong to.
    diverged
        How the training diverged, or "".
    energy
        Measured and planned joules of the steps of this process, if a meter was requested.
    """

    epochs: int
    steps: int
    batch: int
    resumed_at: int
    left_out: int
    losses: tuple[float, ...]
    validations: tuple[Mapping[str, Any], ...]
    optimizer: str
    hyperparameters: Mapping[str, float]
    lr_schedule: str
    batch_order: str
    seed: int
    seconds: float
    step_s: float
    total_ram_bytes: int
    process_base_bytes: int | None
    process_peak_bytes: int | None
    checkpoint: str
    passed_over: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    kept: int
    diverged: str = ""
    energy: Metered | None = None
    derived = ("loss", "accuracy", "metrics")

    @property
    def loss(self) -> float | None:
        """Mean loss of the last epoch."""
        return self.losses[-1] if self.losses else None

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the kept epoch, if it was validated."""
        return next((v["accuracy"] for v in self.validations if v["epoch"] == self.kept), None)

    @property
    def metrics(self) -> Mapping[str, float]:
        """Other metrics of the kept epoch, by name."""
        return next((v.get("metrics", {}) for v in self.validations if v["epoch"] == self.kept), {})


class DivergedError(ExecutionError):
    """The training has diverged.

    Attributes
    ----------
    ended
        Result of the training, if the parameters of an epoch are kept.
    """

    def __init__(self, message: str, ended: Trained | None = None) -> None:
        super().__init__(message)
        self.ended = ended


@dataclass(frozen=True)
class Course:
    """Configuration of a training; each checkpoint contains it.

    Attributes
    ----------
    order, lr_schedule, seed
        Options as given.
    batch, rows, data
        Rows of a batch, rows of the data, and the digest of the data (see `DataSet.check`); None if unknown.
    epochs
        Requested epochs.
    augment
        Changes of the batches.
    validation
        Digest of the validation data; "" without any.
    """

    order: str
    lr_schedule: str
    seed: int
    batch: int
    rows: int | None
    data: str | None
    epochs: int
    validation: str | None
    augment: str = ""

    def check(self, before: Mapping[str, Any], checkpoint: str, data: str) -> None:
        """Raise OptionError if rows would be used twice or never, or by another rule than before.

        Parameters
        ----------
        before
            Configuration in the checkpoint; fields that are missing there were unknown to an older version.
        checkpoint, data
            Their names in messages.
        """
        for name, option in _FIXED_OPTIONS.items():
            current = getattr(self, name)
            if before.get(name, current) != current:
                raise OptionError(
                    f"{checkpoint}: it was made with {option} {before[name]}, and this training has {current}. "
                    "Give the same, or another folder."
                )
        if before.get("data", self.data) != self.data:
            raise OptionError(
                f"{checkpoint}: it was made with other values than those of {data}. Give the same data, or another "
                "folder."
            )

    def changes(self, before: Mapping[str, Any]) -> Iterator[str]:
        """Yield the permitted differences from the checkpoint."""
        epochs = before.get("epochs", self.epochs)
        if self.lr_schedule == "cosine" and epochs != self.epochs:
            yield f"--epochs {self.epochs} is used; the checkpoint's cosine of rates was over {epochs} epochs"


_FIXED_OPTIONS = {
    "order": "--batch-order",
    "lr_schedule": "--lr-schedule",
    "seed": "--seed",
    "rows": "a row count of",
    "batch": "a batch of",
    "augment": "--augment",
}


KEEP_CHOICES = ("best", "last")
"""Values of the option `keep`."""
BEST = "best"
"""Subfolder of the best epoch's checkpoint."""


@dataclass(frozen=True)
class FitOptions:
    """Options of a training; see `poetopt.Trainer.fit`."""

    epochs: int
    schedule: RateSchedule
    lr_schedule: str
    order: str
    seed: int
    folder: Path | None
    every: int | None
    resume: bool
    keep: str = "best"
    patience: int | None = None
    metrics: Asked = ()
    log: Path | None = None
    augment: str = ""
    meter: Meter | None = None

    def check(self, source: Source) -> None:
        """Raise OptionError for invalid numbers."""
        if not isinstance(self.epochs, int) or self.epochs < 1:
            raise OptionError(f"--epochs {self.epochs}: must be a whole number, and at least 1")
        if self.keep not in KEEP_CHOICES:
            raise OptionError(f"--keep {self.keep}: must be {' or '.join(KEEP_CHOICES)}")
        if self.patience is not None and self.patience < 1:
            raise OptionError(f"--patience {self.patience}: must be at least 1")
        if self.every is not None and self.every < 1:
            raise OptionError(f"--every {self.every}: must be at least 1")
        if self.folder is None and (self.every is not None or self.resume):
            option = "--resume" if self.resume else f"--every {self.every}"
            raise OptionError(f"{option}: there is no folder of checkpoints. Give --checkpoint FOLDER.")
        if self.schedule.needs_length and source.batches is None:
            raise OptionError(
                f"--lr-schedule {self.lr_schedule}: it depends on the number of batches, which the data doesn't tell. "
                "Give a list or a loader with a length."
            )


AfterEpoch = Callable[[Position, int], object]
"""Called after each epoch with the position and the number of epochs."""
Noted = Callable[[str], object]
"""Called before the first step with each difference of a resumed training from its checkpoint."""


class Fit:
    """Training in progress."""

    def __init__(
        self,
        learner: Learner,
        options: FitOptions,
        source: Source,
        validation: DataSet | Source | None,
        after: AfterEpoch | None,
        noted: Noted | None = None,
    ) -> None:
        options.check(source)
        if validation is None and options.metrics:
            raise OptionError("--metrics: metrics need validation data. Give it with --validate.")
        factories = metrics_of(options.metrics, learner.graph)
        self.metrics = () if validation is None else tuple(make().name for make in factories)
        self.log: CourseLog | EventLog | None = None
        for purpose, data_source in (("training", source), ("validation", validation)):
            if options.epochs > 1 and getattr(data_source, "once", False):
                raise ModelError(f"{purpose} for {options.epochs} epochs: {USED_UP}")
        self.learner, self.options, self.source = learner, options, source
        self.validation, self.after, self.noted = validation, after, noted
        data = source.check(learner.told)
        judged = "" if validation is None else validation.check(learner.told)
        self.course = Course(
            options.order, options.lr_schedule, options.seed, batch_size(learner.graph.whole), source.rows, data,
            options.epochs, judged, options.augment,
        )  # fmt: skip
        self.changed: tuple[str, ...] = ()
        self.position, self.saved = Position(), -1  # `saved`: step of the last checkpoint
        self.path = ""
        self.passed_over: tuple[str, ...] = ()
        self.begun_s = time.monotonic()
        self.before_s = 0.0
        self.stepping_s, self.stepped = 0.0, 0
        self.pace = paced(learner.told)

    def run(self) -> Trained:
        """Train to the end. Raises KeyboardInterrupt, after a checkpoint, if a signal came."""
        with ExitStack() as stack:
            if self.options.folder is not None:
                stack.enter_context(checkpoint.held(self.options.folder))
                self._resume(self.options.folder)
            resumed_at = self.position.step
            if self.options.log is not None:
                self.log = open_log(self.options.log, self.metrics, resumed_at)
                stack.callback(self.log.close)
            self.saved = self.position.step if self.path else -1
            interrupts.hold()  # signals wait until a step has ended
            self.begun_s = time.monotonic()
            self._stack = stack
            try:
                self._run_epochs()
            except DivergedError as error:
                kept_epoch = self._restore_best()
                if not kept_epoch or self.position.worse(kept_epoch):
                    raise
                message = f"{error} The parameters of epoch {kept_epoch}, the best, are kept."
                raise DivergedError(message, self._result(resumed_at, kept_epoch, message)) from error
            if self.validation is not None and not self.position.judged:  # no epoch was left
                self._validate(self.position.epoch)
                self.saved = -1
            if self.saved != self.position.step:
                self._save()
            kept_epoch = self._restore_best() or self.position.epoch
        if self.position.worse(self.position.epoch):
            message = self._divergence_text(kept_epoch)
            useful = self.options.keep == "last" or not self.position.worse(kept_epoch)
            raise DivergedError(message, self._result(resumed_at, kept_epoch, message) if useful else None)
        return self._result(resumed_at, kept_epoch)

    def _run_epochs(self) -> None:
        """Run the remaining epochs, or stop when the patience is used up."""
        position, patience = self.position, self.options.patience
        for epoch in range(position.epoch, self.options.epochs):
            if patience is not None and epoch - position.best(validated=self.validation is not None) >= patience:
                break
            self._run_epoch(epoch)

    def _divergence_text(self, kept_epoch: int) -> str:
        first, last = self.position.first or 0.0, self.position.losses[-1]
        which = "the best" if self.options.keep == "best" else "the last"
        kept_text = f"the parameters of epoch {kept_epoch}, {which}, are kept"
        if self.options.keep == "best" and self.position.worse(kept_epoch):
            kept_text = "no parameters are kept"
        return (
            f"the training has diverged: the last epoch's mean loss is {last:g}, and it began at {first:g}; "
            f"{kept_text}. Use a smaller --lr."
        )

    def _save_if_best(self) -> None:
        """Save the parameters of the completed epoch if they are the best and could be overwritten."""
        position = self.position
        best = position.best(validated=self.validation is not None)
        others = self.options.folder is not None or position.epoch < self.options.epochs
        if self.options.keep == "best" and best == position.epoch and others:
            self.learner.save(self._best_folder, self._checkpoint_meta())

    def _restore_best(self) -> int:
        """Restore the best epoch if requested; return it, or 0 if the parameters stay."""
        best = self.position.best(validated=self.validation is not None)
        if self.options.keep != "best" or not best or (best == self.position.epoch and not self.position.batch):
            return 0
        checkpoint_of_best = checkpoint.of_epoch(self._best_folder, best)
        if checkpoint_of_best is None:
            return 0
        self.learner.load_states(checkpoint_of_best)
        return best

    @cached_property
    def _best_folder(self) -> Path:
        if self.options.folder is not None:
            return self.options.folder / BEST
        within = self.learner.workdir
        if within is None:
            return Path(self._stack.enter_context(scratch_folder("best")))
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="poetopt-best-", dir=within)))

    def _resume(self, folder: Path) -> None:
        """Resume from the newest checkpoint if requested and present."""
        newest = checkpoint.newest(folder)
        if newest is None:
            return
        if not self.options.resume:
            raise OptionError(
                f"{folder}: it holds checkpoints of another training. Resume it with --resume, or give another folder."
            )
        self.passed_over = newest.passed_over
        course = newest.meta.get("course")
        if course is None:
            raise PlanError(f"{newest.path}: it was not made by a training for epochs. Use Trainer.load to resume it.")
        self.learner.check(newest)
        self.course.check(course, str(newest.path), self.source.shown)
        position = Position(**newest.meta["position"])
        position.check(str(newest.path), self.source.batches)
        if position.epoch > self.options.epochs:
            raise OptionError(
                f"{newest.path}: it has completed {position.epoch} epochs, and --epochs {self.options.epochs} asks for "
                "fewer. Give at least as many, or another folder."
            )
        self.changed = (*self.learner.load(newest), *self.course.changes(course))
        if self.validation is None or course.get("validation", self.course.validation) != self.course.validation:
            position.validations = []  # those of other data don't count
        self.position = position
        self.before_s, self.path = self.position.seconds, str(newest.path)
        if self.noted is not None:
            for text in self.changed:
                self.noted(text)

    def _run_epoch(self, epoch: int) -> None:
        """Run one epoch from the current position."""
        with metering(self.options.meter):
            self._run_steps(epoch)
        position = self.position
        if self.validation is not None:
            self._validate(epoch + 1)
        position.over(position.batch)
        self._save_if_best()
        self._save()
        if self.after is not None:
            self.after(position, self.options.epochs)

    def _run_steps(self, epoch: int) -> None:
        """Run the remaining batches of an epoch."""
        position, every = self.position, self.options.every
        batches = iter(self.source.epoch(epoch, position.batch))
        while True:
            began_s = time.perf_counter()
            batch = self._next_batch(batches)
            if batch is None:
                break
            rate = self.options.schedule.rate(
                self.learner.hyperparameters["lr"],
                position.step,
                epoch,
                self.options.epochs * (self.source.batches or 0),
            )
            loss = self.learner.take(batch, rate)
            batch.clear()  # free it before the next batch is read
            if not math.isfinite(loss):
                raise DivergedError(self._nonfinite_text(loss, rate))
            position.first = loss if position.first is None and not position.step else position.first
            position.batch, position.step, position.total = position.batch + 1, position.step + 1, position.total + loss
            self.stepping_s += time.perf_counter() - began_s
            self.stepped += 1
            if self.log is not None:
                self.log.step(epoch + 1, position.step, rate, loss, self._elapsed_s())
            self._report(epoch, loss)
            is_last = position.batch == self.source.batches
            self._stop_if_signaled()
            if every is not None and position.step % every == 0 and not is_last:
                self._save()

    def _validate(self, epoch: int) -> None:
        assert self.validation is not None
        evaluation = self.learner.evaluate(self.validation, self._stop_if_signaled, self.options.metrics)
        if not math.isfinite(evaluation.loss):
            raise DivergedError(self._nonfinite_text(evaluation.loss, None))
        figures = {"loss": evaluation.loss, "accuracy": evaluation.accuracy, "metrics": plain(dict(evaluation.metrics))}
        self.position.validations.append({"epoch": epoch, **figures})
        if self.log is not None:
            self.log.validation(figures)

    def _next_batch(self, batches: Iterator[Any]) -> Any:
        """Return the next batch; if it can't be read, save the progress first."""
        try:
            return next(batches, None)
        except PoetError:
            if self.saved != self.position.step and self.position.step:
                self._save()
            raise

    def _save(self) -> None:
        """Write a checkpoint if there is a folder for them."""
        position = self.position
        position.seconds = self._elapsed_s()
        if self.options.folder is not None:
            self.path = str(self.learner.save(self.options.folder, self._checkpoint_meta()))
        self.saved = position.step

    def _checkpoint_meta(self) -> dict[str, object]:
        return {"course": asdict(self.course), "position": asdict(self.position)}

    def _stop_if_signaled(self) -> None:
        """Save and raise KeyboardInterrupt if a signal came."""
        if interrupts.came() is None:
            return
        if self.saved != self.position.step:
            self._save()
        if self.path:
            interrupts.add(f"step {self.position.step:,} is in {self.path}; continue with --resume")
        else:
            interrupts.add("nothing was saved, because no --checkpoint was given")
        interrupts.let_go()

    def _nonfinite_text(self, loss: float, rate: float | None) -> str:
        checkpoint_text = f"; the newest checkpoint is {self.path}" if self.path else ""
        loss_name = "validation's loss" if rate is None else "loss"
        left_out = self.learner.graph.label_rule.ignore_index
        ignored = "" if left_out is None else f", or give each batch a label other than {left_out}"
        rate_text = "" if rate is None else f" at a rate of {rate:g}"
        step = self.position.step + (rate is not None)
        return (
            f"the {loss_name} is {loss} in step {step:,} (epoch {self.position.epoch + 1}): "
            f"the training has diverged{rate_text}, or the model's own values aren't finite. "
            f"Use a smaller --lr{ignored}{checkpoint_text}."
        )

    def _elapsed_s(self) -> float:
        return self.before_s + time.monotonic() - self.begun_s

    def _report(self, epoch: int, loss: float) -> None:
        position, batches = self.position, self.source.batches
        total = remaining = ""
        if batches:
            total = f" of {batches:,}"
            share = (epoch * batches + position.batch) / (self.options.epochs * batches)
            spent_s = time.monotonic() - self.begun_s
            share_done = self.stepped / (self.options.epochs * batches)
            remaining = f", {show_seconds(spent_s * (1 - share) / share_done)} left"
        self.pace(
            f"epoch {epoch + 1} of {self.options.epochs}, batch {position.batch:,}{total}, loss {loss:.6g}{remaining}"
        )

    def _result(self, resumed_at: int, kept_epoch: int, diverged: str = "") -> Trained:
        learner, position, meter = self.learner, self.position, self.options.meter
        return Trained(
            epochs=position.epoch,
            steps=position.step,
            batch=batch_size(learner.graph.whole),
            resumed_at=resumed_at,
            left_out=self.source.left_out,
            losses=tuple(position.losses),
            validations=tuple(position.validations),
            optimizer=learner.optimizer,
            hyperparameters=dict(learner.hyperparameters),
            lr_schedule=self.options.lr_schedule,
            batch_order=self.options.order,
            seed=self.options.seed,
            seconds=self._elapsed_s(),
            step_s=self.stepping_s / self.stepped if self.stepped else 0.0,
            total_ram_bytes=learner.total_ram_bytes,
            process_base_bytes=learner.base_bytes,
            process_peak_bytes=peak_bytes(),
            checkpoint=self.path,
            passed_over=self.passed_over,
            changed=self.changed,
            kept=kept_epoch,
            diverged=diverged,
            energy=None if meter is None else Metered.of(meter, self.stepped, learner.step.simulation.energy_j),
        )
