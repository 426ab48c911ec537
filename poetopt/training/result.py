"""What a training showed, and where it stands while it goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Position:
    """Where a training stands: all of this is in each checkpoint.

    epoch, batch
        The next batch: both from 0.
    step
        Steps taken.
    losses
        The mean loss of each epoch that is over.
    total
        The sum of the losses of this epoch so far.
    validations
        Of each validation: `epoch` (how many were over), `loss`, `accuracy`.
    seconds
        That training has taken, validations and checkpoints included, over all its processes.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    losses: list[float] = field(default_factory=list)
    total: float = 0.0
    validations: list[dict[str, float | int | None]] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, object]:
        """As JSON has it."""
        return asdict(self)

    @property
    def judged(self) -> bool:
        """Whether the last epoch that is over has been validated."""
        return bool(self.validations) and self.validations[-1]["epoch"] == self.epoch

    def over(self, batches: int) -> None:
        """An epoch of so many batches is over."""
        self.losses.append(self.total / max(1, batches))
        self.epoch, self.batch, self.total = self.epoch + 1, 0, 0.0


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a training showed.

    epochs, steps, batch
        Epochs, steps, and rows of a step.
    resumed_at
        The step after which it went on from a checkpoint; 0 where it began anew.
    left_out
        Rows of each epoch that filled no batch.
    losses
        The mean loss of each epoch.
    validations
        Of each validation on this data: `epoch`, `loss`, and `accuracy` (null where the loss has none).
    optimizer, hyperparameters, lr_schedule, batch_order, seed
        As they were.
    seconds, step_s
        All of it, over all its processes; and the mean of a step of this one, its batch included.
    total_ram_bytes
        What the plan takes: arena, kernels and resident region.
    process_base_bytes, process_peak_bytes
        What this process had resident before the step was made, and at most; None where the system doesn't say.
    checkpoint
        The newest one's path, or "".
    passed_over
        Newer checkpoints than the one that it went on from, which are damaged, and how.
    changed
        What was asked for otherwise than the checkpoint that it went on from was made with.
    """

    epochs: int
    steps: int
    batch: int
    resumed_at: int
    left_out: int
    losses: tuple[float, ...]
    validations: tuple[Mapping[str, float | int | None], ...]
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

    @property
    def loss(self) -> float | None:
        """The mean loss of the last epoch."""
        return self.losses[-1] if self.losses else None

    @property
    def accuracy(self) -> float | None:
        """Of the last validation."""
        return self.validations[-1]["accuracy"] if self.validations else None

    def to_dict(self) -> dict[str, Any]:
        """The object of `train --json`: plain values only; a number that JSON has no word for is null."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        found |= {"losses": [_plain(value) for value in self.losses], "hyperparameters": dict(self.hyperparameters)}
        found |= {"passed_over": list(self.passed_over), "changed": list(self.changed)}
        found["validations"] = [{name: _plain(value) for name, value in each.items()} for each in self.validations]
        return {**found, "loss": _plain(self.loss), "accuracy": self.accuracy}


def _plain(value: float | int | None) -> float | int | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value
