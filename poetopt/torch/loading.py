"""Loading of what a plan trained into the torch module, by name and bit for bit."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.torch.exporting import UNUSED
from poetopt.torch.tensors import COUNTER, Stored, check_module, difference, needed, put, stored_in
from poetopt.util.errors import ModelError, PlanError

if TYPE_CHECKING:
    import onnx

    from poetopt.graph import Array

BESIDE = ("losses", "loss")
"""What a dump has beside parameters and statistics."""
NAMED = 5
"""Tensors of a kind that a message names."""


def load(module: Any, trained: Any) -> Any:
    """Copy trained parameters and buffers into a torch module; returns the module.

    module
        As it was exported, on any device.
    trained
        The trained network as an ONNX file, or in memory; a `Trainer`, or a folder of its checkpoints, of which the
        newest counts; what `po.train` returned, or its dump (`.npz`); or arrays by name. A network has all of the
        module's tensors. The others have what training changes: all parameters that want a gradient, and
        BatchNormalization's statistics.

    Every tensor keeps its bits. BatchNormalization's counter of batches stays as it is, and so does what the exported
    file left out as unused. Running variances are ONNX's, of the biased kind.

    Raises PlanError for a folder without a whole checkpoint; ModelError, with one message that names what is missing,
    what the module hasn't, and what has another shape or type. Then nothing was changed.
    """
    needed()
    check_module(module)
    given = _given(trained)
    arrays = given.arrays
    stored = stored_in(module)
    missing: list[str] = []
    different: list[str] = []
    twice: list[str] = []
    pairs: list[tuple[Array, Any]] = []
    for entry in stored:
        found = entry.among(arrays)
        if not found:
            if (given.whole or entry.trained) and not set(entry.names) & given.unused:
                missing.append(entry.names[0])
            continue
        array = arrays[found[0]]
        if reason := difference(array, entry.tensor):
            different.append(f"{found[0]} ({reason})")
        elif any(arrays[name].tobytes() != array.tobytes() for name in found[1:]):
            twice.append(" and ".join(found))
        else:
            pairs.append((array, entry.tensor))
    strange = [] if given.others else _strange(module, stored, arrays, whole=given.whole)
    faults = {
        "missing there": missing,
        "not in the module": strange,
        "of another shape or type": different,
        "one tensor in the module, with several values there": twice,
    }
    if any(faults.values()):
        said = "; ".join(f"{kind}: {_some(names)}" for kind, names in faults.items() if names)
        raise ModelError(
            f"{given.what} doesn't fit {type(module).__name__}: {said}; nothing was changed; give the module as it was "
            "exported with po.torch.export, which keeps names"
        )
    for array, tensor in pairs:
        put(array, tensor)
    return module


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _strange(module: Any, stored: Iterable[Stored], arrays: Mapping[str, Array], *, whole: bool) -> list[str]:
    """Names that the module hasn't. Of a network: the dotted ones, as constants of the exporter have no dots."""
    known = {name for entry in stored for name in entry.names} | {name for name, _ in module.named_buffers()}
    others = [name for name in arrays if name not in known and name.rpartition(".")[2] != COUNTER]
    return [name for name in others if "." in name and arrays[name].dtype.kind == "f"] if whole else others


@dataclass(frozen=True)
class _Given:
    """Holds what `load` was given.

    arrays
        By name.
    what
        How messages call it.
    whole
        Whether they are all tensors of a network; else those that training changes.
    others
        Whether an optimizer's states are among them.
    unused
        Names that the network leaves out.
    """

    arrays: Mapping[str, Array]
    what: str
    whole: bool = False
    others: bool = False
    unused: frozenset[str] = frozenset()


def _given(trained: Any) -> _Given:
    """Raises ModelError for a file that can't be read, or what has no arrays."""
    from poetopt.api.trainer import Trainer
    from poetopt.backends.onnxruntime.batch import load_batch

    if isinstance(trained, (str, os.PathLike)):
        path = os.fspath(trained)
        if os.path.isdir(path):
            return _checkpoint(path)
        if path.endswith(".npz"):
            return _Given({name: array for name, array in load_batch(path).items() if name not in BESIDE}, path)
        return _network(path)
    if hasattr(trained, "SerializeToString"):
        return _network(trained)
    values = trained if isinstance(trained, Mapping) else getattr(trained, "values", None)
    if isinstance(trained, Trainer):
        graph = trained.plan.problem.graph
        learned = graph.learned if graph is not None else ()
        values = {name: array for name, array in trained.values().items() if name in learned}
    if not isinstance(values, Mapping):
        raise ModelError(
            "a trained network is needed here (an ONNX file, a Trainer or a folder of its checkpoints, what po.train "
            f"returned, its dump, arrays by name), not a {type(trained).__name__}"
        )
    return _Given({str(name): np.asarray(value) for name, value in values.items()}, "what was trained")


def _checkpoint(folder: str) -> _Given:
    """The newest one. Raises PlanError where there is none."""
    from poetopt.training.checkpoint import newest

    found = newest(Path(folder))
    if found is None:
        raise PlanError(f"{folder}: there is no checkpoint in it; give the folder that a training saved them to")
    return _Given(dict(found.states()), str(found.path), others=True)


def _network(source: str | onnx.ModelProto) -> _Given:
    from poetopt.frontends.read import array_of, read_model

    document = read_model(source)
    unused = next((entry.value for entry in document.proto.metadata_props if entry.key == UNUSED), "")
    arrays = {name: array_of(document, name) for name in document.weights}
    return _Given(arrays, document.where, whole=True, unused=frozenset(unused.split("\n")))
