"""A module and its file, run beside each other: what torch's exporter changed without a word shows in the numbers."""

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
"""Names in the copy that is run: of what weighs an output's elements, and of the sum that gradients are of."""
SHARE = 16
"""Times what rounding moves torch's own values: the file sums in other orders, over as many elements."""
RESOLUTION = 2.0**-20
"""Of a tensor's largest magnitude: eight roundings of float32, where rounding moves nothing of torch's own."""
EVALUATED = " in evaluation mode"
SKIP = "check=False exports without this check"


@dataclass(frozen=True)
class _Ran:
    """Outputs, and gradients by parameter, of the outputs' weighted sum; the layers that drew, and what they called."""

    outputs: list[Array]
    gradients: Mapping[str, Array]
    draws: list[tuple[str, str]]


def check_beside(module: Any, arguments: tuple[Any, ...], model: onnx.ModelProto, batch: int | None) -> Set[str]:
    """Names of the parameters that get a gradient in torch, after the file ran beside a copy of the module.

    All outputs are compared on the example, and gradients of all trained parameters.

    A module in training mode is run in evaluation mode, too, beside the file as it is evaluated: Dropout passes on,
    BatchNormalization takes its running statistics. Dropout draws nothing in training mode either; how often each layer
    draws is compared instead. Where other draws are left, numbers can't be compared, and that is said. Allowed is what
    rounding explains: `SHARE` times what torch's own float32 differs from its float64, or float64 from itself where
    parameters and inputs move by half an ulp of float32.

    Raises ModelError that names what differs, by how much.
    """
    import torch

    told = paced(telling(progress=True), 2.0)
    name = type(module).__name__
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        told(f"{name}: the module runs on the example, to hold the file against it")
        plain = _ran(torch, module, arguments)
        drawn = _drawing(model)
        lost = Counter(layer for layer, _ in plain.draws) - Counter(layer for layer, _ in drawn)
        if len(plain.draws) > len(drawn):
            where = listed(sorted(layer or name for layer in lost))
            raise ModelError(
                f"{name}: the exporter lost {len(plain.draws) - len(drawn)} of {len(plain.draws)} random draws, "
                f"as of Dropout, in {where}; set that dropout to 0, write it out with torch's own functions "
                f"(attention as softmax, dropout and matmul), or export after eval(); {SKIP}"
            )
        if len(drawn) > len(plain.draws):
            raise ModelError(
                f"{name}: the file draws {len(drawn)} times, as for Dropout, and the module {len(plain.draws)} times: "
                f"{listed(sorted({layer or name for layer, _ in drawn}))}; {SKIP}"
            )
        if any(kind != "Dropout" for _, kind in drawn):
            telling(progress=True)(f"{name}: it draws numbers, so that the file's can't be compared with the module's")
            return plain.gradients.keys()
        told(f"{name}: the module runs in float64, to know what rounding does")
        precise = _precise(torch, module, arguments)
        told(f"{name}: the file runs on the example, with its gradients")
        still = _without_draws(model)
        _compare(name, still, batch, arguments, plain, precise)
        if any(part.training for part in module.modules()):
            told(f"{name}: both run in evaluation mode")
            try:
                evaluated = copy.deepcopy(module).eval()
                still_plain = _ran(torch, evaluated, arguments)
                precise = _precise(torch, evaluated, arguments)
            except Exception as error:  # a branch of that mode alone may do anything
                reason = str(error).removesuffix(f"; {SKIP}")
                raise ModelError(f"{name}: it fails on the example in evaluation mode ({reason}); {SKIP}") from error
            _compare(f"{name}{EVALUATED}", _in_inference(still), batch, arguments, still_plain, precise)
    return plain.gradients.keys()


def _compare(
    name: str,
    model: onnx.ModelProto,
    batch: int | None,
    arguments: tuple[Any, ...],
    plain: _Ran,
    others: Sequence[_Ran],
) -> None:
    """Raise ModelError where the file's numbers differ from torch's; gradients where there are rules for them."""
    import torch

    feeds = {
        entry.name: leaf.detach().cpu().numpy()
        for entry, leaf in zip(
            model.graph.input,
            [leaf for leaf in torch.utils._pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)],
            strict=False,
        )
    }
    found = _run(model, [entry.name for entry in model.graph.output], feeds)
    if len(found) != len(plain.outputs):
        raise ModelError(f"{name}: it has {len(plain.outputs)} outputs, and the file {len(found)}; {_advice(name)}")
    try:
        gradients = _gradients(model, batch, feeds, plain)
    except MissingVjpError:
        gradients = {}  # differentiating it says so
    allowed = [[other.outputs[index] for other in others] for index in range(len(plain.outputs))]
    for entry, y, wanted, near in zip(model.graph.output, found, plain.outputs, allowed, strict=True):
        _check_near(name, f"output {entry.name}", y, wanted, near, 0.0)
    largest = max((float(np.abs(array).max(initial=0)) for array in plain.gradients.values()), default=0.0)
    for parameter, gradient in gradients.items():
        near = [other.gradients[parameter] for other in others]
        _check_near(name, f"gradient of {parameter}", gradient, plain.gradients[parameter], near, largest * 2.0**-24)


def _check_near(name: str, what: str, found: Array, wanted: Array, near: Sequence[Array], least: float) -> None:
    """Raise ModelError where an array is further from torch's than rounding explains."""
    if found.shape != wanted.shape:
        raise ModelError(f"{name}: {what} is {found.shape} in the file and {wanted.shape} in torch; {SKIP}")
    if not wanted.size:
        return
    exact = wanted.astype(np.float64)
    with np.errstate(invalid="ignore"):
        moves = [np.nan_to_num(np.abs(other.astype(np.float64) - exact), nan=np.inf) for other in near]
        moved = max((float(move[np.isfinite(exact)].max(initial=0)) for move in moves), default=0.0)
        away = np.abs(found.astype(np.float64) - exact)
    away = np.where((found == wanted) | (np.isnan(found) & np.isnan(wanted)), 0, np.nan_to_num(away, nan=np.inf))
    finite = np.abs(exact[np.isfinite(exact)])
    size = float(finite.max(initial=0))
    if float(away.max()) > SHARE * moved + RESOLUTION * size + least:
        share = f" ({away.max() / size:.1%} of the largest)" if size else ""
        raise ModelError(
            f"{name}: the file's {what} differs from torch's by {away.max():.2g}{share}, and rounding explains "
            f"{SHARE * moved + RESOLUTION * size + least:.1g}: {_advice(name)}"
        )


def _advice(name: str) -> str:
    """Says why that may be, and what to do about it."""
    if name.endswith(EVALUATED):
        return (
            "a file is evaluated as it trains, but for Dropout and the statistics of BatchNormalization; export after "
            f"eval(), or evaluate in torch what was trained: {SKIP}"
        )
    return f"torch's exporter wrote something else; write that part of the module in other functions of torch; {SKIP}"


def _ran(torch: Any, module: Any, arguments: tuple[Any, ...]) -> _Ran:
    """A copy of the module, forwards and backwards, on copies of the arguments; no Dropout drops."""
    from torch.utils._python_dispatch import TorchDispatchMode

    try:
        twin, given = copy.deepcopy((module, arguments))
    except Exception as error:  # a copy runs code of the module's
        raise ModelError(f"{type(module).__name__}: it can't be copied to be run ({error}); {SKIP}") from error
    scopes = [""]
    found: list[tuple[str, str]] = []
    for name, layer in twin.named_modules():
        if name:
            layer.register_forward_pre_hook(lambda _layer, _given, name=name: scopes.append(name))
            layer.register_forward_hook(lambda *_: scopes.pop() and None)

    class Still(TorchDispatchMode):  # type: ignore[misc]
        """Counts draws; what a mask is drawn from is its expectation."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func._schema.name
            places = [argument.name for argument in func._schema.arguments]
            named = {**dict(zip(places, args, strict=False)), **(kwargs or {})}
            drops = "dropout_p" not in places or named.get("dropout_p", 0.0) != 0.0
            if torch.Tag.nondeterministic_seeded in func.tags and drops:
                found.append((scopes[-1], name))
                if name == "aten::bernoulli_":
                    return args[0].fill_(args[1] if len(args) > 1 else 0.5)
            return func(*args, **(kwargs or {}))

    try:
        with Still():
            outputs = [y for y in torch.utils._pytree.tree_leaves(twin(*given)) if isinstance(y, torch.Tensor)]
    except Exception as error:  # a forward may do anything
        raise ModelError(f"{type(module).__name__}: it fails on the example ({error}); {SKIP}") from error
    _check_buffers(torch, module, twin)
    total = sum(
        (y * torch.from_numpy(_weights(index, tuple(y.shape))).to(y.dtype)).sum()
        for index, y in enumerate(outputs)
        if y.requires_grad and y.dtype.is_floating_point
    )
    named = {entry.names[0]: entry.tensor for entry in stored_in(twin) if entry.trained}
    try:
        made = (
            torch.autograd.grad(total, list(named.values()), allow_unused=True)
            if isinstance(total, torch.Tensor) and named
            else [None] * len(named)
        )
    except RuntimeError as error:
        raise ModelError(
            f"{type(module).__name__}: torch has no gradient of it ({str(error).partition(';')[0]}); mend the module: "
            f"what it changes in place may be what a gradient needs; {SKIP}"
        ) from error
    gradients = {name: g.detach().numpy() for name, g in zip(named, made, strict=True) if g is not None}
    return _Ran([y.detach().numpy() for y in outputs], gradients, found)


def _check_buffers(torch: Any, module: Any, twin: Any) -> None:
    """Raise ModelError where `twin`, which has run, holds other buffers: a file updates running statistics alone."""
    before, layers = dict(module.named_buffers()), dict(module.named_modules())
    for name, buffer in twin.named_buffers():
        layer = layers[name.rpartition(".")[0]]
        if getattr(layer, "track_running_stats", False) or torch.equal(buffer.to(before[name].dtype), before[name]):
            continue
        raise ModelError(
            f"{type(module).__name__}: its forward changes the buffer {name}, which a file can't; "
            f"update it outside of forward; {SKIP}"
        )


def _precise(torch: Any, module: Any, arguments: tuple[Any, ...]) -> list[_Ran]:
    """The same in float64, and again moved by half an ulp of float32; none where the module is of float32 alone."""
    generator = torch.Generator().manual_seed(0)

    def double(tensor: Any, moved: bool) -> Any:
        if not isinstance(tensor, torch.Tensor) or not tensor.dtype.is_floating_point:
            return tensor
        signs = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
        return tensor.detach().double() * (1 + signs * 2.0**-24 if moved else 1)

    found = []
    for moved in (False, True):
        try:
            twin = copy.deepcopy(module).double()
            with torch.no_grad():
                for parameter in twin.parameters():
                    parameter.copy_(double(parameter, moved))
            given = torch.utils._pytree.tree_map(lambda leaf, moved=moved: double(leaf, moved), arguments)
            found.append(_ran(torch, twin, given))
        except (ModelError, RuntimeError, TypeError, ValueError, NotImplementedError):
            continue
    return found


def _weights(index: int, shape: tuple[int, ...]) -> Array:
    """Gives what weighs an output's elements in the sum that gradients are of: each something else."""
    return np.random.default_rng(index).uniform(0.5, 1.5, shape).astype(np.float32)


def _drawing(model: onnx.ModelProto) -> list[tuple[str, str]]:
    """The layer and kind of each node that draws."""
    from onnx import numpy_helper

    values = {tensor.name: tensor for tensor in model.graph.initializer}
    values |= {
        node.output[0]: attribute.t
        for node in model.graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    }
    found = []
    for node in model.graph.node:
        active = op_of(node.op_type).random and node.op_type != "Dropout"
        if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]:
            ratio, training = (values.get(name) for name in node.input[1:3])
            active = (training is None or bool(numpy_helper.to_array(training))) and (
                ratio is None or bool(numpy_helper.to_array(ratio) > 0)
            )
        if active:
            found.append((node.name.rpartition("/")[0], node.op_type))
    return found


def _without_draws(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose Dropouts pass everything on."""
    still = copy.deepcopy(model)
    for node in still.graph.node:
        if node.op_type == "Dropout":
            del node.input[1:]
    return still


def _in_inference(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy as it is evaluated: BatchNormalization takes its running statistics."""
    from poetopt.training.inference import normalize_by_statistics

    evaluated = copy.deepcopy(model)
    for node in [node for node in evaluated.graph.node if node.op_type == "BatchNormalization"]:
        normalize_by_statistics(evaluated.graph, node)
    return evaluated


def _run(model: onnx.ModelProto, outputs: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
    """Outputs on onnxruntime. Raises ModelError where it can't run the file."""
    from poetopt.backends.onnxruntime.sessions import first_line, onnxruntime, runtime_errors, session_options

    try:
        session = onnxruntime().InferenceSession(
            model.SerializeToString(), session_options(1), providers=["CPUExecutionProvider"]
        )
        taken = {entry.name for entry in session.get_inputs()}
        return [np.asarray(y) for y in session.run(outputs, {n: a for n, a in feeds.items() if n in taken})]
    except runtime_errors() as error:
        raise ModelError(f"the file that torch's exporter writes can't be run ({first_line(error)}); {SKIP}") from error


def _gradients(model: onnx.ModelProto, batch: int | None, feeds: Mapping[str, Array], plain: _Ran) -> dict[str, Array]:
    """Gradients by poetopt's own rules, of the weighted sum of outputs."""
    from onnx import helper, numpy_helper

    from poetopt.api.models import Model, load
    from poetopt.frontends.proto import model_proto

    summed = copy.deepcopy(model)
    terms = []
    for index, (entry, y) in enumerate(zip(model.graph.output, plain.outputs, strict=True)):
        if y.dtype != np.float32:
            continue
        weight, part, term = (f"{WEIGHT}{index}{tail}" for tail in ("", ".part", ".sum"))
        made = numpy_helper.from_array(_weights(index, y.shape), weight)
        summed.graph.node.append(helper.make_node("Constant", [], [weight], weight, value=made))
        summed.graph.node.append(helper.make_node("Mul", [entry.name, weight], [part], part))
        summed.graph.node.append(helper.make_node("ReduceSum", [part], [term], term, keepdims=0))
        terms.append(term)
    if not terms or not plain.gradients:
        return {}
    summed.graph.node.append(helper.make_node("Sum", terms, [TOTAL], TOTAL))
    del summed.graph.output[:]
    summed.graph.output.append(helper.make_tensor_value_info(TOTAL, 1, []))
    there = {tensor.name for tensor in summed.graph.initializer}
    loaded = load(summed, batch=batch, train=[name for name in plain.gradients if name in there])
    assert isinstance(loaded, Model)
    step = loaded.training_graph(loss="none")
    names = dict(step.gradients)
    proto = model_proto(step, list(names.values()))
    return dict(zip(names, _run(proto, list(names.values()), feeds), strict=True))
