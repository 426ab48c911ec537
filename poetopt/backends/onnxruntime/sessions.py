"""One onnxruntime session for each distinct node: op, attributes and types. Shapes come with what is bound.

Graph optimisation is off (it would fold training-mode BatchNormalization and remove Dropout), the
session's own memory arena too: it would hold on to what kernels allocate, unseen. Small integer constants (axes,
shapes, pads) are part of a session, all else is bound. Each session has one thread by default: with
a pool for each session, more of them wait for each other.

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
"""The attribute `seed` in a model's bytes: its name (field 1), and behind it a float of 4 bytes (field 2)."""


@cache
def onnxruntime() -> ModuleType:
    """The onnxruntime library. Raises `BackendUnavailableError` where it is not installed."""
    try:
        import onnxruntime as library
    except ImportError as error:
        raise BackendUnavailableError(
            f"onnxruntime can't be imported ({error}); install it with: pip install onnxruntime"
        ) from error
    found: ModuleType = library
    return found


def session_options(threads: int) -> Any:
    """Options that all sessions have in common."""
    options = onnxruntime().SessionOptions()
    options.graph_optimization_level = onnxruntime().GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # the graph's own order; by default a session goes back from its outputs, and keeps weight gradients for the end
    options.execution_order = onnxruntime().ExecutionOrder.PRIORITY_BASED
    options.log_severity_level = 4
    if threads > 1:
        # spinning pools of hundreds of sessions would fight for the cores
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def is_random(node: Node) -> bool:
    """Say if two runs of one session of `node` may differ."""
    return op_of(node.op_type).random and not node.domain


def first_line(error: BaseException) -> str:
    """Gives what an error of onnxruntime says, on one line."""
    return " ".join(str(error).split())[:400] or type(error).__name__


@cache
def runtime_errors() -> tuple[type[Exception], ...]:
    """The exceptions that onnxruntime raises; some derive from Exception alone."""
    state = vars(onnxruntime().capi.onnxruntime_pybind11_state)
    own = [
        state[name] for name in sorted(state) if isinstance(state[name], type) and issubclass(state[name], Exception)
    ]
    return (RuntimeError, ValueError, *own)


_Names = tuple[tuple[str, str], ...]
"""(name in the session, name of the tensor)."""


@dataclass(frozen=True, slots=True)
class _NodeSession:
    """A session that runs one node.

    inputs, outputs
        (name in the session, name of the tensor), in order; absent and embedded ones are not here.
    """

    session: Any
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]


class Sessions:
    """The sessions of a graph's nodes, made on first use and shared by all nodes that are alike.

    They are the kernels of a step (`poetopt.backends.step.program.Kernels`).

    models
        The model of each node's session, where it was written before (`written`): by `key_of`.
    """

    runtime = runtime

    def __init__(self, graph: Graph, threads: int = 1, models: Mapping[tuple[str, ...], bytes] | None = None) -> None:
        self.graph = graph
        self.threads = threads
        self.models = models or {}
        self._made: dict[bytes, Any] = {}

    def __len__(self) -> int:
        return len(self._made)

    def of(self, graph: Graph) -> Sessions:
        """The sessions of another graph, which has those of nodes that are alike in common with this one.

        A node that writes the same tensors as one of this graph must be that node.
        """
        found = Sessions(graph, self.threads, self.models)
        found._made = self._made
        return found

    def get(self, node: Node) -> _NodeSession:
        """The session of `node`; for a random node a fresh one, which draws its first numbers (see `is_random`).

        Raises `ExecutionError` where onnxruntime has no kernel for it.
        """
        bound, outputs, embedded = self._operands(node)
        model = self.models.get(key_of(node))
        if model is not None and is_random(node):
            model = _seeded(model, _seed(node))
        if model is None:
            model = self._model(node, bound, outputs, embedded)
        if is_random(node):
            return _NodeSession(self._create(node, model), bound, outputs)
        if model not in self._made:
            self._made[model] = self._create(node, model)
        return _NodeSession(self._made[model], bound, outputs)

    def written(self, further: Iterable[Node] = ()) -> Mapping[tuple[str, ...], bytes]:
        """The models of all nodes that need a session of their own making; alike ones share their bytes.

        further
            Nodes beside the graph's.
        """
        alike: dict[bytes, bytes] = {}
        found = {}
        nodes = (node for operator in self.graph.operators for node in (() if operator.view else operator.nodes))
        for node in chain(nodes, further):
            model = self._model(node, *self._operands(node))
            found[key_of(node)] = alike.setdefault(model, model)
        return found

    def _operands(self, node: Node) -> tuple[_Names, _Names, Mapping[str, str]]:
        """Gives what is bound of its inputs, its outputs, and what is part of the session: by names in the session."""
        inputs = tuple((f"i{k}", name) for k, name in enumerate(node.inputs) if name)
        outputs = tuple((f"o{k}", name) for k, name in enumerate(node.outputs) if name)
        # ops whose integers are bound like all else: their sessions would differ in nothing else, and each takes 30 kB
        embedded = {
            key: name
            for key, name in inputs
            if self.embeds(name) and node.op_type not in ("ConstantOfShape", "Reshape")
        }
        return tuple((key, name) for key, name in inputs if key not in embedded), outputs, embedded

    def bound(self, node: Node, addresses: Mapping[str, int], shapes: Mapping[str, Tensor] | None = None) -> Act:
        """Running `node` with everything bound to its address; a fill takes no session. Raises as `get`.

        shapes
            The tensors as the node sees them, where they are not the graph's.
        """
        fill = node.attributes.get("value")
        if node.op_type == "ConstantOfShape" and isinstance(fill, np.ndarray):
            return _filling(self.graph.tensors[node.outputs[0]], addresses[node.outputs[0]], fill)
        prepared, tensors = self.get(node), self.graph.tensors if shapes is None else shapes
        binding: Any = prepared.session.io_binding()
        for key, name in prepared.inputs:
            binding.bind_input(key, "cpu", 0, *_type(tensors[name]), addresses[name])
        for key, name in prepared.outputs:
            binding.bind_output(key, "cpu", 0, *_type(tensors[name]), addresses[name])
        return _run(prepared.session, binding)

    draws = staticmethod(is_random)
    give_back = staticmethod(measure.give_back)
    errors = staticmethod(runtime_errors)
    reason = staticmethod(first_line)

    def embeds(self, name: str) -> bool:
        """Says whether the tensor `name` is part of each session that reads it."""
        tensor = self.graph.tensors[name]
        constant = tensor.role is Role.CONSTANT and tensor.name in self.graph.values
        # integer constants up to this size become part of their session
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
            attributes["seed"] = _seed(node)
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

    Only nodes of unusual types are loaded: each op has a kernel for float32, with operands of int64 and bool beside it.
    Rules emit nodes that have one. For float64 and bfloat16 there is a note instead (`Runtime.notes`).
    """
    sessions, tensors = Sessions(graph), graph.tensors
    for operator in graph.operators:
        for node in () if operator.backward or operator.view else operator.nodes:
            read = {tensors[name].dtype for name in node.inputs if name}
            written = {tensors[name].dtype for name in node.outputs if name}
            usual = read <= {"float32", "int64", "bool"} and "float32" in written
            usual = usual or op_of(node.op_type).any_type
            if usual or node.domain or node.op_type in VIEW_OPS or not (read | written).isdisjoint(FEW_KERNELS):
                continue
            try:
                sessions.get(node)
            except BackendUnavailableError:
                return  # a plan is made without it
            except ExecutionError as error:
                types = ", ".join(tensors[name].dtype for name in node.inputs if name)
                raise UnsupportedOpError(
                    f"{graph.source}: {error} (its inputs are {types}); export the model with other types, or plan "
                    "with --runtime c where that has a kernel"
                ) from error


def key_of(node: Node) -> tuple[str, ...]:
    """Gives what a node is known by among those of a graph, and of its slices: what it does, writes, and reads."""
    return (node.op_type, *node.outputs, "", *node.inputs)


def _filling(tensor: Tensor, address: int, value: Array) -> Act:
    place = memoryview((ctypes.c_char * tensor.nbytes).from_address(address))
    return partial(np.frombuffer(place, numpy_dtype(tensor.dtype)).fill, value.reshape(-1)[0])


def _run(session: Any, binding: Any) -> Act:
    """Running with a binding. What the library's Python wrapper keeps of one takes half as much again."""
    inner, bare = getattr(session, "_sess", None), getattr(binding, "_iobinding", None)
    if inner is None or bare is None:
        return partial(session.run_with_iobinding, binding)
    return partial(inner.run_with_iobinding, bare, None)


def _type(tensor: Tensor) -> tuple[object, list[int]]:
    """Element type and shape as a binding takes them: onnx's number where numpy has no such type of its own."""
    dtype = numpy_dtype(tensor.dtype)
    if dtype.kind != "V" and tensor.dtype not in PACKED:
        return dtype.type, list(tensor.shape)
    from poetopt.frontends.proto import elem_type

    return elem_type(tensor.dtype), list(tensor.shape)


def ran(session: Any, written: Sequence[str], feeds: Mapping[str, Array], tensors: Mapping[str, Tensor]) -> list[Array]:
    """The outputs of a session; raises what onnxruntime raises.

    feeds, tensors
        Its inputs by name. Numpy knows no elements of less than a byte, so those are bound by their address.
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


def _seed(node: Node) -> float:
    """Gives what a random node draws by: its own seed, or one of its name."""
    return float(node.attributes.get("seed", zlib.crc32(node.name.encode()) % 2**20))  # type: ignore[arg-type]


def _seeded(model: bytes, seed: float) -> bytes | None:
    """A written model with another seed, without the onnx library; None where its seed isn't one float."""
    found, count = _SEED.subn(lambda match: match[1] + struct.pack("<f", seed), model)
    return found if count == 1 else None


def explained(what: str, action: Callable[[], Any]) -> Any:
    """The result of `action`; onnxruntime's own errors become an `ExecutionError` that begins with `what`."""
    try:
        return action()
    except runtime_errors() as error:
        raise ExecutionError(f"{what}: {first_line(error)}") from error
