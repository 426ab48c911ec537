"""What every data set does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from poetopt.telling import Told, silent

if TYPE_CHECKING:
    from poetopt.graph import Array


class DataSet(Protocol):
    """Rows, each of which has a part of every input.

    shown
        What messages call it.
    rows
        How many there are.
    """

    shown: str
    rows: int

    def take(self, rows: Array) -> Mapping[str, Array]:
        """Arrays by input name, of these rows (numbers from 0). Raises ModelError where they can't be read."""

    def where(self, row: int) -> str:
        """What messages call a row: its file, and its number there."""

    def check(self, told: Told = silent) -> str:
        """Read all values once, and raise ModelError for the first that is none, or out of its range; their digest.

        Where that takes as long as training does (images), values are looked at when they are read, and the digest is
        of names and sizes of the files.
        """
