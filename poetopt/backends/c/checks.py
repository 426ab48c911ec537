"""What every run in C is checked for beside its bits and its budget: its distance from onnxruntime, its linked RAM."""

from __future__ import annotations

from poetopt.backends.ort.checks import Checks

TOLERANCE = 5.0
"""How many times as far from onnxruntime's gradients may be as one ulp moves them (`Sensitivity`)."""


def far_shown(names: tuple[str, ...]) -> str:
    """Which tensors are further away than that, in a message."""
    shown = ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
    return f", and that of {shown} is too far away for itself" if names else ""


class DeviceChecks(Checks):
    """The verdicts on a run in C; what they rest on is for the dataclass to hold.

    on
        Where it ran.
    arena_bytes, resident_bytes
        As the plan has them.
    linked_ram_bytes
        All RAM that the linked program has beside the stack; None where nothing is installed that tells it.
    """

    on: str
    arena_bytes: int
    resident_bytes: int
    linked_ram_bytes: int | None

    @property
    def planned_ram_bytes(self) -> int:
        """Arena and resident region, as the plan has them."""
        return self.arena_bytes + self.resident_bytes

    @property
    def close(self) -> bool:
        """Whether what was computed is onnxruntime's, to rounding."""
        raise NotImplementedError

    @property
    def linked_as_planned(self) -> bool:
        """Whether the linker gave the program just the plan's bytes; true where that can't be told."""
        return self.linked_ram_bytes in (None, self.planned_ram_bytes)

    @property
    def ok(self) -> bool:
        """Whether the run passed all checks."""
        return super().ok and self.close and self.linked_as_planned

    @property
    def memory_message(self) -> str:
        """What is wrong with its RAM, in one sentence; empty where nothing is."""
        if not self.linked_as_planned:
            return (
                f"on {self.on}, the linked program has {self.linked_ram_bytes:,} B of RAM, and the plan "
                f"{self.planned_ram_bytes:,}; please report it with the plan file"
            )
        if not self.within_budget:
            return (
                f"the arena takes {self.arena_bytes:,} B, more than the budget of {self.budget_bytes:,} B; solve with "
                "a larger --ram"
            )
        return ""
