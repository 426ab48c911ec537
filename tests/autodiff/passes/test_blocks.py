"""Blocks: the same nodes in a valid order, exact workspace, the same bits; nothing that must stay apart is joined."""

from __future__ import annotations

from pathlib import Path

import pytest

import poetopt as po
from poetopt.api.training import Training
from poetopt.autodiff.passes.blocks import is_block
from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.backends.onnxruntime.reference import NodeByNode
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.graph import TrainingGraph

NETWORKS = ("lenet", "bert-tiny", "resnet18-cifar")


def both(name: str) -> tuple[Training, Training]:
    model = po.load(name)
    assert isinstance(model, po.Model)
    return Training(model.training_graph(), {}), model.differentiate(granularity="block")


@pytest.mark.parametrize("name", NETWORKS)
def test_a_block_is_its_members(name: str) -> None:
    fine, coarse = (training.graph for training in both(name))
    members = [inner for o in coarse.operators if not o.view for inner in (o.members or (o.name,))]
    assert sorted(members) == sorted(o.name for o in fine.operators if not o.view)
    nodes = [sorted(n.name for o in g.operators for n in o.nodes) for g in (fine, coarse)]
    assert nodes[0] == nodes[1]
    assert in_order(coarse)
    by_name = {o.name: o for o in fine.operators}
    for block in coarse.operators:
        if block.members:
            inner = [by_name[member] for member in block.members]
            assert all(o.recomputable and not o.over and o.backward == block.backward for o in inner)
            assert block.name == block.members[-1]


def in_order(graph: TrainingGraph) -> bool:
    """Whether every node reads only what is there."""
    there = {*graph.inputs, *graph.values}
    for operator in graph.operators:
        if not there.issuperset(operator.inputs):
            return False
        inner = set(there)
        for node in operator.nodes:
            if not inner.issuperset(name for name in node.inputs if name):
                return False
            inner.update(node.outputs)
        there.update(operator.outputs)
    return True


def test_the_same_bits() -> None:
    fine, coarse = (training.graph for training in both("bert-tiny"))
    batch = random_batch(fine)
    names = (fine.loss, *fine.gradients.values())
    results = []
    for graph in (fine, coarse):
        given = {name: graph.values[name] for name in graph.values}
        results.append(NodeByNode(graph, Sessions(graph), given, names).run(batch))
    assert all(results[0][name].tobytes() == results[1][name].tobytes() for name in names)


def test_a_plan_of_blocks_is_found_again_and_executed(tmp_path: Path) -> None:
    _, coarse = both("bert-tiny")
    report = po.solve(coarse.cost("a72"), ram="60%", time_limit="5s", gap="100%")
    assert report.to_dict()["granularity"] == "block"
    assert report.to_dict()["blocks"] == sum(map(is_block, coarse.graph.operators))
    path = tmp_path / "plan.json"
    report.save(path)
    execution = po.execute(po.load_plan(path))
    assert execution.ok
    assert execution.bit_identical
