"""Comparison of a module with its exported file: silent changes by torch's exporter show in the numbers."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.ops.op import op_of
from poetopt.torch.tensors import stored_in
from poetopt.util.errors import MissingVjpError, ModelError
from poetopt.util.notes import listed
from poetopt.util.progress import paced, telling

if TYPE_CHECKING:
    import onnx

    from poetopt.graph import Array

WEIGHT, TOTAL = "poetopt.weight", "poetopt.total"
"""Names in the file's copy: the weights of an output's elements, and the weighted sum that is differentiated."""
SHARE = 16
"""Allowed multiple of torch's own rounding: the file sums as many elements, in another order."""
RESOLUTION = 2.0**-20
"""Allowed share of a tensor's largest magnitude: eight roundings of float32, for values that torch doesn't round."""
EVALUATED = " in evaluation mode"
SKIP = "Use check=False to export without this check."


@dataclass(frozen=True)
class _Run:
    """Outputs of a run, gradients of their weighted sum by parameter, and draws as pairs of layer and function."""

    outputs: list[Array]
    gradients: Mapping[str, Array]
    draws: list[tuple[str, str]]


def check_beside(module: Any, arguments: tuple[Any, ...], model: onnx.ModelProto, batch: int | None) -> Set[str]:
    """Run the file and a copy of the module; return the parameters that get a gradient in torch.

    On the example, all outputs are compared, and the gradients of all trained parameters.

    A module in training mode is also compared in evaluation mode: there Dropout passes its input on, and
    BatchNormalization uses its running statistics. In training mode Dropout draws nothing either; instead, the number
    of draws of each layer is compared. If other draws are left, numbers can't be compared, and a note is printed. A
    difference is allowed if rounding explains it: `SHARE` times the difference between torch's float32 and float64, or
    between float64 and itself with parameters and inputs moved by half an ulp of float32.

    Raises
    ------
    ModelError
        If a value differs, with its name and by how much.
    """
    import torch

    report = paced(telling(progress=True), 2.0)
    name = type(module).__name__
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        report(f"{name}: running the module on the example, to compare the file with it")
        reference = _run_module(torch, module, arguments)
        file_draws = _random_nodes(model)
        lost_draws = Counter(layer for layer, _ in reference.draws) - Counter(layer for layer, _ in file_draws)
        if len(reference.draws) > len(file_draws):
            layers = listed(sorted(layer or name for layer in lost_draws))
            raise ModelError(
                f"{name}: the exporter lost {len(reference.draws) - len(file_draws)} of {len(reference.draws)} random "
                f"draws (such as Dropout) in {layers}. Set that dropout to 0, write it with torch's own functions "
                f"(attention as softmax, dropout and matmul), or export after eval(). {SKIP}"
            )
        if len(file_draws) > len(reference.draws):
            raise ModelError(
                f"{name}: the file draws random numbers (such as Dropout) {len(file_draws)} times, and the module "
                f"{len(reference.draws)} times: {listed(sorted({layer or name for layer, _ in file_draws}))}. {SKIP}"
            )
        if any(kind != "Dropout" for _, kind in file_draws):
            telling(progress=True)(f"{name}: it draws random numbers, so the file can't be compared with the module")
            return reference.gradients.keys()
        report(f"{name}: running the module in float64, to measure rounding")
        shifted_runs = _run_shifted(torch, module, arguments)
        report(f"{name}: running the file on the example, with gradients")
        model_without_draws = _without_draws(model)
        _compare(name, model_without_draws, batch, arguments, reference, shifted_runs)
        if any(part.training for part in module.modules()):
            report(f"{name}: running both in evaluation mode")
            try:
                evaluated = copy.deepcopy(module).eval()
                evaluated_run = _run_module(torch, evaluated, arguments)
                shifted_runs = _run_shifted(torch, evaluated, arguments)
            except Exception as error:  # code for that mode may raise anything
                reason = str(error).removesuffix(f". {SKIP}")
                raise ModelError(f"{name}: it fails on the example in evaluation mode ({reason}). {SKIP}") from error
            _compare(
                f"{name}{EVALUATED}", _in_inference(model_without_draws), batch, arguments, evaluated_run, shifted_runs
            )
    return reference.gradients.keys()


def _compare(
    name: str,
    model: onnx.ModelProto,
    batch: int | None,
    arguments: tuple[Any, ...],
    reference: _Run,
    shifted_runs: Sequence[_Run],
) -> None:
    """Raise ModelError if the file's numbers differ from torch's; compare gradients if all have rules."""
    import torch

    feeds = {
        entry.name: leaf.detach().cpu().numpy()
        for entry, leaf in zip(
            model.graph.input,
            [leaf for leaf in torch.utils._pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)],
            strict=False,
        )
    }
    outputs = _run_file(model, [entry.name for entry in model.graph.output], feeds)
    if len(outputs) != len(reference.outputs):
        raise ModelError(
            f"{name}: it has {len(reference.outputs)} outputs, and the file {len(outputs)}. {_advice(name)}"
        )
    try:
        gradients = _gradients(model, batch, feeds, reference)
    except MissingVjpError:
        gradients = {}  # `differentiate` raises it again
    allowed = [[other.outputs[index] for other in shifted_runs] for index in range(len(reference.outputs))]
    for entry, y, expected, nearby in zip(model.graph.output, outputs, reference.outputs, allowed, strict=True):
        _check_near(name, f"output {entry.name}", y, expected, nearby, 0.0)
    largest = max((float(np.abs(array).max(initial=0)) for array in reference.gradients.values()), default=0.0)
    for parameter, gradient in gradients.items():
        nearby = [other.gradients[parameter] for other in shifted_runs]
        _check_near(
            name, f"gradient of {parameter}", gradient, reference.gradients[parameter], nearby, largest * 2.0**-24
        )


def _check_near(name: str, label: str, array: Array, expected: Array, nearby: Sequence[Array], least: float) -> None:
    """Raise ModelError if an array differs from torch's by more than rounding explains."""
    if array.shape != expected.shape:
        raise ModelError(f"{name}: {label} has shape {array.shape} in the file and {expected.shape} in torch. {SKIP}")
    if not expected.size:
        return
    expected_f64 = expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        shifts = [np.nan_to_num(np.abs(other.astype(np.float64) - expected_f64), nan=np.inf) for other in nearby]
        max_shift = max((float(move[np.isfinite(expected_f64)].max(initial=0)) for move in shifts), default=0.0)
        difference = np.abs(array.astype(np.float64) - expected_f64)
    difference = np.where(
        (array == expected) | (np.isnan(array) & np.isnan(expected)), 0, np.nan_to_num(difference, nan=np.inf)
    )
    finite = np.abs(expected_f64[np.isfinite(expected_f64)])
    size = float(finite.max(initial=0))
    if float(difference.max()) > SHARE * max_shift + RESOLUTION * size + least:
        share = f" ({difference.max() / size:.1%} of the largest)" if size else ""
        raise ModelError(
            f"{name}: the file's {label} differs from torch's by {difference.max():.2g}{share}, and rounding explains "
            f"only {SHARE * max_shift + RESOLUTION * size + least:.1g}. {_advice(name)}"
        )


def _advice(name: str) -> str:
    """Return the probable cause of a difference, and a remedy."""
    if name.endswith(EVALUATED):
        return (
            "In evaluation mode a file changes only Dropout and the statistics of BatchNormalization. Export after "
            f"eval(), or evaluate the trained module in torch. {SKIP}"
        )
    return f"torch's exporter changed it. Write that part of the module with other functions of torch. {SKIP}"


def _run_module(torch: Any, module: Any, arguments: tuple[Any, ...]) -> _Run:
    """Run a copy of the module forward and backward on copies of the arguments; Dropout drops nothing."""
    from torch.utils._python_dispatch import TorchDispatchMode

    try:
        twin, arguments_copy = copy.deepcopy((module, arguments))
    except Exception as error:  # copying runs the module's own code
        raise ModelError(f"{type(module).__name__}: it can't be copied for a run ({error}). {SKIP}") from error
    scopes = [""]
    draws: list[tuple[str, str]] = []
    for name, layer in twin.named_modules():
        if name:
            layer.register_forward_pre_hook(lambda _layer, _given, name=name: scopes.append(name))
            layer.register_forward_hook(lambda *_: scopes.pop() and None)

    class Still(TorchDispatchMode):  # type: ignore[misc]
        """Mode that counts draws, and replaces each drawn mask by its expectation."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func._schema.name
            places = [argument.name for argument in func._schema.arguments]
            named = {**dict(zip(places, args, strict=False)), **(kwargs or {})}
            drops = "dropout_p" not in places or named.get("dropout_p", 0.0) != 0.0
            if torch.Tag.nondeterministic_seeded in func.tags and drops:
                draws.append((scopes[-1], name))
                if name == "aten::bernoulli_":
                    return args[0].fill_(args[1] if len(args) > 1 else 0.5)
            return func(*args, **(kwargs or {}))

    try:
        with Still():
            outputs = [y for y in torch.utils._pytree.tree_leaves(twin(*arguments_copy)) if isinstance(y, torch.Tensor)]
    except Exception as error:  # a forward may raise anything
        raise ModelError(f"{type(module).__name__}: it fails on the example ({error}). {SKIP}") from error
    _check_buffers(torch, module, twin)
    total = sum(
        (y * torch.from_numpy(_weights(index, tuple(y.shape))).to(y.dtype)).sum()
        for index, y in enumerate(outputs)
        if y.requires_grad and y.dtype.is_floating_point
    )
    named = {entry.names[0]: entry.tensor for entry in stored_in(twin) if entry.trained}
    try:
        gradient_list = (
            torch.autograd.grad(total, list(named.values()), allow_unused=True)
            if isinstance(total, torch.Tensor) and named
            else [None] * len(named)
        )
    except RuntimeError as error:
        raise ModelError(
            f"{type(module).__name__}: torch can't differentiate it ({str(error).partition(';')[0]}). Correct the "
            f"module: it may change a tensor in place that a gradient needs. {SKIP}"
        ) from error
    gradients = {name: g.detach().numpy() for name, g in zip(named, gradient_list, strict=True) if g is not None}
    return _Run([y.detach().numpy() for y in outputs], gradients, draws)


def _check_buffers(torch: Any, module: Any, twin: Any) -> None:
    """Raise ModelError if the run changed buffers of `twin`: a file updates running statistics only."""
    before, layers = dict(module.named_buffers()), dict(module.named_modules())
    for name, buffer in twin.named_buffers():
        layer = layers[name.rpartition(".")[0]]
        if getattr(layer, "track_running_stats", False) or torch.equal(buffer.to(before[name].dtype), before[name]):
            continue
        raise ModelError(
            f"{type(module).__name__}: its forward changes the buffer {name}, which a file can't do. "
            f"Update it outside of forward. {SKIP}"
        )


def _run_shifted(torch: Any, module: Any, arguments: tuple[Any, ...]) -> list[_Run]:
    """Run the module in float64, and again moved by half an ulp of float32; empty if it needs float32."""
    generator = torch.Generator().manual_seed(0)

    def double(tensor: Any, is_shifted: bool) -> Any:
        if not isinstance(tensor, torch.Tensor) or not tensor.dtype.is_floating_point:
            return tensor
        signs = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
        return tensor.detach().double() * (1 + signs * 2.0**-24 if is_shifted else 1)

    runs = []
    for is_shifted in (False, True):
        try:
            twin = copy.deepcopy(module).double()
            with torch.no_grad():
                for parameter in twin.parameters():
                    parameter.copy_(double(parameter, is_shifted))
            arguments_f64 = torch.utils._pytree.tree_map(
                lambda leaf, is_shifted=is_shifted: double(leaf, is_shifted), arguments
            )
            runs.append(_run_module(torch, twin, arguments_f64))
        except (ModelError, RuntimeError, TypeError, ValueError, NotImplementedError):
            continue
    return runs


def _weights(index: int, shape: tuple[int, ...]) -> Array:
    """Return the weights of an output's elements in the differentiated sum; each is different."""
    return np.random.default_rng(index).uniform(0.5, 1.5, shape).astype(np.float32)


def _random_nodes(model: onnx.ModelProto) -> list[tuple[str, str]]:
    """Return layer and kind of each node that draws random numbers."""
    from onnx import numpy_helper

    values = {tensor.name: tensor for tensor in model.graph.initializer}
    values |= {
        node.output[0]: attribute.t
        for node in model.graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    }
    draws = []
    for node in model.graph.node:
        is_drawing = op_of(node.op_type).random and node.op_type != "Dropout"
        if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]:
            ratio, training = (values.get(name) for name in node.input[1:3])
            is_drawing = (training is None or bool(numpy_helper.to_array(training))) and (
                ratio is None or bool(numpy_helper.to_array(ratio) > 0)
            )
        if is_drawing:
            draws.append((node.name.rpartition("/")[0], node.op_type))
    return draws


def _without_draws(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy whose Dropouts pass their input on."""
    copied = copy.deepcopy(model)
    for node in copied.graph.node:
        if node.op_type == "Dropout":
            del node.input[1:]
    return copied


def _in_inference(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy in evaluation mode: BatchNormalization uses its running statistics."""
    from poetopt.training.inference import normalize_by_statistics

    evaluated = copy.deepcopy(model)
    for node in [node for node in evaluated.graph.node if node.op_type == "BatchNormalization"]:
        normalize_by_statistics(evaluated.graph, node)
    return evaluated


def _run_file(model: onnx.ModelProto, outputs: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
    """Run the model on onnxruntime; return its outputs. Raises ModelError if onnxruntime can't run it."""
    from poetopt.backends.onnxruntime.sessions import first_line, onnxruntime, runtime_errors, session_options

    try:
        session = onnxruntime().InferenceSession(
            model.SerializeToString(), session_options(1), providers=["CPUExecutionProvider"]
        )
        input_names = {entry.name for entry in session.get_inputs()}
        return [np.asarray(y) for y in session.run(outputs, {n: a for n, a in feeds.items() if n in input_names})]
    except runtime_errors() as error:
        raise ModelError(f"onnxruntime can't run the file of torch's exporter ({first_line(error)}). {SKIP}") from error


def _gradients(
    model: onnx.ModelProto, batch: int | None, feeds: Mapping[str, Array], reference: _Run
) -> dict[str, Array]:
    """Return the gradients of the outputs' weighted sum by poetopt's own rules."""
    from onnx import helper, numpy_helper

    from poetopt.api.models import Model, load
    from poetopt.frontends.proto import model_proto

    summed = copy.deepcopy(model)
    terms = []
    for index, (entry, y) in enumerate(zip(model.graph.output, reference.outputs, strict=True)):
        if y.dtype != np.float32:
            continue
        weight, part, term = (f"{WEIGHT}{index}{tail}" for tail in ("", ".part", ".sum"))
        weight_tensor = numpy_helper.from_array(_weights(index, y.shape), weight)
        summed.graph.node.append(helper.make_node("Constant", [], [weight], weight, value=weight_tensor))
        summed.graph.node.append(helper.make_node("Mul", [entry.name, weight], [part], part))
        summed.graph.node.append(helper.make_node("ReduceSum", [part], [term], term, keepdims=0))
        terms.append(term)
    if not terms or not reference.gradients:
        return {}
    summed.graph.node.append(helper.make_node("Sum", terms, [TOTAL], TOTAL))
    del summed.graph.output[:]
    summed.graph.output.append(helper.make_tensor_value_info(TOTAL, 1, []))
    initializers = {tensor.name for tensor in summed.graph.initializer}
    loaded = load(summed, batch=batch, train=[name for name in reference.gradients if name in initializers])
    assert isinstance(loaded, Model)
    step = loaded.training_graph(loss="none")
    names = dict(step.gradients)
    proto = model_proto(step, list(names.values()))
    return dict(zip(names, _run_file(proto, list(names.values()), feeds), strict=True))
