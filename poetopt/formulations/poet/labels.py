"""Readable names of the variables, for model files: the paper's symbol, the stage, and what it is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from poetopt.formulations.poet.space import PoetSpace


def labels(model: Any) -> list[tuple[Any, Sequence[str]]]:
    """`R.s12.3.conv1`: operator 3, conv1, runs in stage 12; `S_ram.s12.5.relu1`: tensor 5 is in RAM when it begins."""
    space: PoetSpace = model.space
    operators, tensors = space.problem.operators, space.problem.tensors
    computes = [f"s{t}.{j}.{operators[j].name}" for t, j in space.computes]
    residences = [f"s{t}.{i}.{tensors[i].name}" for t, i in space.residences]
    found: list[tuple[Any, Sequence[str]]] = [
        (model.rematerialization.R, [f"R.{label}" for label in computes]),
        (model.rematerialization.S_ram, [f"S_ram.{label}" for label in residences]),
        (model.memory.U, [f"U.{label}" for label in computes]),
    ]
    if space.paging:
        for symbol in ("S_aux", "M_in", "M_out"):
            found.append((model.paging.component(symbol), [f"{symbol}.{label}" for label in residences]))
    return found
