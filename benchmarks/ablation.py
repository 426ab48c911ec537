"""What each mechanism of the search is worth: switches that leave one out, for `benchmarks.solve --without NAME`.

A switch changes one process alone: it replaces the function through which the mechanism is entered, so that the search
goes on as if the mechanism had found nothing. `benchmarks/results/ablation.md` has the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def _tree() -> None:
    from poetopt.engine.parallel_tree import ParallelTree

    ParallelTree.__enter__ = lambda self: self  # type: ignore[method-assign]


def _dives() -> None:
    from poetopt.branching.tree import Tree

    Tree.time_to_dive = lambda self: 0.0  # type: ignore[method-assign]


def _aggregates() -> None:
    _set("poetopt.engine.parallel_tree", "worth", lambda *_: [])


def _windows() -> None:
    _set("poetopt.engine.model_search", "rolling_windows", lambda *_: None)


def _core() -> None:
    _set("poetopt.engine.model_search", "core_search", lambda *_: None)


def _replays() -> None:
    from poetopt.engine.replays import Replays

    Replays.follow = lambda *_: False  # type: ignore[method-assign]


def _labels() -> None:
    from poetopt.engine.labels import LabelSetting

    LabelSetting.of = lambda *_: None  # type: ignore[method-assign]


def _relaxation() -> None:
    from poetopt.engine.relaxation import RelaxedRun

    RelaxedRun.of = lambda *_: None  # type: ignore[method-assign]


def _cut_pool() -> None:
    from poetopt.formulations.language import Formulation

    Formulation.revive = lambda *_: []  # type: ignore[method-assign]


def _scope_difference() -> None:
    from poetopt.formulations import retention

    object.__setattr__(retention.retention, "scope_difference", None)


def _dominated() -> None:
    import numpy as np

    def none(problem: Any, *_: object) -> Any:
        return np.zeros(len(problem.operators), dtype=bool)

    _set("poetopt.formulations.retention.space", "dominated", none)


def _repetition() -> None:
    from poetopt.formulations.retention.repetition import Repetition

    Repetition.images = lambda *_: iter(())  # type: ignore[method-assign]


def _pressure() -> None:
    from poetopt.formulations.retention.pressure import Pressure

    Pressure.note = lambda *_: None  # type: ignore[method-assign]
    Pressure.begun = lambda *_: None  # type: ignore[method-assign]


def _separator(name: str) -> Callable[[], None]:
    def switch() -> None:
        from poetopt.formulations import retention

        for block in retention.retention.blocks:
            if block.name == name:
                object.__setattr__(block, "separator", None)

    return switch


def _set(module: str, attribute: str, value: object) -> None:
    import importlib

    setattr(importlib.import_module(module), attribute, value)


MECHANISMS: Mapping[str, Callable[[], None]] = {
    "tree": _tree,
    "dives": _dives,
    "aggregate-branching": _aggregates,
    "windows": _windows,
    "core": _core,
    "replays": _replays,
    "labels": _labels,
    "relaxation": _relaxation,
    "cut-pool": _cut_pool,
    "scope-difference": _scope_difference,
    "dominated": _dominated,
    "repetition": _repetition,
    "pressure": _pressure,
    "rounding": _separator("rounding"),
    "chain-cuts": _separator("chain_cuts"),
}
"""By name: what leaves a mechanism out."""
