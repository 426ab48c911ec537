"""Where a tensor is when the step begins."""

from __future__ import annotations

from enum import StrEnum


class Home(StrEnum):
    """Where a tensor is when the step begins, before the first operator."""

    NOWHERE = "nowhere"
    """An operator computes it."""
    RAM = "ram"
    """It lies in RAM."""
    STORAGE = "storage"
    """Storage holds a copy: reading it needs no page-out before."""
    FLASH = "flash"
    """It lies in mapped flash: read in place, without RAM and at no cost, and never written."""
