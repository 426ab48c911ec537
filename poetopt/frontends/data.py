"""Tensors that a file stores as it stores weights, and that nobody trains: told by their places and numbers.

Where the exporter says what its parameters are, only masks are looked for among the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from poetopt.frontends import grids, masks, normalized
from poetopt.frontends.draft import Type
from poetopt.frontends.read import Document
from poetopt.frontends.views import Views


@dataclass(frozen=True)
class Data:
    """Names of the weights that are data, by what they are."""

    masks: tuple[str, ...] = ()
    normalization: tuple[str, ...] = ()
    grids: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """All of them."""
        return frozenset({*self.masks, *self.normalization, *self.grids})

    def notes(self, known: Set[str]) -> list[str]:
        """What to say of those that are not in `known`, which are trained or said to be data already."""

        def left(names: Iterable[str]) -> list[str]:
            return [name for name in names if name not in known]

        others = {*self.masks, *self.normalization}
        return [
            *masks.note(left(self.masks)),
            *normalized.note(left(self.normalization)),
            *grids.note(left(name for name in self.grids if name not in others)),
        ]


def find_data(document: Document, seen: Views, inputs: Mapping[str, Type], parameters: Set[str]) -> Data:
    """What is data among the weights; `parameters` are what the exporter calls so."""
    found = tuple(name for name in masks.additive_masks(document) if name not in parameters)
    if parameters:
        return Data(found)
    return Data(found, normalized.normalization(document, inputs), grids.grids(document, seen))
