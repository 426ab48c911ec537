"""What identifies a chain cut, whatever the scope."""

from __future__ import annotations

from typing import NamedTuple


class Chain(NamedTuple):
    """What identifies a cut in every scope: the window (s, b], and the path from its last tensor to its first.

    by_page
        For each tensor of the path, whether its page-ins (True) or its one page-out stand in the cut.
    """

    s: int
    b: int
    path: tuple[int, ...]
    by_page: tuple[bool, ...]
