"""The network that a training began with, as a file or in memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from poetopt.errors import ModelError

if TYPE_CHECKING:
    import onnx


def original(
    model: str | os.PathLike[str] | onnx.ModelProto | None, recipe: Mapping[str, object]
) -> str | os.PathLike[str] | onnx.ModelProto:
    """What `export` writes anew: a path, or the model itself; a built-in network is built as the recipe says.

    Raises ModelError where nobody said which it is.
    """
    from poetopt.frontends import zoo

    if model is None or model == "":
        raise ModelError("the network was given in memory; say which, with Trainer(plan, model=...), to write it")
    if isinstance(model, str) and model in zoo.names() and not os.path.exists(model):
        batch, shapes = recipe.get("batch"), recipe.get("shapes")
        tokens = zoo.tokens_of(model, shapes if isinstance(shapes, Mapping) else {})
        return zoo.build(model, batch if isinstance(batch, int) else None, tokens)
    return model
