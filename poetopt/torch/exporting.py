"""Export of a module as an ONNX file that trains like the module, and is checked against it.

torch's newer exporter with `optimize=False` keeps Dropout, and every parameter and buffer under its name. It writes
each BatchNormalization in inference form; those of layers in training mode are changed to training form here. The older
exporter keeps both, but is deprecated, and runs the module, which would change running statistics.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Any

from poetopt.frontends.proto import BATCH, PARAMETERS
from poetopt.ops.op import op_of
from poetopt.torch.beside import check_beside
from poetopt.torch.tensors import Stored, bits, check_module, difference, needed, stored_in
from poetopt.util.errors import ModelError, OptionError
from poetopt.util.files import write_atomically
from poetopt.util.notes import listed
from poetopt.util.progress import telling
from poetopt.util.text import without_remedy

if TYPE_CHECKING:
    import onnx

    from poetopt.api.models import Model

UNUSED = "poetopt.unused"
"""Metadata key of a file: tensors of the module that no output depends on, one name a line."""
SCOPES = "pkg.torch.onnx.name_scopes"
"""Metadata key of a node, by the exporter: its enclosing modules from the outermost on, as a Python list."""
LARGEST = 2_000_000_000
"""Maximum bytes of weights in one ONNX file."""
NAMED = 5
"""Maximum number of tensors that a message names."""


def export(
    module: Any,
    example: Any,
    path: str | os.PathLike[str],
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_batch: bool = True,
    check: bool = True,
) -> Model:
    """Write a torch module as ONNX, ready for training; return the `Model` that `load` reads from it.

    The module doesn't change. The file has each parameter and saved buffer once, under its name in the module and with
    the same bits. Tensors that no output depends on are left out.

    Parameters
    ----------
    module
        Module in the mode for training: call `module.train()` first. Layers in evaluation mode stay in it. Parameters
        without `requires_grad`, and those that no gradient reaches on the example (`detach`, `no_grad`), are frozen.
    example
        The positional arguments of the module, or its only argument: a batch as in training.
    path
        The `.onnx` file.
    input_names, output_names
        Names of inputs and outputs in the file.
    dynamic_batch
        Leave the first axis open for all arguments that have the batch's size there. By default the file is then read
        with the example's size.
    check
        Before writing, compare the file with a copy of the module on the example, with gradients
        (`poetopt.torch.beside`). This takes the time of a few training steps, and several times the module's memory.

    Raises
    ------
    ModelError
        If torch can't trace the module, loses a part of it, or exports another computation.
    OptionError
        For an example without a batch, or the wrong number of names.
    BackendUnavailableError
        Without torch and onnxscript.
    OutputError
        If the file can't be written.
    """
    from poetopt.api.models import Model, load

    torch = needed("onnxscript")
    check_module(module)
    arguments = tuple(example) if isinstance(example, (tuple, list)) else (example,)
    stored = stored_in(module)
    if (size := sum(entry.tensor.nbytes for entry in stored)) > LARGEST:
        raise ModelError(
            f"{_class_name(module)}: it has {size:,} B of weights, and an ONNX file holds at most {LARGEST:,} B"
        )
    _check_momentum(module)
    batch = _batch_size(torch, arguments) if dynamic_batch else None
    model = _trace(torch, module, arguments, batch, input_names, output_names)
    _remove_added_biases(model)
    _unify_names(model, stored)
    _name_nodes(model)
    _to_training(model, module)
    unused = _check_tensors(torch, module, arguments, stored, model)
    if batch is not None:
        _check_open(model, module, arguments, batch)
        model.metadata_props.add(key=BATCH, value=str(batch))
    if unused:
        model.metadata_props.add(key=UNUSED, value="\n".join(unused))
    _check_read(model, module, batch)
    trained_names = _trained_names(stored, model)
    if check:
        reached_names = check_beside(module, arguments, model, batch)
        frozen_names = [name for name in trained_names if name not in reached_names]
        trained_names = [name for name in trained_names if name in reached_names]
        if frozen_names:
            telling(progress=True)(
                f"{_class_name(module)}: {listed(frozen_names)} have no gradient in torch, and are frozen"
            )
    if trained_names:
        model.metadata_props.add(key=PARAMETERS, value="\n".join(trained_names))
    write_atomically(path, model.SerializeToString(deterministic=True))
    loaded = load(path, batch=batch)
    assert isinstance(loaded, Model)
    if set(loaded.graph.trained) == set(trained_names):
        return loaded
    loaded = load(path, batch=batch, train=trained_names)
    assert isinstance(loaded, Model)
    return loaded


def _class_name(module: Any) -> str:
    return type(module).__name__


def _batch_size(torch: Any, arguments: tuple[Any, ...]) -> int:
    """Return the size of the first axis. Raises OptionError for a size that torch would treat as a constant."""
    sizes = [argument.shape[0] for argument in arguments if isinstance(argument, torch.Tensor) and argument.ndim]
    if not sizes or sizes[0] < 2:
        raise OptionError(
            "the example has no batch of two or more, which torch needs for an open batch size. Give one, or "
            "dynamic_batch=False."
        )
    return int(sizes[0])


def _trace(
    torch: Any,
    module: Any,
    arguments: tuple[Any, ...],
    batch: int | None,
    input_names: Sequence[str] | None,
    output_names: Sequence[str] | None,
) -> onnx.ModelProto:
    """Export the module with torch. Raises ModelError."""
    shapes: tuple[Any, ...] | None = None
    if batch is not None:
        axis = torch.export.Dim("batch")
        shapes = tuple(
            {0: axis} if isinstance(argument, torch.Tensor) and argument.ndim and argument.shape[0] == batch else None
            for argument in arguments
        )
        kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
        if inspect.Parameter.VAR_POSITIONAL in kinds:  # torch treats *args as one argument
            n_plain = kinds.index(inspect.Parameter.VAR_POSITIONAL)
            shapes = (*shapes[:n_plain], shapes[n_plain:])
    try:
        with _silence_torch(), _exact_functions():
            program = torch.onnx.export(
                module, arguments, dynamo=True, optimize=False, verbose=False, input_names=input_names,
                output_names=output_names, dynamic_shapes=shapes,
            )  # fmt: skip
            model: onnx.ModelProto = program.model_proto
    except Exception as error:  # tracing runs the module's own code
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        first = next((line for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
        open_batch = " If its batch has a fixed size, give dynamic_batch=False." if batch is not None else ""
        raise ModelError(
            f"{_class_name(module)}: torch can't export it ({first.strip().rstrip('.')}). Give a valid example, and a "
            f"forward that doesn't branch on values.{open_batch}"
        ) from error
    for role, names, proto_entries in (
        ("input", input_names, model.graph.input),
        ("output", output_names, model.graph.output),
    ):
        if names is not None and len(names) != len(proto_entries):
            raise OptionError(
                f"{role}_names: {len(names)} of them, and {_class_name(module)} has {len(proto_entries)} {role}s"
            )
    return model


@contextmanager
def _silence_torch() -> Iterator[None]:
    """Suppress torch's logs, warnings and prints: missing packages, training mode, and errors that it also raises."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _exact_functions() -> Any:
    """Return a mode that spells out the functions that the exporter changes.

    The exporter drops label smoothing and the dropout of attention. It passes probabilities to an operator that takes
    only class indices. In-place dropout and dropout of whole channels are written as random draws, although ONNX has a
    Dropout for their mask. It takes the logarithm of a sigmoid that may be 0, and its scatter includes the previous
    values regardless of `include_self`.
    """
    import torch
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode

    channels = {functional.dropout1d: 2, functional.dropout2d: 0, functional.dropout3d: 4}

    def drop_channels(unbatched_ndim: int, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training or not p:
            return x
        mask_shape = x.shape[: 1 if x.ndim == unbatched_ndim else 2]  # an input without a batch has `alone` axes
        mask = functional.dropout(x.new_ones(*mask_shape, *[1] * (x.ndim - len(mask_shape))), p)
        return x.mul_(mask) if inplace else x * mask

    def drop_in_place(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return x.copy_(functional.dropout(x, p)) if training and p else x

    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        if enable_gqa:
            key, value = (tensor.repeat_interleave(query.shape[-3] // tensor.shape[-3], -3) for tensor in (key, value))
        scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            later = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, float("-inf"))
        elif attn_mask is not None:
            scores = scores + attn_mask
        return functional.dropout(functional.softmax(scores, -1), dropout_p) @ value

    def cross_entropy_of_logits(
        x: Any, labels: Any, weight: Any = None, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
        pos_weight: Any = None,
    ) -> Any:  # fmt: skip
        softplus = functional.softplus(-x)
        weighted = softplus if pos_weight is None else (1 + (pos_weight - 1) * labels) * softplus
        each = (1 - labels) * x + weighted
        each = each if weight is None else weight * each
        return each if reduction == "none" else getattr(each, reduction)()

    attend = functional.scaled_dot_product_attention

    def module_attention(func: Any, *args: Any, **kwargs: Any) -> Any:
        """Redirect the inner attention call of a module's attention, which this mode doesn't see."""
        functional.scaled_dot_product_attention = lambda *a, **k: Written().__torch_function__(attend, (), a, k)
        try:
            return func(*args, **kwargs)
        finally:
            functional.scaled_dot_product_attention = attend

    class Written(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if func in channels:
                return drop_channels(channels[func], *args, **kwargs)
            if func is functional.dropout and (kwargs.get("inplace") or args[3:4] == (True,)):
                return drop_in_place(*args, **kwargs)
            if func is functional.multi_head_attention_forward:
                return module_attention(func, *args, **kwargs)
            if func is attend and (kwargs.get("dropout_p") or any(args[4:5])):
                return attention(*args, **kwargs)
            if func is functional.logsigmoid:
                return -functional.softplus(-args[0])
            if func is functional.binary_cross_entropy_with_logits and kwargs.get("reduction") is not None:
                return cross_entropy_of_logits(*args, **kwargs)
            if kwargs.get("include_self") is False:
                raise ModelError("torch's exporter drops include_self=False")
            smoothing = kwargs.get("label_smoothing") or 0.0
            if func is not functional.cross_entropy or not (smoothing or args[1].is_floating_point()):
                return func(*args, **kwargs)
            scores, labels = args[:2]
            weight, reduction = kwargs.get("weight"), kwargs.get("reduction") or "mean"
            axis, ignored = min(scores.ndim - 1, 1), kwargs.get("ignore_index", -100)
            logs = functional.log_softmax(scores, axis)
            if weight is not None:
                logs = logs * weight.reshape(-1, *[1] * (scores.ndim - 1 - axis))
            if labels.is_floating_point():
                each = -(logs * ((1 - smoothing) * labels + smoothing / scores.shape[axis])).sum(axis)
                return each if reduction == "none" else getattr(each, reduction)()
            plain = functional.cross_entropy(scores, labels, weight, ignore_index=ignored, reduction=reduction)
            counted = (labels != ignored).to(scores.dtype)
            even = -logs.mean(axis) * counted
            if reduction == "mean":
                weighted = counted if weight is None else weight[labels * (labels != ignored)] * counted
                even = even.sum() / weighted.sum()
            elif reduction == "sum":
                even = even.sum()
            return (1 - smoothing) * plain + smoothing * even

    return Written()


def _remove_added_biases(model: onnx.ModelProto) -> None:
    """Remove the zero biases that the exporter adds to convolutions, and the nodes that compute them."""
    makers = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        bias_node = (
            makers.get(node.input[2]) if op_of(node.op_type).filter_axis is not None and len(node.input) > 2 else None
        )
        if bias_node is not None and bias_node.op_type == "Expand":
            del node.input[2]
    outputs = {entry.name for entry in model.graph.output}
    while True:
        read = outputs | {name for node in model.graph.node for name in node.input}
        dead = [node for node in model.graph.node if not read.intersection(node.output)]
        if not dead:
            return
        for node in dead:
            model.graph.node.remove(node)


def _check_momentum(module: Any) -> None:
    """Raise ModelError for running statistics with a cumulative average, which ONNX lacks."""
    for name, layer in module.named_modules():
        if layer.training and getattr(layer, "track_running_stats", False) and layer.momentum is None:
            raise ModelError(
                f"{_class_name(module)}: {name or 'it'} averages its statistics over all batches (momentum=None), "
                "which ONNX can't do. Give it a momentum."
            )


def _to_training(model: onnx.ModelProto, module: Any) -> None:
    """Put each BatchNormalization of a layer in training mode into training form, with the layer's momentum."""
    from onnx import helper

    layers = dict(module.named_modules(remove_duplicate=False))
    for node in model.graph.node:
        if node.op_type != "BatchNormalization":
            continue
        layer = layers.get(node.input[3].rpartition(".")[0])
        if layer is None or not layer.training or not getattr(layer, "track_running_stats", False):
            continue
        attributes = [attribute for attribute in node.attribute if attribute.name not in ("training_mode", "momentum")]
        del node.attribute[:]
        node.attribute.extend(
            [
                *attributes,
                helper.make_attribute("training_mode", 1),
                helper.make_attribute("momentum", 1 - layer.momentum),
            ]
        )
        del node.output[1:]
        node.output.extend(f"{node.name}.{name}" for name in ("running_mean", "running_var"))


def _unify_names(model: onnx.ModelProto, stored: Sequence[Stored]) -> None:
    """Rename shared tensors to the first of their names, as in `named_parameters`."""
    initializers = _initializers(model)
    for entry in stored:
        names_in_file = entry.among(initializers)
        if len(names_in_file) == 1 and names_in_file[0] != entry.names[0]:
            initializers[names_in_file[0]].name = entry.names[0]
            for node in model.graph.node:
                for position, name in enumerate(node.input):
                    if name == names_in_file[0]:
                        node.input[position] = entry.names[0]


def _name_nodes(model: onnx.ModelProto) -> None:
    """Name each node after its module and op, as in `layer1.0.conv1/Conv`; reports use these names."""
    counts: dict[str, int] = {}
    for node in model.graph.node:
        scopes = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "")
        modules = re.findall(r"'([^']*)'", scopes)[:-1]  # the last scope is torch's own function
        node_name = f"{modules[-1]}/{node.op_type}" if modules and modules[-1] else node.op_type
        counts[node_name] = counts.get(node_name, 0) + 1
        node.name = node_name if counts[node_name] == 1 else f"{node_name}_{counts[node_name]}"


def _check_tensors(
    torch: Any, module: Any, arguments: tuple[Any, ...], stored: Sequence[Stored], model: onnx.ModelProto
) -> list[str]:
    """Compare the file's tensors with the module's; return the names of those that no output depends on.

    Raises ModelError with the names of lost tensors.
    """
    from onnx import numpy_helper

    initializers = _initializers(model)
    lost: list[str] = []
    absent: list[Stored] = []
    for entry in stored:
        names_in_file = entry.among(initializers)
        if not names_in_file:
            absent.append(entry)
        elif len(names_in_file) > 1:
            lost.append(
                f"{' and '.join(names_in_file)} are one tensor in the module and {len(names_in_file)} in the file"
            )
        else:
            array = numpy_helper.to_array(initializers[names_in_file[0]])
            if fault := difference(array, entry.tensor):
                lost.append(f"{names_in_file[0]} is {fault}")
            elif array.tobytes() != bits(entry.tensor):
                lost.append(f"{names_in_file[0]} has other values")
    missing = [entry for entry in absent if entry.trained]
    if missing:
        used_entries = _used_entries(torch, module, arguments, missing)
        lost += [f"{entry.names[0]} is missing" for entry in used_entries]
    if lost:
        more = f" and {len(lost) - NAMED} more" if len(lost) > NAMED else ""
        raise ModelError(
            f"{_class_name(module)}: the exporter of torch {torch.__version__} lost tensors that training needs: "
            f"{', '.join(lost[:NAMED])}{more}. Please report the module."
        )
    return [name for entry in absent for name in entry.names]


def _used_entries(torch: Any, module: Any, arguments: tuple[Any, ...], entries: Sequence[Stored]) -> list[Stored]:
    """Return the parameters that an output depends on; a copy runs, because running changes a module's state."""
    import copy

    twin = copy.deepcopy(module)
    by_name = {name: tensor for entry in stored_in(twin) for name, tensor in ((entry.names[0], entry.tensor),)}
    parameters = [by_name[entry.names[0]] for entry in entries]
    outputs = [y for y in torch.utils._pytree.tree_leaves(twin(*arguments)) if isinstance(y, torch.Tensor)]
    total = sum(y.sum() for y in outputs if y.requires_grad)
    if not isinstance(total, torch.Tensor):
        return []
    gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    return [entry for entry, gradient in zip(entries, gradients, strict=True) if gradient is not None]


def _check_open(model: onnx.ModelProto, module: Any, arguments: tuple[Any, ...], batch: int) -> None:
    """Raise ModelError if the batch of an input became fixed."""
    closed = [
        entry.name
        for entry, argument in zip(model.graph.input, arguments, strict=False)
        if getattr(argument, "ndim", 0)
        and argument.shape[0] == batch
        and not entry.type.tensor_type.shape.dim[0].dim_param
    ]
    if closed:
        raise ModelError(
            f"{_class_name(module)}: the exporter fixed the batch of {listed(closed)} to {batch}. Export with "
            "dynamic_batch=False."
        )


def _check_read(model: onnx.ModelProto, module: Any, batch: int | None) -> None:
    """Raise ModelError for a model that `load` rejects, before anything is written."""
    from poetopt.api.models import load

    try:
        load(model, batch=batch)
    except ModelError as error:
        first = without_remedy(str(error).removeprefix("<model>: "))
        raise ModelError(
            f"{_class_name(module)}: the file of torch's exporter can't be read ({first}). Write that part of the "
            "module with other functions of torch."
        ) from error


def _trained_names(stored: Sequence[Stored], model: onnx.ModelProto) -> list[str]:
    """Return the names, in the file, of parameters that want a gradient."""
    initializers = _initializers(model)
    return [entry.among(initializers)[0] for entry in stored if entry.trained and entry.among(initializers)]


def _initializers(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    return {tensor.name: tensor for tensor in model.graph.initializer}
