"""One onnxruntime session for each distinct node: op, attributes and types. Bindings bring the shapes.

Graph optimisation is off (it would fold training-mode BatchNormalization and remove Dropout). The session's own memory
arena is off, too: it would keep memory that kernels allocate, and hide it from measurement. Small integer constants
(axes, shapes, pads) are part of a session, all else is bound. Each session has one thread by default: with a thread
pool for each session, threads wait for each other.

The onnx library writes the models of sessions. Where they are given (`Sessions.models`), it isn't imported: it takes as
much memory as the sessions of a network.
"""

from __future__ import annotations

import ctypes
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.backends.onnxruntime import measure
from poetopt.backends.step.memory import numpy_dtype
from poetopt.backends.step.program import Act
from poetopt.graph import PACKED, VIEW_OPS, Graph, Node, Role, Tensor, TrainingGraph
from poetopt.ops.op import op_of
from poetopt.ops.runtimes.onnxruntime import FEW_KERNELS, runtime
from poetopt.util.errors import BackendUnavailableError, ExecutionError, UnsupportedOpError

if TYPE_CHECKING:
    from poetopt.graph import Array


_SEED = re.compile(rb"(\x0a\x04seed\x15).{4}", re.DOTALL)
"""Attribute `seed` in a model's bytes: its name (field 1), followed by a float of 4 bytes (field 2)."""


@cache
def onnxruntime() -> ModuleType:
    """Return the onnxruntime library. Raise `BackendUnavailableError` where it is not installed."""
    try:
        import onnxruntime as library
    except ImportError as error:
        raise BackendUnavailableError(
            f"onnxruntime can't be imported ({error}); install it with: pip install onnxruntime"
        ) from error
    module: ModuleType = library
    return module


def session_options(threads: int) -> Any:
    """Return the options that all sessions share."""
    options = onnxruntime().SessionOptions()
    options.graph_optimization_level = onnxruntime().GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # the graph's own order; by default a session searches back from its outputs, and runs weight gradients last
    options.execution_order = onnxruntime().ExecutionOrder.PRIORITY_BASED
    options.log_severity_level = 4
    if threads > 1:
        # spinning pools of hundreds of sessions would fight for the cores
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def is_random(node: Node) -> bool:
    """Return whether two runs of one session of `node` may differ."""
    return op_of(node.op_type).random and not node.domain


def first_line(error: BaseException) -> str:
    """Return the message of an error of onnxruntime, on one line."""
    return " ".join(str(error).split())[:400] or type(error).__name__


@cache
def runtime_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that onnxruntime raises; some derive from Exception alone."""
    state = vars(onnxruntime().capi.onnxruntime_pybind11_state)
    exceptions = [
        state[name] for name in sorted(state) if isinstance(state[name], type) and issubclass(state[name], Exception)
    ]
    return (RuntimeError, ValueError, *exceptions)


_Names = tuple[tuple[str, str], ...]
"""(name in the session, name of the tensor)."""


@dataclass(frozen=True, slots=True)
class _NodeSession:
    """Session that runs one node.

    Attributes
    ----------
    inputs, outputs
        (name in the session, name of the tensor), in order, without absent and embedded ones.
    """

    session: Any
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]


class Sessions:
    """Sessions of a graph's nodes, created on first use and shared by equal nodes.

    They are the kernels of a step (`poetopt.backends.step.program.Kernels`).

    Parameters
    ----------
    models
        Model of each node's session, by `key_of`, where `written` returned it before.
    """

    runtime = runtime

    def __init__(self, graph: Graph, threads: int = 1, models: Mapping[tuple[str, ...], bytes] | None = None) -> None:
        self.graph = graph
        self.threads = threads
        self.models = models or {}
        self._created: dict[bytes, Any] = {}

    def __len__(self) -> int:
        return len(self._created)

    def of(self, graph: Graph) -> Sessions:
        """Return the sessions of another graph; both share those of equal nodes.

        A node that writes the same tensors as one of this graph must be that node.
        """
        sessions = Sessions(graph, self.threads, self.models)
        sessions._created = self._created
        return sessions

    def get(self, node: Node) -> _NodeSession:
        """Return the session of `node`; of a random node a new one, which draws its first numbers (see `is_random`).

        Raise `ExecutionError` where onnxruntime has no kernel for it.
        """
        bound, outputs, embedded = self._operands(node)
        model = self.models.get(key_of(node))
        if model is not None and is_random(node):
            model = _with_seed(model, _seed_of(node))
        if model is None:
            model = self._model(node, bound, outputs, embedded)
        if is_random(node):
            return _NodeSession(self._create(node, model), bound, outputs)
        if model not in self._created:
            self._created[model] = self._create(node, model)
        return _NodeSession(self._created[model], bound, outputs)

    def written(self, further: Iterable[Node] = ()) -> Mapping[tuple[str, ...], bytes]:
        """Return the models of all nodes, by `key_of`; equal models share their bytes.

        Parameters
        ----------
        further
            Nodes that aren't the graph's.
        """
        unique: dict[bytes, bytes] = {}
        models = {}
        nodes = (node for operator in self.graph.operators for node in (() if operator.view else operator.nodes))
        for node in chain(nodes, further):
            model = self._model(node, *self._operands(node))
            models[key_of(node)] = unique.setdefault(model, model)
        return models

    def _operands(self, node: Node) -> tuple[_Names, _Names, Mapping[str, str]]:
        """Return the bound inputs, the outputs, and the embedded inputs, by their names in the session."""
        inputs = tuple((f"i{k}", name) for k, name in enumerate(node.inputs) if name)
        outputs = tuple((f"o{k}", name) for k, name in enumerate(node.outputs) if name)
        # integers of these ops are bound, too: their sessions would differ in nothing else, and each takes 30 kB
        embedded = {
            key: name
            for key, name in inputs
            if self.embeds(name) and node.op_type not in ("ConstantOfShape", "Reshape")
        }
        return tuple((key, name) for key, name in inputs if key not in embedded), outputs, embedded

    def bound(self, node: Node, addresses: Mapping[str, int], shapes: Mapping[str, Tensor] | None = None) -> Act:
        """Return an action that runs `node` with everything bound to its address; a fill needs no session.

        Raise as `get` does.

        Parameters
        ----------
        shapes
            Tensors as the node sees them, where they differ from the graph's.
        """
        fill_value = node.attributes.get("value")
        if node.op_type == "ConstantOfShape" and isinstance(fill_value, np.ndarray):
            return _fill_action(self.graph.tensors[node.outputs[0]], addresses[node.outputs[0]], fill_value)
        node_session, tensors = self.get(node), self.graph.tensors if shapes is None else shapes
        binding: Any = node_session.session.io_binding()
        for key, name in node_session.inputs:
            binding.bind_input(key, "cpu", 0, *_type(tensors[name]), addresses[name])
        for key, name in node_session.outputs:
            binding.bind_output(key, "cpu", 0, *_type(tensors[name]), addresses[name])
        return _run_action(node_session.session, binding)

    draws = staticmethod(is_random)
    give_back = staticmethod(measure.give_back)
    errors = staticmethod(runtime_errors)
    reason = staticmethod(first_line)

    def embeds(self, name: str) -> bool:
        """Return whether the tensor `name` is part of each session that reads it."""
        tensor = self.graph.tensors[name]
        constant = tensor.role is Role.CONSTANT and tensor.name in self.graph.values
        # integer constants of up to 64 elements become part of their session
        return constant and tensor.dtype in ("int64", "int32") and tensor.size <= 64

    def _model(
        self,
        node: Node,
        inputs: _Names,
        outputs: _Names,
        embedded: Mapping[str, str],
    ) -> bytes:
        from onnx import ValueInfoProto, helper, numpy_helper

        from poetopt.frontends.proto import elem_type, node_proto

        graph, tensors = self.graph, self.graph.tensors

        def info(key: str, name: str) -> ValueInfoProto:
            return helper.make_tensor_value_info(key, elem_type(tensors[name].dtype), None)

        attributes = dict(node.attributes)
        if is_random(node) and node.op_type != "Dropout":
            attributes["seed"] = _seed_of(node)
        canonical = replace(
            node,
            name="",
            inputs=tuple(f"i{k}" if name else "" for k, name in enumerate(node.inputs)),
            outputs=tuple(f"o{k}" if name else "" for k, name in enumerate(node.outputs)),
            attributes=attributes,
        )
        imports = [helper.make_opsetid("", graph.opset)]
        imports += [helper.make_opsetid(node.domain, 1)] if node.domain else []
        body = helper.make_graph(
            [node_proto(canonical)],
            "node",
            [info(key, name) for key, name in inputs],
            [info(key, name) for key, name in outputs],
            [numpy_helper.from_array(graph.values[name], key) for key, name in embedded.items()],
        )
        ir_version = max(8, helper.find_min_ir_version_for(imports, ignore_unknown=True))
        model = helper.make_model(body, opset_imports=imports, ir_version=ir_version)
        return bytes(model.SerializeToString(deterministic=True))

    def _create(self, node: Node, model: bytes) -> Any:
        options = session_options(self.threads)
        options.enable_cpu_mem_arena = False
        options.enable_mem_pattern = False
        return explained(
            f"onnxruntime {onnxruntime().__version__} can't run node {node.name!r} "
            f"({node.domain or 'ai.onnx'}.{node.op_type}, opset {self.graph.opset})",
            lambda: onnxruntime().InferenceSession(model, options, providers=["CPUExecutionProvider"]),
        )


def check_runs(graph: TrainingGraph) -> None:
    """Raise `UnsupportedOpError` where onnxruntime has no kernel for a node of the network.

    Only nodes of unusual types are loaded. Each op has a kernel for float32, with further operands of int64 and bool.
    Rules emit nodes that have a kernel. For float64 and bfloat16 there is a note instead (`Runtime.notes`).
    """
    sessions, tensors = Sessions(graph), graph.tensors
    for operator in graph.operators:
        for node in () if operator.backward or operator.view else operator.nodes:
            read_types = {tensors[name].dtype for name in node.inputs if name}
            written_types = {tensors[name].dtype for name in node.outputs if name}
            is_usual = read_types <= {"float32", "int64", "bool"} and "float32" in written_types
            is_usual = is_usual or op_of(node.op_type).any_type
            if (
                is_usual
                or node.domain
                or node.op_type in VIEW_OPS
                or not (read_types | written_types).isdisjoint(FEW_KERNELS)
            ):
                continue
            try:
                sessions.get(node)
            except BackendUnavailableError:
                return  # planning doesn't need onnxruntime
            except ExecutionError as error:
                types = ", ".join(tensors[name].dtype for name in node.inputs if name)
                raise UnsupportedOpError(
                    f"{graph.source}: {error} (its inputs are {types}); export the model with other types, or plan "
                    "with --runtime c if that has a kernel"
                ) from error


def key_of(node: Node) -> tuple[str, ...]:
    """Return the key of a node among those of a graph and of its slices: its op, outputs and inputs."""
    return (node.op_type, *node.outputs, "", *node.inputs)


def _fill_action(tensor: Tensor, address: int, value: Array) -> Act:
    memory = memoryview((ctypes.c_char * tensor.nbytes).from_address(address))
    return partial(np.frombuffer(memory, numpy_dtype(tensor.dtype)).fill, value.reshape(-1)[0])


def _run_action(session: Any, binding: Any) -> Act:
    """Return an action that runs a binding. The library's Python wrapper would keep half as much memory again."""
    raw_session, raw_binding = getattr(session, "_sess", None), getattr(binding, "_iobinding", None)
    if raw_session is None or raw_binding is None:
        return partial(session.run_with_iobinding, binding)
    return partial(raw_session.run_with_iobinding, raw_binding, None)


def _type(tensor: Tensor) -> tuple[object, list[int]]:
    """Return element type and shape for a binding; types that numpy lacks are onnx's number."""
    dtype = numpy_dtype(tensor.dtype)
    if dtype.kind != "V" and tensor.dtype not in PACKED:
        return dtype.type, list(tensor.shape)
    from poetopt.frontends.proto import elem_type

    return elem_type(tensor.dtype), list(tensor.shape)


def ran(session: Any, written: Sequence[str], feeds: Mapping[str, Array], tensors: Mapping[str, Tensor]) -> list[Array]:
    """Return the outputs of a session; raise what onnxruntime raises.

    Parameters
    ----------
    feeds, tensors
        Inputs by name. Inputs with elements of less than a byte are bound by address: numpy has no such type.
    """
    packed = {key for key in feeds if key in tensors and tensors[key].dtype in PACKED}
    if not packed:
        return [np.asarray(value) for value in session.run(written, feeds)]
    binding = session.io_binding()
    feeds = {key: array if array.flags.c_contiguous else array.copy() for key, array in feeds.items()}
    for key, array in feeds.items():
        if key in packed:
            binding.bind_input(key, "cpu", 0, *_type(tensors[key]), array.ctypes.data)
        else:
            binding.bind_cpu_input(key, array)
    for key in written:
        binding.bind_output(key)
    session.run_with_iobinding(binding)
    return [np.asarray(value) for value in binding.copy_outputs_to_cpu()]


def _seed_of(node: Node) -> float:
    """Return the seed of a random node: its own, or a hash of its name."""
    return float(node.attributes.get("seed", zlib.crc32(node.name.encode()) % 2**20))  # type: ignore[arg-type]


def _with_seed(model: bytes, seed: float) -> bytes | None:
    """Return a written model with another seed, without the onnx library; None where its seed isn't one float."""
    reseeded, count = _SEED.subn(lambda match: match[1] + struct.pack("<f", seed), model)
    return reseeded if count == 1 else None


def explained(what: str, action: Callable[[], Any]) -> Any:
    """Return the result of `action`; turn onnxruntime's errors into an `ExecutionError` that begins with `what`."""
    try:
        return action()
    except runtime_errors() as error:
        raise ExecutionError(f"{what}: {first_line(error)}") from error
