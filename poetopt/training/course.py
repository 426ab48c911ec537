"""What a training must have alike to go on from a checkpoint, and what it may do otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from poetopt.errors import OptionError


@dataclass(frozen=True)
class Course:
    """What a training goes through: all of this is in each checkpoint.

    order, lr_schedule, seed, accumulate, clip_norm
        As they were asked for.
    batch, rows, data
        Rows of a batch and of the data, and the digest of those (see `DataSet.check`); None where nobody knows.
    epochs
        How many were asked for.
    validation
        The digest of what is evaluated; "" where nothing is.
    """

    order: str
    lr_schedule: str
    seed: int
    accumulate: int
    clip_norm: float | None
    batch: int
    rows: int | None
    data: str | None
    epochs: int
    validation: str | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    def check(self, before: Mapping[str, Any], checkpoint: str, data: str) -> None:
        """Raise OptionError where rows would be taken twice or never, or by another rule than those before.

        before
            What the checkpoint says; what is missing there, it didn't know yet.
        checkpoint, data
            What messages call both.
        """
        for name, words in _ALIKE.items():
            mine = getattr(self, name)
            if before.get(name, mine) != mine:
                said, is_now = (_NONE if value is None else value for value in (before[name], mine))
                raise OptionError(
                    f"{checkpoint}: it was made with {words} {said}, and this is {is_now}; give the same, or another "
                    "folder"
                )
        if before.get("data", self.data) != self.data:
            raise OptionError(
                f"{checkpoint}: the values that it was made with aren't those of {data}; give that data, or another "
                "folder"
            )

    def changes(self, before: Mapping[str, Any]) -> Iterator[str]:
        """What is otherwise from here on, though nothing is wrong with it."""
        epochs = before.get("epochs", self.epochs)
        if self.lr_schedule == "cosine" and epochs != self.epochs:
            yield f"--epochs {self.epochs}: the checkpoint's rates were those of a cosine over {epochs}"


_NONE = "none"
_ALIKE = {
    "order": "--batch-order",
    "lr_schedule": "--lr-schedule",
    "seed": "--seed",
    "accumulate": "--accumulate",
    "clip_norm": "--clip-norm",
    "rows": "so many rows:",
    "batch": "a batch of",
}
