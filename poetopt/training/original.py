"""The network that a training began with: a file, in memory, or a built-in one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from poetopt import apart
from poetopt.errors import ModelError, OutputError

if TYPE_CHECKING:
    import onnx

    from poetopt.telling import Told


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A built-in network. Building it takes several times its parameters, so another process does."""

    name: str
    batch: int | None = None
    tokens: int | None = None

    def write(self, place: Path) -> None:
        """Write its file. Raises OutputError where that can't be done."""
        apart.call(f"building {self.name}", _write, self, place)


def original(
    model: str | os.PathLike[str] | onnx.ModelProto | None, recipe: Mapping[str, object]
) -> str | os.PathLike[str] | onnx.ModelProto | BuiltIn:
    """What `export` writes anew: a path, the model itself, or a built-in network as the recipe says.

    Raises ModelError where nobody said which it is.
    """
    from poetopt.frontends import zoo

    if model is None or model == "":
        raise ModelError("the network was given in memory; say which, with Trainer(plan, model=...), to write it")
    if isinstance(model, str) and model in zoo.names() and not os.path.exists(model):
        batch, shapes = recipe.get("batch"), recipe.get("shapes")
        tokens = zoo.tokens_of(model, shapes if isinstance(shapes, Mapping) else {})
        return BuiltIn(model, batch if isinstance(batch, int) else None, tokens)
    return model


def _write(network: BuiltIn, place: Path, *, told: Told) -> None:
    from poetopt.frontends import zoo

    content = zoo.build(network.name, network.batch, network.tokens).SerializeToString()
    try:
        place.write_bytes(content)
    except OSError as error:
        raise OutputError(f"can't write {place.parent}: {error.strerror or error}; make room there") from error
