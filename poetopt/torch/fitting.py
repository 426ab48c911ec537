"""A torch module trained in one call: exported, planned for a device, trained by the plan, and loaded again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.torch.exporting import export
from poetopt.torch.loading import load
from poetopt.torch.tensors import check_module, needed
from poetopt.util.errors import ModelError, OptionError

if TYPE_CHECKING:
    from poetopt.graph import Array

Batches = Callable[[int], Iterator[Mapping[str, "Array"]]]
LEFT_OUT = -100
"""The label that torch's cross-entropy leaves out of its mean by default."""


def fit(
    module: Any,
    data: Any,
    *,
    device: Any,
    memory: str | float | None = None,
    loss: str = "auto",
    optimizer: str = "adam",
    lr: float | None = None,
    batch: int = 32,
    epochs: int = 1,
    validate: Any = None,
    patience: int | None = None,
    time_limit: str | float = 30.0,
    seed: int = 0,
    progress: bool = True,
    **step: Any,
) -> Any:
    """Train a module by a plan for a device, in this process; gives the module, with its best epoch's parameters.

        net = po.fit(net, (images, labels), device="rpi4", memory="1GB", epochs=5, validate=(more, their_labels))

    It is `po.torch.export`, `po.solve`, `po.Trainer.fit` and `po.torch.load`, one after the other; each takes more.

    module
        A torch module, as it is to be trained (see `po.torch.export`).
    data, validate
        Its inputs and what the loss compares, as arrays or tensors with a row a sample: `(x, labels)`; or what gives
        such tuples batch by batch, all of one size, as a DataLoader does (a smaller last one is left out). With
        `loss="none"`, where the module gives its own loss, all are inputs of it.
    device, memory
        As `solve` takes `device` and `total_ram`: of all that a step takes. A share (`"60%"`) is of what the schedule
        takes without recomputing and paging.
    loss, optimizer, lr, epochs, patience, seed
        As for `differentiate`, and `Trainer.fit`.
    batch
        Rows of a step, where `data` are arrays.
    time_limit
        Of the search for a plan.
    step
        What else `differentiate` takes: `label_smoothing=0.1`, ... Where the data (of what gives batches, the first)
        have labels of -100, `ignore_index` is -100.

    Raises what those do; OptionError for data without a row a sample. Then nothing of the module has changed.
    """
    from poetopt.api.solving import solve
    from poetopt.api.trainer import Trainer

    torch = needed("onnxscript")
    check_module(module)
    example, size = _example(torch, data, batch)
    given = example if loss == "none" else example[:-1]
    names = ["x"] if len(given) == 1 else [f"x{k}" for k in range(len(given))]
    with tempfile.TemporaryDirectory(prefix="poetopt-fit-") as folder:
        model = export(module, given, Path(folder) / f"{type(module).__name__}.onnx", input_names=names)
        made = model.differentiate(loss=loss, optimizer=optimizer, **step)
        labels = np.asarray(data[-1] if _whole(torch, data) else example[-1])
        if made.graph.loss_kind == "cross-entropy" and (labels == LEFT_OUT).any():
            made = model.differentiate(loss=loss, optimizer=optimizer, **{"ignore_index": LEFT_OUT, **step})
        wanted = [*names, *(name for name in made.graph.added_inputs if name not in names)]
        if len(wanted) != len(example):
            raise ModelError(
                f"the step reads {', '.join(wanted)}, and each row of the data has {len(example)} parts; give one for "
                "each, in that order"
            )
        share = isinstance(memory, str) and memory.rstrip().endswith("%")
        budget: dict[str, Any] = {"ram": memory} if share else {"total_ram": memory}
        report = solve(made.cost(device, runtime="onnxruntime"), **budget, time_limit=time_limit, progress=progress)
        with Trainer(report, lr=lr, seed=seed, progress=progress) as trainer:
            ended = trainer.fit(
                _given(torch, data, wanted, size),
                epochs=epochs,
                validate=None if validate is None else _given(torch, validate, wanted, size),
                patience=patience,
            )
            load(module, trainer)
    if progress:
        from poetopt.util.progress import telling

        telling(progress=True)(
            f"{type(module).__name__}: loss {ended.losses[0]:.4g} in the first epoch, "
            f"{ended.losses[ended.kept - 1]:.4g} in epoch {ended.kept}, which is kept"
        )
    return module


def _arrays(torch: Any, parts: Any) -> tuple[Array, ...]:
    found = parts if isinstance(parts, (tuple, list)) else (parts,)
    return tuple(part.detach().cpu().numpy() if isinstance(part, torch.Tensor) else np.asarray(part) for part in found)


def _whole(torch: Any, data: Any) -> bool:
    """Say whether the data are arrays, and not what gives batches of them."""
    return isinstance(data, (tuple, list)) and all(isinstance(part, (torch.Tensor, np.ndarray)) for part in data)


def _example(torch: Any, data: Any, batch: int) -> tuple[tuple[Any, ...], int]:
    """A batch's parts as tensors, and its size. Raises OptionError."""
    first = tuple(part[:batch] for part in data) if _whole(torch, data) else next(iter(data), None)
    parts = () if first is None else _arrays(torch, first)
    sizes = {part.shape[:1] for part in parts}
    if len(sizes) != 1 or () in sizes or len(parts) < 2:
        raise OptionError(
            "data: give inputs and what the loss compares, each with a row a sample, as in (images, labels), or a "
            "DataLoader of such tuples"
        )
    return tuple(torch.from_numpy(np.ascontiguousarray(part)) for part in parts), len(parts[0])


def _given(torch: Any, data: Any, names: list[str], size: int) -> Any:
    """The data as `Trainer.fit` takes them."""
    if _whole(torch, data):
        return dict(zip(names, _arrays(torch, data), strict=True))

    def batches(_: int) -> Iterator[Mapping[str, Array]]:
        for one in data:
            parts = _arrays(torch, one)
            if len(parts[0]) == size:
                yield dict(zip(names, parts, strict=True))

    return batches
