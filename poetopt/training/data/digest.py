"""What tells one data set from another: a digest of its values, in pieces as they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from poetopt.graph import Array


class Digest:
    """Of arrays by name, which come in pieces, rows after rows."""

    def __init__(self) -> None:
        self._names: dict[str, hashlib.blake2b] = {}

    def add(self, name: str, rows: Array) -> None:
        """Take the next rows of an array."""
        if name not in self._names:
            self._names[name] = hashlib.blake2b(f"{rows.dtype} {rows.shape[1:]}".encode(), digest_size=16)
        self._names[name].update(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)

    @property
    def text(self) -> str:
        """That of all so far."""
        return Digest.of(f"{name} {self._names[name].hexdigest()}" for name in sorted(self._names))

    @staticmethod
    def of(parts: Iterable[str]) -> str:
        """Of texts, one after the other."""
        whole = hashlib.blake2b(digest_size=16)
        for part in parts:
            whole.update(f"{part}\n".encode(errors="surrogateescape"))  # names of files are any bytes
        return whole.hexdigest()
