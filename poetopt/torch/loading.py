"""Loading of trained values into the torch module, by name and bit for bit."""

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
"""Entries of a dump that are neither parameters nor statistics."""
NAMED = 5
"""Maximum number of tensors of each kind that a message names."""


def load(module: Any, trained: Any) -> Any:
    """Copy trained parameters and buffers into a torch module; return the module.

    Every tensor keeps its bits. BatchNormalization's counter of batches, and tensors that the exported file omits as
    unused, stay as they are. Running variances are ONNX's, which are biased.

    Parameters
    ----------
    module
        Module as it was exported, on any device.
    trained
        The trained network as an ONNX file or in memory; a `Trainer`, or a folder of its checkpoints, of which the
        newest is used; the result of `po.train`, or its dump (`.npz`); or arrays by name. A network has all tensors of
        the module. The others have those that training changes: all parameters that want a gradient, and
        BatchNormalization's statistics.

    Raises
    ------
    PlanError
        For a folder without a complete checkpoint.
    ModelError
        For missing or unknown tensors, and other shapes or types; the message names them, and the module is unchanged.
    """
    needed()
    check_module(module)
    trained_values = _trained_values(trained)
    arrays = trained_values.arrays
    stored = stored_in(module)
    missing: list[str] = []
    different: list[str] = []
    conflicting: list[str] = []
    pairs: list[tuple[Array, Any]] = []
    for entry in stored:
        names_in_source = entry.among(arrays)
        if not names_in_source:
            if (trained_values.whole or entry.trained) and not set(entry.names) & trained_values.unused:
                missing.append(entry.names[0])
            continue
        array = arrays[names_in_source[0]]
        if reason := difference(array, entry.tensor):
            different.append(f"{names_in_source[0]} ({reason})")
        elif any(arrays[name].tobytes() != array.tobytes() for name in names_in_source[1:]):
            conflicting.append(" and ".join(names_in_source))
        else:
            pairs.append((array, entry.tensor))
    unknown = [] if trained_values.others else _unknown_names(module, stored, arrays, is_network=trained_values.whole)
    faults = {
        "missing there": missing,
        "not in the module": unknown,
        "of another shape or type": different,
        "one tensor in the module, with several values there": conflicting,
    }
    if any(faults.values()):
        listed_faults = "; ".join(f"{kind}: {_first_names(names)}" for kind, names in faults.items() if names)
        raise ModelError(
            f"{trained_values.what} doesn't fit {type(module).__name__}: {listed_faults}; nothing was changed. "
            "Give the module that was exported with po.torch.export, which keeps names."
        )
    for array, tensor in pairs:
        put(array, tensor)
    return module


def _first_names(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _unknown_names(
    module: Any, stored: Iterable[Stored], arrays: Mapping[str, Array], *, is_network: bool
) -> list[str]:
    """Return the names that the module lacks; of a network only dotted ones, because constants have no dots."""
    known = {name for entry in stored for name in entry.names} | {name for name, _ in module.named_buffers()}
    others = [name for name in arrays if name not in known and name.rpartition(".")[2] != COUNTER]
    return [name for name in others if "." in name and arrays[name].dtype.kind == "f"] if is_network else others


@dataclass(frozen=True)
class _TrainedValues:
    """Trained values for `load`.

    Attributes
    ----------
    arrays
        Arrays by name.
    what
        Name of the source in messages.
    whole
        Whether they are all tensors of a network, or only those that training changes.
    others
        Whether they include an optimizer's states.
    unused
        Names that the network omits.
    """

    arrays: Mapping[str, Array]
    what: str
    whole: bool = False
    others: bool = False
    unused: frozenset[str] = frozenset()


def _trained_values(trained: Any) -> _TrainedValues:
    """Return the trained values. Raises ModelError for an unreadable file, or an object without arrays."""
    from poetopt.api.trainer import Trainer
    from poetopt.backends.onnxruntime.batch import load_batch

    if isinstance(trained, (str, os.PathLike)):
        path = os.fspath(trained)
        if os.path.isdir(path):
            return _newest_values(path)
        if path.endswith(".npz"):
            return _TrainedValues({name: array for name, array in load_batch(path).items() if name not in BESIDE}, path)
        return _network_values(path)
    if hasattr(trained, "SerializeToString"):
        return _network_values(trained)
    values = trained if isinstance(trained, Mapping) else getattr(trained, "values", None)
    if isinstance(trained, Trainer):
        graph = trained.plan.problem.graph
        learned = graph.learned if graph is not None else ()
        values = {name: array for name, array in trained.values().items() if name in learned}
    if not isinstance(values, Mapping):
        raise ModelError(
            "a trained network is needed (an ONNX file, a Trainer or a folder of its checkpoints, the result of "
            f"po.train, its dump, arrays by name), not a {type(trained).__name__}"
        )
    return _TrainedValues({str(name): np.asarray(value) for name, value in values.items()}, "the trained network")


def _newest_values(folder: str) -> _TrainedValues:
    """Return the values of the newest checkpoint. Raises PlanError if there is none."""
    from poetopt.training.checkpoint import newest

    checkpoint = newest(Path(folder))
    if checkpoint is None:
        raise PlanError(f"{folder}: there is no checkpoint in it. Give the folder that a training saved them to.")
    return _TrainedValues(dict(checkpoint.states()), str(checkpoint.path), others=True)


def _network_values(source: str | onnx.ModelProto) -> _TrainedValues:
    from poetopt.frontends.read import array_of, read_model

    document = read_model(source)
    unused = next((entry.value for entry in document.proto.metadata_props if entry.key == UNUSED), "")
    arrays = {name: array_of(document, name) for name in document.weights}
    return _TrainedValues(arrays, document.where, whole=True, unused=frozenset(unused.split("\n")))
