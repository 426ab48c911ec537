"""One node on onnxruntime: what kernels compute is asked of them, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from onnx import NodeProto, ValueInfoProto, helper

from poetopt.frontends.proto import elem_type
from poetopt.frontends.read import LIBRARY_ERRORS
from poetopt.util.errors import ModelError

if TYPE_CHECKING:
    from poetopt.graph import Array


def computed(node: NodeProto, feeds: Mapping[str, Array], opset: int) -> dict[str, Array] | None:
    """The outputs of `node` by name, on one thread, or None where onnxruntime refuses its settings or types.

    feeds
        All inputs that it has, by name.
    """
    import onnxruntime as ort

    written = [name for name in node.output if name]
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False  # an arena takes twice what it is asked for
    errors = ort.capi.onnxruntime_pybind11_state
    try:
        infos = [helper.make_tensor_value_info(n, elem_type(a.dtype.name), a.shape) for n, a in feeds.items()]
        graph = helper.make_graph([node], "node", infos, [ValueInfoProto(name=name) for name in written])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        found = session.run(written, dict(feeds))
    except (errors.Fail, errors.InvalidArgument, errors.InvalidGraph, errors.NotImplemented, errors.RuntimeException):
        return None
    except (ModelError, *LIBRARY_ERRORS):
        return None
    return dict(zip(written, (np.asarray(value) for value in found), strict=True))
