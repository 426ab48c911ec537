"""`check_runtime` passes onnxruntime's and catches what can't be planned with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from poetopt.graph import Node, Operator, Tensor
from poetopt.ops.runtimes import names
from poetopt.ops.runtimes.contract import InnerLayout, Runtime, RuntimeVariant
from poetopt.ops.runtimes.onnxruntime import OnnxRuntime
from poetopt.testing import ContractError
from tests.support.contract.runtime import check_runtime


@pytest.mark.parametrize("name", names())
def test_the_runtimes_that_there_are(name: str) -> None:
    found = check_runtime(name)
    assert found.name == name
    assert found.version
    assert 0 < found.in_place < found.operators


class Plain(OnnxRuntime):
    """A runtime that does everything in its own memory: nothing in place, nothing allocated."""

    name = "plain"
    version = "1"
    alignment = 8

    def in_place(self, node: Node) -> tuple[int, ...]:
        return ()

    def reserve_bytes(self, kernels: int) -> int:
        return kernels


def test_another_runtime_passes_and_works_nowhere_in_place() -> None:
    assert check_runtime(Plain()).in_place == 0


class Sideways(OnnxRuntime):
    alignment = 48


class Forgetful(OnnxRuntime):
    def reserve_bytes(self, kernels: int) -> int:
        return 4096


class Overlapping(OnnxRuntime):
    def workspace(self, operator: Operator, tensors: Mapping[str, Tensor], alignment: int | None = None) -> InnerLayout:
        found = super().workspace(operator, tensors, alignment)
        return replace(found, offsets=dict.fromkeys(found.offsets, 0))


class Greedy(OnnxRuntime):
    """It says that kernels write over nothing, and lays out as if they did."""

    def in_place(self, node: Node) -> tuple[int, ...]:
        return ()

    def workspace(self, operator: Operator, tensors: Mapping[str, Tensor], alignment: int | None = None) -> InnerLayout:
        return OnnxRuntime().workspace(operator, tensors, alignment)


class Destructive(OnnxRuntime):
    """An operator's output lies on its input."""

    def workspace(self, operator: Operator, tensors: Mapping[str, Tensor], alignment: int | None = None) -> InnerLayout:
        found = super().workspace(operator, tensors, alignment)
        node = operator.nodes[0]
        if operator.view or len(operator.nodes) > 1 or node.op_type != "Relu":
            return found
        return replace(found, storage={operator.outputs[0]: operator.inputs[0]})


class Restless(OnnxRuntime):
    asked = 0

    def workspace(self, operator: Operator, tensors: Mapping[str, Tensor], alignment: int | None = None) -> InnerLayout:
        self.asked += 64
        found = super().workspace(operator, tensors, alignment)
        return replace(found, temporaries_bytes=found.temporaries_bytes + self.asked)


class Streaming(OnnxRuntime):
    def variants(
        self, operator: Operator, tensors: Mapping[str, Tensor], alignment: int | None = None, **streaming: object
    ) -> Iterator[RuntimeVariant]:
        yield RuntimeVariant("streamed", self.workspace(operator, tensors, alignment), operator.inputs[:1])


class Credulous(OnnxRuntime):
    """It takes a node for ONNX's by its name alone."""

    def in_place(self, node: Node) -> tuple[int, ...]:
        return super().in_place(replace(node, domain=""))


BROKEN: Mapping[str, tuple[Runtime, str]] = {
    "alignment": (Sideways(), "no power of two"),
    "no reserve": (Forgetful(), "at least as many"),
    "overlapping temporaries": (Overlapping(), "share bytes"),
    "written over in secret": (Greedy(), "`in_place` doesn't name"),
    "inputs written over": (Destructive(), "is written over in the end"),
    "another answer each time": (Restless(), "asked again"),
    "no plain variant": (Streaming(), "the first variant streams"),
    "somebody's op": (Credulous(), "nothing is known of it"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_broken_is_caught(case: str) -> None:
    runtime, complaint = BROKEN[case]
    with pytest.raises(ContractError, match=complaint):
        check_runtime(runtime)
