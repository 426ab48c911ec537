"""What every run of a plan is checked for: its bits, and its budget."""

from __future__ import annotations

import math
from collections.abc import Mapping


class Checks:
    """The verdicts on a run beside ordinary training; what they rest on is for the dataclass to hold.

    bit_identical
        Whether all results are bit for bit those of ordinary training; None where none was compared.
    budget_bytes
        What the plan had to keep to.
    measured_peak_bytes
        What it took; None where the platform can't measure it.
    """

    bit_identical: bool | None
    budget_bytes: int
    measured_peak_bytes: int | None

    @property
    def within_budget(self) -> bool:
        """Whether the measured peak keeps the budget; true where it could not be measured."""
        return self.measured_peak_bytes is None or self.measured_peak_bytes <= self.budget_bytes

    @property
    def ok(self) -> bool:
        """Whether the run passed all checks."""
        return self.bit_identical is not False and self.within_budget


def plain(value: object) -> object:
    """A field of such a dataclass as JSON has it; a number that it has no word for is null."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return dict(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
