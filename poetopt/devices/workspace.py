"""What an operator needs while it runs beyond its inputs and outputs, and where in its workspace each part lies.

Two kinds of bytes share the workspace: the temporaries that its nodes pass to one another, and what each
node's kernel allocates itself. A temporary lives from the node that writes it to the last that reads it; a
kernel's memory lives during its node. Both are packed like any other buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poetopt.arena import pack
from poetopt.devices.flops import find, is_inner_view
from poetopt.devices.kernels import kernel_bytes
from poetopt.graph import Operator, Tensor, inner_storage

ALIGNMENT = 64
"""Bytes that every buffer starts at a multiple of: a cache line, and the widest vector register."""


@dataclass(frozen=True, slots=True)
class InnerLayout:
    """An operator's workspace in detail.

    offsets
        Where each temporary starts in the workspace. Temporaries that share storage share the offset; those that
        share an output's or an input's storage (`poetopt.graph.inner_storage`) are not here.
    temporaries_bytes
        End of the last temporary: what the workspace would be if kernels allocated nothing.
    kernel_bytes, kernel_offsets
        For each node, how much its kernel may allocate, and where that region starts in the workspace.
    total_bytes
        Size of the workspace.
    """

    offsets: Mapping[str, int]
    temporaries_bytes: int
    kernel_bytes: tuple[int, ...]
    kernel_offsets: tuple[int, ...]
    total_bytes: int


def inner_layout(operator: Operator, tensors: Mapping[str, Tensor], alignment: int = ALIGNMENT) -> InnerLayout:
    """Where the temporaries and the kernels' memory of an operator lie in its workspace.

    tensors
        All tensors of the graph by name, the operator's temporaries among them.
    alignment
        Every offset is a multiple of it.

    Raises `ModelError` where a node names a tensor that `tensors` lacks.
    """
    group = inner_storage(operator)
    outside = {*operator.inputs, *operator.outputs}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    kernels: list[int] = []
    for k, node in enumerate(operator.nodes):
        inputs = [find(operator, node, name, tensors) if name else None for name in node.inputs]
        outputs = [find(operator, node, name, tensors) for name in node.outputs if name]
        for tensor in (*inputs, *outputs):
            root = group.get(tensor.name, tensor.name) if tensor else ""
            if root and root not in outside:
                first.setdefault(root, k)
                last[root] = k
        still = operator.view or is_inner_view(node, group)
        kernels.append(0 if still else kernel_bytes(node, inputs, outputs))
    names = tuple(first)
    count = len(names)
    offsets, total = pack(
        [tensors[name].nbytes for name in names] + kernels,
        [first[name] for name in names] + list(range(len(kernels))),
        [last[name] + 1 for name in names] + list(range(1, len(kernels) + 1)),
        alignment,
    )
    at = dict(zip(names, offsets[:count], strict=True))
    shared = {name: at[root] for name, root in group.items() if root in at}
    return InnerLayout(
        offsets={**at, **shared},
        temporaries_bytes=max((at[name] + tensors[name].nbytes for name in names), default=0),
        kernel_bytes=tuple(kernels),
        kernel_offsets=offsets[count:],
        total_bytes=total,
    )


def workspace_bytes(operator: Operator, tensors: Mapping[str, Tensor], alignment: int = ALIGNMENT) -> int:
    """Bytes that an operator needs while it runs, beside its inputs and outputs."""
    return inner_layout(operator, tensors, alignment).total_bytes
