"""Operators that stream: the plain ones' bits, just the transfers that they say, and RAM to the byte."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

import poetopt as po
from benchmarks import kernels as streamed_kernels
from poetopt.backends.c.targets import compiler
from poetopt.graph import OWN_DOMAIN, Node, Operator, Role, Tensor, TrainingGraph
from poetopt.ops.runtimes import runtime
from poetopt.ops.runtimes.c import MOST
from poetopt.ops.runtimes.c.steps import kernels
from poetopt.ops.runtimes.c.variants import StreamCandidate, Streamed, StreamWays
from poetopt.ops.runtimes.contract import RuntimeVariant
from poetopt.testing.contract import ContractError
from tests.support.c import HOST, needs_host
from tests.support.contract.kernel_program import ADDRESS, sanitizers
from tests.support.streamed_kernels import Trial, check_streamed, small_blocks, trial

if TYPE_CHECKING:
    from poetopt.graph import Array

OPERATORS = {
    "resnet8": (
        "conv1", "conv1.relu", "stage2.conv1", "stage2.shortcut", "stage2.relu", "stage3.conv2.bn", "pool",
        "pool.grad_input", "stage3.conv2.bn.bias.update", "stage2.conv1.grad_input", "stage2.conv2.weight.update",
        "stage2.conv2.bias.update", "stage3.relu.grad_input",
    ),
    "lenet": ("relu1", "relu3", "fc1.grad_input", "fc1.weight.update", "conv2.grad_input"),
    "bert-tiny": (
        "bert.encoder.layer.0.attention.output.dense.weight.update", "bert.embeddings.ln",
        "bert.encoder.layer.0.attention.self.key.transpose", "bert.encoder.layer.0.attention.self.softmax",
        "bert.encoder.layer.0.attention.self.mixed.grad_weight", "bert.encoder.layer.0.attention.self.mixed.grad_input",
        "bert.encoder.layer.0.attention.self.softmax.grad_input", "bert.encoder.layer.0.output.LayerNorm.bias.update",
        "bert.encoder.layer.0.intermediate.dense.bias.update",
    ),
}  # fmt: skip
"""Of each kind one or more, with the optimizer momentum."""


@cache
def graph(network: str) -> TrainingGraph:
    """A training step at batch 1, as the runtime c has it."""
    model = po.load(network, batch=1)
    assert isinstance(model, po.Model)
    return model.differentiate(optimizer="momentum").on("c").graph


def ways(network: str, operator: Operator) -> StreamWays:
    """How an operator can stream, with everything on storage."""
    found = graph(network)
    names = (*operator.inputs, *operator.outputs)
    return StreamWays(operator, found.tensors, movable=names, values=found.constants)


def operators() -> Iterator[tuple[str, Operator]]:
    for network, names in OPERATORS.items():
        by_name = {operator.name: operator for operator in graph(network).operators}
        yield from ((network, by_name[name]) for name in names if name in by_name)


def drawn(network: str, operator: Operator, variants: list[RuntimeVariant] | None = None) -> Trial:
    """A trial of one of its ways by each form of its loops, with random operands."""
    found = graph(network)
    random = np.random.default_rng(len(operator.name))
    constants = found.constants
    given = {
        name: constants[name]
        if name in constants
        else (random.standard_normal(found.tensors[name].shape) + 0.1).astype("float32")
        for name in operator.inputs
    }
    given = {name: np.abs(value) if "variance" in name else value for name, value in given.items()}
    if variants is None:
        made = ways(network, operator)
        by_form: dict[int, list[StreamCandidate]] = {}
        for way in made.candidates():
            by_form.setdefault(way.form, []).append(way)
        variants = [made.variant(some[random.integers(len(some))]) for some in by_form.values()]
    return trial(operator, found.tensors, constants, given, variants)


@needs_host
def test_each_way_gives_the_plain_operators_bits_and_moves_what_it_says() -> None:
    trials = [drawn(network, operator) for network, operator in operators()]
    assert all(one.variants for one in trials)
    assert check_streamed(trials, "-O0", sanitize=False) >= 50


SWEPT = (
    "Concat", "Split", "Slice", "Transpose", "DequantizeLinear", "DequantizeLinear+Gemm", "DequantizeLinear+MatMul",
    "MatMul.grad_weight", "ReduceSum", "InstanceNormalization", "Conv.grad_input", "Conv.grad_weight",
    "Gradient.squares", "adamw.update",
)  # fmt: skip
"""Kernels of which networks have few shapes."""


@needs_host
@small_blocks()
def test_kernels_of_random_shapes_give_the_plain_ones_bits() -> None:
    found = [kernel for kernel in kernels().values() if kernel.op_type in SWEPT]
    of = {kernel.op_type: list(streamed_kernels.trials(kernel, 2, 3, streamed_kernels.Tally())) for kernel in found}
    assert set(of) == set(SWEPT)
    assert all(of.values())
    assert check_streamed([one for some in of.values() for one in some], "-O0", sanitize=False) >= 40


@needs_host
@small_blocks()
def test_rows_of_tables_are_picked_and_updated_by_the_plain_kernels_bits() -> None:
    """Numbers come twice or from the end; the table lies on the storage in order, or its rows here and there."""
    random = np.random.default_rng(7)
    trials: list[Trial] = []
    for dtype in ("int64", "int32", "int64"):
        rows, inner, count = (int(random.integers(*range_)) for range_ in ((2, 7), (1, 4), (1, 10)))
        shapes = {"table": (rows, 8 * inner), "picked": (1, count, 8 * inner), "dy": (1, count, 8 * inner)}
        shapes |= {"gradient": (rows, 8 * inner), "new": (rows, 8 * inner), "rate": (), "kept": ()}
        tensors = {name: Tensor(name, shape, "float32", Role.ACTIVATION) for name, shape in shapes.items()}
        tensors["ids"] = Tensor("ids", (1, count), dtype, Role.INPUT)
        given: dict[str, Array] = {name: random.standard_normal(shape) for name, shape in shapes.items()}
        given["ids"] = random.integers(-rows, rows, (1, count))
        for op, inputs, output in (
            ("Gather", ("table", "ids"), "picked"),
            ("Gather.grad_input", ("dy", "ids"), "gradient"),
            ("Gather.grad_input+sgd.update", ("dy", "ids", "table", "rate", "kept"), "new"),
        ):
            updates = (("table", "new"),) if output == "new" else ()
            node = Node(op, inputs, (output,), {}, OWN_DOMAIN if "." in op else "")
            operator = Operator(op, op, (node,), inputs, (output,), updates=updates)
            tables = [(), ("table",)] if "table" in inputs else [()]
            trials += [trial(operator, tensors, {}, given, None, listed) for listed in tables]
    streamed = {frozenset(variant.streamed_in) for one in trials for variant in one.variants}
    assert streamed >= {frozenset({"dy"}), frozenset({"table"}), frozenset({"dy", "table"})}
    assert check_streamed(trials, "-O0", sanitize=True) > 100


@needs_host
@pytest.mark.parametrize("wrong", ["reads", "chunk", "workspace"])
def test_a_way_that_is_another_than_it_says_is_refused(wrong: str) -> None:
    operator = next(operator for operator in graph("lenet").operators if operator.name == "fc1.weight.update")
    made = ways("lenet", operator)
    variant = made.variant(next(way for way in made.candidates() if way.outer == 40 and len(way.streamed) == 2))
    assert check_streamed([drawn("lenet", operator, [variant])], "-O0", sanitize=True) == 1
    detail = variant.detail
    assert isinstance(detail, Streamed)
    if wrong == "reads":
        variant = replace(variant, reads=((variant.reads[0][0], variant.reads[0][1] + 1), *variant.reads[1:]))
    elif wrong == "chunk":  # its last chunk isn't gone through
        loop = detail.form.loop(0)
        variant = replace(variant, detail=replace(detail, form=replace(detail.form, outer=replace(loop, extent=119))))
    else:
        if ADDRESS not in sanitizers(compiler(HOST).command):
            pytest.skip("the compiler has no address sanitizer")
        less = variant.workspace.temporaries_bytes - 4
        variant = replace(variant, workspace=replace(variant.workspace, temporaries_bytes=less))
    with pytest.raises(ContractError, match=r"should|other bits|overflow"):
        check_streamed([drawn("lenet", operator, [variant])], "-O0", sanitize=True)


def test_what_is_kept_is_short_and_no_kept_way_is_bettered_by_any_of_its_set() -> None:
    for network, operator in operators():
        found = graph(network)
        names = (*operator.inputs, *operator.outputs)
        _, *kept = runtime("c").variants(operator, found.tensors, movable=names, values=found.constants)
        everything = list(ways(network, operator).candidates())
        assert 0 < len(kept) <= MOST
        least = min(ram(way, found) for way in everything)
        by_set: dict[tuple[str, ...], list[StreamCandidate]] = {}
        for way in everything:
            by_set.setdefault(tuple(sorted(way.streamed)), []).append(way)
        assert least in [ram_of(one, found) for one in kept]
        for one in kept:
            mine = by_set[tuple(sorted((*one.streamed_in, *one.streamed_out)))]
            workspace, moved = one.workspace.temporaries_bytes, traffic(one)
            assert not any(better(way, workspace, moved) for way in mine)


def better(way: StreamCandidate, workspace: int, moved: int) -> bool:
    """Whether a way needs less of one, and no more of the other."""
    return (way.workspace_bytes, way.traffic) != (workspace, moved) and (
        way.workspace_bytes <= workspace and way.traffic <= moved
    )


def ram(way: StreamCandidate, found: TrainingGraph) -> int:
    return way.workspace_bytes - sum(found.tensors[name].nbytes for name in way.streamed)


def ram_of(way: RuntimeVariant, found: TrainingGraph) -> int:
    streamed = (*way.streamed_in, *way.streamed_out)
    return way.workspace.temporaries_bytes - sum(found.tensors[name].nbytes for name in streamed)


def traffic(way: RuntimeVariant) -> int:
    """What its transfers take, counted anew."""
    reads = sum(count * (nbytes + 1_000) for nbytes, count in way.reads)
    return reads + sum(count * (nbytes + 5_000) for nbytes, count in way.writes)
