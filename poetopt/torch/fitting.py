"""Training of a torch module in one call: export, plan for a device, train by the plan, load the result."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.torch.exporting import export
from poetopt.torch.loading import load
from poetopt.torch.tensors import check_module, needed
from poetopt.util.errors import ModelError, OptionError, PoetError

if TYPE_CHECKING:
    from poetopt.graph import Array

Batches = Callable[[int], Iterator[Mapping[str, "Array"]]]
LEFT_OUT = -100
"""Label that torch's cross-entropy ignores by default."""
_OPTION = re.compile(
    r"--(?:with )?([a-z][a-z-]*)(?:[ =]("
    r"-?\d[\w%+-]*(?:\.\d[\w%+-]*)*|(?:mse|bce|cross-entropy|none|auto|forward-only)\b|"
    r"[^\s;:,.()-][^\s;:,.()]*(?::[\w.]*\w)*(?=[;:,)]|\.?$|\. )))?"
)
"""An option of the command line in a message, with its value if one follows."""
_ARGUMENTS = {"ram": "memory", "total_ram": "memory"}
"""Arguments of `fit` whose names differ from those of options."""


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
    """Train a module by a plan for a device, in this process; return it with the parameters of its best epoch.

        net = po.fit(net, (images, labels), device="rpi4", memory="1GB", epochs=5, validate=(more, their_labels))

    It combines `po.torch.export`, `po.solve`, `po.Trainer.fit` and `po.torch.load`, which have further options.

    Parameters
    ----------
    module
        A torch module in the mode for training (see `po.torch.export`).
    data, validate
        Inputs, and the labels or targets of the loss, as arrays or tensors with one row a sample: `(x, labels)`. Or an
        iterable of such tuples, one a batch, like a DataLoader; a batch of another size, such as a smaller last one, is
        left out. With `loss="none"`, for a module that computes its own loss, all are inputs of it.
    device, memory
        As `device` and `total_ram` of `solve`, for the whole step. A share (`"60%"`) is of the schedule's memory
        without recomputing and paging.
    loss, optimizer, lr, epochs, patience, seed
        As for `differentiate` and `Trainer.fit`.
    batch
        Rows of a step, if `data` are arrays.
    time_limit
        Limit of the search for a plan.
    step
        Further arguments of `differentiate`: `label_smoothing=0.1`, ... If the labels (of an iterable, those of its
        first batch) contain -100, `ignore_index` defaults to -100.

    Raises
    ------
    OptionError
        For data without one row a sample, and invalid arguments.
    PoetError
        Other errors are those of the four combined calls. The module is then unchanged.
    """
    from poetopt.api.solving import solve
    from poetopt.api.trainer import Trainer

    torch = needed("onnxscript")
    check_module(module)
    example, size = _first_batch(torch, data, batch)
    module_inputs = example if loss == "none" else example[:-1]
    names = ["x"] if len(module_inputs) == 1 else [f"x{k}" for k in range(len(module_inputs))]
    file = f"{type(module).__name__}.onnx"
    with tempfile.TemporaryDirectory(prefix="poetopt-fit-") as folder, _python_messages(Path(folder) / file):
        model = export(module, module_inputs, Path(folder) / file, input_names=names)
        training_step = model.differentiate(loss=loss, optimizer=optimizer, **step)
        labels = np.asarray(data[-1] if _are_arrays(torch, data) else example[-1])
        if training_step.graph.loss_kind == "cross-entropy" and (labels == LEFT_OUT).any():
            training_step = model.differentiate(loss=loss, optimizer=optimizer, **{"ignore_index": LEFT_OUT, **step})
        inputs = [*names, *(name for name in training_step.graph.added_inputs if name not in names)]
        if len(inputs) != len(example):
            raise ModelError(
                f"the step reads {', '.join(inputs)}, and each row of the data has {len(example)} parts. Give one part "
                "for each, in that order."
            )
        is_share = isinstance(memory, str) and memory.rstrip().endswith("%")
        budget: dict[str, Any] = {"ram": memory} if is_share else {"total_ram": memory}
        report = solve(
            training_step.cost(device, runtime="onnxruntime"), **budget, time_limit=time_limit, progress=progress
        )
        with Trainer(report, lr=lr, seed=seed, progress=progress) as trainer:
            result = trainer.fit(
                _trainer_data(torch, data, inputs, size),
                epochs=epochs,
                validate=None if validate is None else _trainer_data(torch, validate, inputs, size),
                patience=patience,
            )
            load(module, trainer)
    if progress:
        from poetopt.util.progress import telling

        telling(progress=True)(
            f"{type(module).__name__}: loss {result.losses[0]:.4g} in the first epoch, "
            f"{result.losses[result.kept - 1]:.4g} in epoch {result.kept}, whose parameters are kept"
        )
    return module


@contextmanager
def _python_messages(file: Path) -> Iterator[None]:
    """Rephrase errors for Python: arguments instead of options, and the module's name instead of a temporary file."""
    try:
        yield
    except PoetError as error:
        text = str(error).replace(str(file.resolve()), file.stem).replace(str(file), file.stem)
        error.args = (in_python(text), *error.args[1:])
        raise


def in_python(text: str) -> str:
    """Return a message with arguments of `fit` instead of options of the command line.

    For example, `--loss mse` becomes `loss="mse"`, and `--lr` becomes `lr`.
    """

    def argument(match: re.Match[str]) -> str:
        name, value = match[1].replace("-", "_"), match[2]
        name = _ARGUMENTS.get(name, name)
        if value is None:
            return name
        is_plain = re.fullmatch(r"[A-Z]+|-?\d+(\.\d+)?(e[+-]?\d+)?", value) is not None
        return f"{name}={value}" if is_plain else f'{name}="{value}"'

    return _OPTION.sub(argument, text)


def _arrays(torch: Any, parts: Any) -> tuple[Array, ...]:
    sequence = parts if isinstance(parts, (tuple, list)) else (parts,)
    return tuple(
        part.detach().cpu().numpy() if isinstance(part, torch.Tensor) else np.asarray(part) for part in sequence
    )


def _are_arrays(torch: Any, data: Any) -> bool:
    """Return whether the data are arrays rather than an iterable of batches."""
    return isinstance(data, (tuple, list)) and all(isinstance(part, (torch.Tensor, np.ndarray)) for part in data)


def _first_batch(torch: Any, data: Any, batch: int) -> tuple[tuple[Any, ...], int]:
    """Return the parts of a batch as tensors, and its size. Raises OptionError."""
    first = tuple(part[:batch] for part in data) if _are_arrays(torch, data) else next(iter(data), None)
    parts = () if first is None else _arrays(torch, first)
    sizes = {part.shape[:1] for part in parts}
    if len(sizes) != 1 or () in sizes or len(parts) < 2:
        raise OptionError(
            "data: its parts don't have one row a sample. Give inputs and labels (or targets) like (images, labels), "
            "or a DataLoader of such tuples."
        )
    return tuple(torch.from_numpy(np.ascontiguousarray(part)) for part in parts), len(parts[0])


def _trainer_data(torch: Any, data: Any, names: list[str], size: int) -> Any:
    """Return the data in the form for `Trainer.fit`."""
    if _are_arrays(torch, data):
        return dict(zip(names, _arrays(torch, data), strict=True))

    def batches(_: int) -> Iterator[Mapping[str, Array]]:
        for part_list in data:
            parts = _arrays(torch, part_list)
            if len(parts[0]) == size:
                yield dict(zip(names, parts, strict=True))

    return batches
