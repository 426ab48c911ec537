"""A module becomes an ONNX file that trains as the module does, checked against it.

torch's newer exporter with `optimize=False` keeps every parameter and buffer under its name, and Dropout. It writes
each BatchNormalization in inference form; those of layers in training mode are put into training form here. The older
exporter keeps both, but is deprecated, and runs the module: running statistics would move.
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

if TYPE_CHECKING:
    import onnx

    from poetopt.api.models import Model

UNUSED = "poetopt.unused"
"""Metadata of an exported file: names of what the module has and the output doesn't depend on, one a line."""
SCOPES = "pkg.torch.onnx.name_scopes"
"""Metadata of a node, by the exporter: the modules that it is in, from the outermost on, as a list in Python's form."""
LARGEST = 2_000_000_000
"""Bytes of weights that fit one file of ONNX."""
NAMED = 5
"""Tensors that a message names."""


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
    """Write a torch module as ONNX, ready to be trained, and read it: the `Model` of `load`.

    module
        As it is to be trained: after `module.train()`. Layers in evaluation mode stay that; parameters without
        `requires_grad`, and those that no gradient reaches on the example (`detach`, `no_grad`), are frozen.
    example
        The module's positional arguments, or the only one: a batch as it will be trained with.
    path
        The `.onnx` file.
    input_names, output_names
        What they are called in the file.
    dynamic_batch
        Whether the file leaves the first axis open, of all arguments that have the batch's size there. It is read with
        the example's where no other is given.
    check
        Whether the file is run beside a copy of the module on the example, with gradients (`poetopt.torch.beside`),
        before it is written. It takes a few training steps' time, and several times the module's memory.

    Nothing of the module changes. The file has each parameter and saved buffer once, under its name in the module, with
    the same bits; it is refused where not. What the output doesn't depend on is left out.

    Raises ModelError where torch can't trace the module, something of it got lost, or the file computes something else,
    OptionError for an example without
    a batch or too many names, BackendUnavailableError without torch and onnxscript, OutputError where the file can't be
    written.
    """
    from poetopt.api.models import Model, load

    torch = needed("onnxscript")
    check_module(module)
    arguments = tuple(example) if isinstance(example, (tuple, list)) else (example,)
    stored = stored_in(module)
    if (size := sum(entry.tensor.nbytes for entry in stored)) > LARGEST:
        raise ModelError(f"{_named(module)}: {size:,} B of weights, and one ONNX file holds {LARGEST:,} B")
    _check_momentum(module)
    batch = _batch(torch, arguments) if dynamic_batch else None
    model = _traced(torch, module, arguments, batch, input_names, output_names)
    _without_added_biases(model)
    _name(model, stored)
    _name_nodes(model)
    _to_training(model, module)
    unused = _check(torch, module, arguments, stored, model)
    if batch is not None:
        _check_open(model, module, arguments, batch)
        model.metadata_props.add(key=BATCH, value=str(batch))
    if unused:
        model.metadata_props.add(key=UNUSED, value="\n".join(unused))
    _check_read(model, module, batch)
    wanted = _trained(stored, model)
    if check:
        reached = check_beside(module, arguments, model, batch)
        apart = [name for name in wanted if name not in reached]
        wanted = [name for name in wanted if name in reached]
        if apart:
            telling(progress=True)(f"{_named(module)}: {listed(apart)} have no gradient in torch, and stay as they are")
    if wanted:
        model.metadata_props.add(key=PARAMETERS, value="\n".join(wanted))
    write_atomically(path, model.SerializeToString(deterministic=True))
    loaded = load(path, batch=batch)
    assert isinstance(loaded, Model)
    if set(loaded.graph.trained) == set(wanted):
        return loaded
    loaded = load(path, batch=batch, train=wanted)
    assert isinstance(loaded, Model)
    return loaded


def _named(module: Any) -> str:
    return type(module).__name__


def _batch(torch: Any, arguments: tuple[Any, ...]) -> int:
    """The size of the first axis. Raises OptionError for one that torch takes for a constant."""
    sizes = [argument.shape[0] for argument in arguments if isinstance(argument, torch.Tensor) and argument.ndim]
    if not sizes or sizes[0] < 2:
        raise OptionError(
            "the example has no batch of two or more, which torch needs to leave its size open; give one, or "
            "dynamic_batch=False"
        )
    return int(sizes[0])


def _traced(
    torch: Any,
    module: Any,
    arguments: tuple[Any, ...],
    batch: int | None,
    input_names: Sequence[str] | None,
    output_names: Sequence[str] | None,
) -> onnx.ModelProto:
    """Gives what torch's exporter makes of the module. Raises ModelError."""
    shapes: tuple[Any, ...] | None = None
    if batch is not None:
        axis = torch.export.Dim("batch")
        shapes = tuple(
            {0: axis} if isinstance(argument, torch.Tensor) and argument.ndim and argument.shape[0] == batch else None
            for argument in arguments
        )
        kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
        if inspect.Parameter.VAR_POSITIONAL in kinds:  # they are one argument to torch
            plain = kinds.index(inspect.Parameter.VAR_POSITIONAL)
            shapes = (*shapes[:plain], shapes[plain:])
    try:
        with _quiet(), _as_written():
            program = torch.onnx.export(
                module, arguments, dynamo=True, optimize=False, verbose=False, input_names=input_names,
                output_names=output_names, dynamic_shapes=shapes,
            )  # fmt: skip
            model: onnx.ModelProto = program.model_proto
    except Exception as error:  # torch raises whatever its tracing meets
        reason: BaseException = error
        while reason.__cause__ is not None:
            reason = reason.__cause__
        first = next((line for line in str(reason).splitlines() if line.strip()), type(reason).__name__)
        open_batch = "; dynamic_batch=False where its batch has one size alone" if batch is not None else ""
        raise ModelError(
            f"{_named(module)}: torch can't export it ({first.strip().rstrip('.')}); give an example that it takes, "
            f"and a forward that doesn't depend on values{open_batch}"
        ) from error
    for what, names, there in (("input", input_names, model.graph.input), ("output", output_names, model.graph.output)):
        if names is not None and len(names) != len(there):
            raise OptionError(f"{what}_names: {len(names)} of them, and {_named(module)} has {len(there)} {what}s")
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch logs, warns of and prints: missing packages, training mode, and errors that it raises too."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _as_written() -> Any:
    """A mode in which functions that the exporter writes otherwise are written out.

    It drops label smoothing and the dropout of attention, gives an operator probabilities that takes classes alone, and
    draws Dropout in place and of whole channels by hand, where ONNX has a Dropout for their mask. It takes the
    logarithm of a sigmoid that may be 0, and counts what is scattered together with what was there, whatever
    `include_self` says.
    """
    import torch
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode

    channels = {functional.dropout1d: 2, functional.dropout2d: 0, functional.dropout3d: 4}

    def dropped(alone: int, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training or not p:
            return x
        kept = x.shape[: 1 if x.ndim == alone else 2]  # without a batch there are as many axes as `alone`
        mask = functional.dropout(x.new_ones(*kept, *[1] * (x.ndim - len(kept))), p)
        return x.mul_(mask) if inplace else x * mask

    def dropped_in_place(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return x.copy_(functional.dropout(x, p)) if training and p else x

    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        if enable_gqa:
            key, value = (one.repeat_interleave(query.shape[-3] // one.shape[-3], -3) for one in (key, value))
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
        weighed = softplus if pos_weight is None else (1 + (pos_weight - 1) * labels) * softplus
        each = (1 - labels) * x + weighed
        each = each if weight is None else weight * each
        return each if reduction == "none" else getattr(each, reduction)()

    attend = functional.scaled_dot_product_attention

    def whole_attention(func: Any, *args: Any, **kwargs: Any) -> Any:
        """A module's attention calls that of tensors where this mode doesn't see it."""
        functional.scaled_dot_product_attention = lambda *a, **k: Written().__torch_function__(attend, (), a, k)
        try:
            return func(*args, **kwargs)
        finally:
            functional.scaled_dot_product_attention = attend

    class Written(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if func in channels:
                return dropped(channels[func], *args, **kwargs)
            if func is functional.dropout and (kwargs.get("inplace") or args[3:4] == (True,)):
                return dropped_in_place(*args, **kwargs)
            if func is functional.multi_head_attention_forward:
                return whole_attention(func, *args, **kwargs)
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
                weighed = counted if weight is None else weight[labels * (labels != ignored)] * counted
                even = even.sum() / weighed.sum()
            elif reduction == "sum":
                even = even.sum()
            return (1 - smoothing) * plain + smoothing * even

    return Written()


def _without_added_biases(model: onnx.ModelProto) -> None:
    """Take away the zeros that the exporter gives a convolution without a bias, and the nodes that made them."""
    makers = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        made = (
            makers.get(node.input[2]) if op_of(node.op_type).filter_axis is not None and len(node.input) > 2 else None
        )
        if made is not None and made.op_type == "Expand":
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
    """Raise ModelError for running statistics that are a cumulative average, which ONNX hasn't."""
    for name, layer in module.named_modules():
        if layer.training and getattr(layer, "track_running_stats", False) and layer.momentum is None:
            raise ModelError(
                f"{_named(module)}: {name or 'it'} averages its statistics over all batches (momentum=None), which "
                "ONNX can't; give it a momentum"
            )


def _to_training(model: onnx.ModelProto, module: Any) -> None:
    """Put each BatchNormalization of a layer in training mode into training form, with the layer's own momentum."""
    from onnx import helper

    layers = dict(module.named_modules(remove_duplicate=False))
    for node in model.graph.node:
        if node.op_type != "BatchNormalization":
            continue
        layer = layers.get(node.input[3].rpartition(".")[0])
        if layer is None or not layer.training or not getattr(layer, "track_running_stats", False):
            continue
        kept = [attribute for attribute in node.attribute if attribute.name not in ("training_mode", "momentum")]
        del node.attribute[:]
        node.attribute.extend(
            [*kept, helper.make_attribute("training_mode", 1), helper.make_attribute("momentum", 1 - layer.momentum)]
        )
        del node.output[1:]
        node.output.extend(f"{node.name}.{name}" for name in ("running_mean", "running_var"))


def _name(model: onnx.ModelProto, stored: Sequence[Stored]) -> None:
    """Call a shared tensor by the first of its names, as `named_parameters` does, and not by the last."""
    there = _initializers(model)
    for entry in stored:
        found = entry.among(there)
        if len(found) == 1 and found[0] != entry.names[0]:
            there[found[0]].name = entry.names[0]
            for node in model.graph.node:
                for position, name in enumerate(node.input):
                    if name == found[0]:
                        node.input[position] = entry.names[0]


def _name_nodes(model: onnx.ModelProto) -> None:
    """Call each node by its module and its op, as in `layer1.0.conv1/Conv`: reports name operators so."""
    counts: dict[str, int] = {}
    for node in model.graph.node:
        scopes = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "")
        modules = re.findall(r"'([^']*)'", scopes)[:-1]  # the last one is torch's own function
        wanted = f"{modules[-1]}/{node.op_type}" if modules and modules[-1] else node.op_type
        counts[wanted] = counts.get(wanted, 0) + 1
        node.name = wanted if counts[wanted] == 1 else f"{wanted}_{counts[wanted]}"


def _check(
    torch: Any, module: Any, arguments: tuple[Any, ...], stored: Sequence[Stored], model: onnx.ModelProto
) -> list[str]:
    """Hold the file against the module; the names of what it lacks as the output doesn't depend on it.

    Raises ModelError that names what got lost.
    """
    from onnx import numpy_helper

    there = _initializers(model)
    lost: list[str] = []
    absent: list[Stored] = []
    for entry in stored:
        found = entry.among(there)
        if not found:
            absent.append(entry)
        elif len(found) > 1:
            lost.append(f"{' and '.join(found)} are one tensor in the module and {len(found)} in the file")
        else:
            array = numpy_helper.to_array(there[found[0]])
            if different := difference(array, entry.tensor):
                lost.append(f"{found[0]} is {different}")
            elif array.tobytes() != bits(entry.tensor):
                lost.append(f"{found[0]} has other values")
    needed_ones = [entry for entry in absent if entry.trained]
    if needed_ones:
        used = _used(torch, module, arguments, needed_ones)
        lost += [f"{entry.names[0]} is missing" for entry in used]
    if lost:
        more = f" and {len(lost) - NAMED} more" if len(lost) > NAMED else ""
        raise ModelError(
            f"{_named(module)}: the exporter lost what training needs: {', '.join(lost[:NAMED])}{more}; torch "
            f"{torch.__version__} was asked for all of it, so please report the module"
        )
    return [name for entry in absent for name in entry.names]


def _used(torch: Any, module: Any, arguments: tuple[Any, ...], entries: Sequence[Stored]) -> list[Stored]:
    """Those of the parameters that the output depends on: of a copy, as a module's state moves as it runs."""
    import copy

    twin = copy.deepcopy(module)
    named = {name: tensor for entry in stored_in(twin) for name, tensor in ((entry.names[0], entry.tensor),)}
    wanted = [named[entry.names[0]] for entry in entries]
    outputs = [y for y in torch.utils._pytree.tree_leaves(twin(*arguments)) if isinstance(y, torch.Tensor)]
    total = sum(y.sum() for y in outputs if y.requires_grad)
    if not isinstance(total, torch.Tensor):
        return []
    gradients = torch.autograd.grad(total, wanted, allow_unused=True)
    return [entry for entry, gradient in zip(entries, gradients, strict=True) if gradient is not None]


def _check_open(model: onnx.ModelProto, module: Any, arguments: tuple[Any, ...], batch: int) -> None:
    """Raise ModelError where an input's batch got fixed."""
    closed = [
        entry.name
        for entry, argument in zip(model.graph.input, arguments, strict=False)
        if getattr(argument, "ndim", 0)
        and argument.shape[0] == batch
        and not entry.type.tensor_type.shape.dim[0].dim_param
    ]
    if closed:
        raise ModelError(
            f"{_named(module)}: the exporter fixed the batch of {listed(closed)} to {batch}; export with "
            "dynamic_batch=False"
        )


def _check_read(model: onnx.ModelProto, module: Any, batch: int | None) -> None:
    """Raise ModelError for what `load` refuses, before anything is written."""
    from poetopt.api.models import load

    try:
        load(model, batch=batch)
    except ModelError as error:
        first = str(error).removeprefix("<model>: ").partition("; ")[0]
        raise ModelError(
            f"{_named(module)}: torch's exporter makes a network of it that can't be read ({first}); write that part "
            "of the module in other functions of torch"
        ) from error


def _trained(stored: Sequence[Stored], model: onnx.ModelProto) -> list[str]:
    """The names, in the file, of what wants a gradient."""
    there = _initializers(model)
    return [entry.among(there)[0] for entry in stored if entry.trained and entry.among(there)]


def _initializers(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    return {tensor.name: tensor for tensor in model.graph.initializer}
