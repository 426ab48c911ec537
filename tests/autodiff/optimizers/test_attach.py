"""Where updates stand in a training graph, what they write over, and what a schedule may do around them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

import poetopt as po
from poetopt.autodiff import differentiate
from poetopt.autodiff.optimizers import with_updates
from poetopt.autodiff.passes.in_place import in_place
from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.backends.onnxruntime.execution import compare
from poetopt.backends.onnxruntime.reference import NodeByNode
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.backends.step.memory import MappedBlock
from poetopt.backends.step.program import Program
from poetopt.backends.step.region import ResidentRegion, slots
from poetopt.backends.step.storage import PageFile
from poetopt.devices import cost, device
from poetopt.frontends import load
from poetopt.frontends.proto import model_proto
from poetopt.graph import Graph, Node, Operator, Role, Tensor, TrainingGraph
from poetopt.graph.problem import Problem
from poetopt.ops.runtimes.onnxruntime import runtime
from poetopt.ops.runtimes.workspace import shared_storage
from poetopt.plan.assemble import plan_of
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.plan.layout import arena_bytes, lay_out
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from poetopt.util.errors import ModelError, OptionError, PlanError
from tests.autodiff.passes.test_in_place import random_network
from tests.support.autodiff.build import graph
from tests.support.backends import NETWORKS
from tests.support.problems import store_all


def tied() -> Graph:
    """A table that is also the matrix of the last layer."""
    words = np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32)
    ids = np.array((3, 9, 3, 3, 0, -1), np.int64)
    return graph("e = Gather(w, ids)\nh = Tanh(e)\ny = Gemm<transB=1>(h, w)", {}, {"w": words, "ids": ids}, ["y"])


def networks() -> Mapping[str, TrainingGraph]:
    read = {name: load(build()) for name, build in NETWORKS.items()} | {"tied": tied()}
    read |= {f"random {seed}": random_network(random.Random(seed)) for seed in range(8)}
    graphs = {name: found for name, found in read.items() if isinstance(found, Graph)}
    return {n: differentiate(found, loss="mse" if "random" in n else "auto") for n, found in graphs.items()}


STEPS = networks()


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", STEPS)
def test_each_is_updated_once_and_read_no_more(name: str, optimizer: str, fuse: bool) -> None:
    step = STEPS[name]
    found = with_updates(step, optimizer, fuse=fuse)
    onnx.checker.check_model(model_proto(found), full_check=True)
    written: set[str] = {*found.inputs, *found.values}
    replaced: set[str] = set()
    for operator in found.operators:
        assert not replaced.intersection(map(found.root, operator.inputs)), operator.name
        assert written.issuperset(operator.inputs), operator.name
        written.update(operator.outputs)
        for old, new in operator.updates:
            assert not operator.recomputable
            assert old in operator.inputs
            assert new in operator.outputs
            assert found.root(new) == old
            replaced.add(old)
    assert replaced == {*step.trained, *step.states, *found.optimizer_states}
    assert found.carried.keys() == replaced
    assert not any(found.values[state].any() for state in found.optimizer_states)
    assert {found.tensors[name].role for name in found.tensors}.isdisjoint({Role.PARAMETER_GRADIENT, Role.STATE})


@pytest.mark.parametrize("name", STEPS)
def test_the_gradient_by_a_weight_is_fused_where_nobody_else_reads_it(name: str) -> None:
    """No whole gradient is written, but for sums of which one part is, and for what a gradient by the input reads."""
    found = with_updates(STEPS[name], "sgd")
    whole = {n for o in found.operators if o.backward for n in o.outputs if n.endswith(".grad")}
    for gradient in whole & {*STEPS[name].gradients.values()}:
        (updater,) = (o for o in found.operators if gradient in o.inputs and o.updates and o.kind == "sgd.update")
        others = [o for o in found.readers[gradient] if o is not updater]
        old = gradient.removesuffix(".grad")
        writer = found.producers[gradient]
        assert others or writer.view or not writer.backward or any(old in o.inputs for o in found.operators), gradient
    if name in ("mlp", "lenet", "dropout", "tied"):
        assert not whole & {*STEPS[name].gradients.values()}


def test_a_tied_weight_has_one_update_after_the_sum() -> None:
    found = with_updates(STEPS["tied"], "adam")
    (update,) = (o for o in found.operators if any(old == "w" for old, _ in o.updates))
    assert update.kind.endswith("Add.accumulate+adam.update")
    assert not any(operator.over for operator in found.operators)
    apart = with_updates(STEPS["tied"], "adam", fuse=False)
    assert {o.kind for o in apart.operators if o.updates} == {"adam.update"}


def test_the_gradient_by_the_input_comes_before_the_update() -> None:
    found = with_updates(STEPS["lenet"], "sgd")
    place = {operator.name: k for k, operator in enumerate(found.operators)}
    assert place["fc2.grad_input"] < place[found.updaters["fc2.weight"].name]
    assert place["conv2.grad_input"] < place[found.updaters["conv2.weight"].name]


def problem(name: str, optimizer: str, *, fuse: bool) -> Problem:
    return cost(in_place(with_updates(STEPS[name], optimizer, fuse=fuse), runtime), device("a72"))


def recomputed(found: Problem) -> Plan:
    """Each recomputable forward operator again right before the last reader of its output, where that is in time."""
    again = set()
    for tensor, readers in enumerate(found.readers):
        producer = found.tensors[tensor].producer
        if len(readers) < 2 or not 0 <= producer <= found.last_forward < readers[-1]:
            continue
        if found.operators[producer].recomputable and readers[-1] <= found.last_run[producer]:
            again.add((readers[-1], producer))
    assert again
    ins = {(stage, i) for stage, k in again for i in found.operators[k].inputs if i in found.at_start}
    return lay_out(plan_of(found, Schedule(frozenset(again), frozenset(ins))))


def compared(plan: Plan) -> bool:
    """Whether a step in its arena, with freed bytes poisoned, leaves the bits of one without arena or schedule."""
    chosen = plan.problem.graph
    assert chosen is not None
    sessions, region, batch = Sessions(chosen), ResidentRegion.of(chosen), random_batch(chosen)
    wanted = NodeByNode(chosen, sessions, region.begun, chosen.results).run(batch)
    with PageFile(slots(plan)) as pages:
        program = Program(plan, chosen, MappedBlock(arena_bytes(plan)), region, sessions, pages)
        for _ in range(2):  # a step begins anew
            program.run_checked(batch)
            found = {name: program.result(name) for name in chosen.results}
            if not compare(found, wanted, chosen.results).identical:
                return False
    return True


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize(
    ("name", "optimizer"), [("residual", "adam"), ("lenet", "momentum"), ("dropout", "adamw"), ("tied", "sgd")]
)
def test_a_scheduled_step_leaves_the_parameters_of_an_unscheduled_one(name: str, optimizer: str, fuse: bool) -> None:
    """Running statistics included, whose BatchNormalization runs twice."""
    found = problem(name, optimizer, fuse=fuse)
    assert compared(lay_out(store_all(found)))
    if name != "tied":
        assert compared(recomputed(found))


def test_what_reads_a_weight_is_not_run_after_its_update() -> None:
    """The simulator refuses it, and so does what chooses recomputes."""
    found = problem("lenet", "sgd", fuse=False)
    assert found.graph is not None
    reader = found.graph.readers["conv2.weight"][0].name
    (conv,) = (k for k, operator in enumerate(found.operators) if operator.name == reader)
    last = found.last_run[conv]
    assert found.operators[last].name in ("conv2.weight.update", "conv2.bias.update")
    computes = [Instruction(Action.COMPUTE, k) for k in range(len(found.operators))]
    again = Instruction(Action.COMPUTE, conv)
    simulate(found, [*computes[:last], again, *computes[last:]])
    with pytest.raises(PlanError, match=r"it reads a resident tensor as it was before 'conv2.*update'"):
        simulate(found, [*computes[: last + 1], again, *computes[last + 1 :]])


def test_the_resident_region_has_states_and_no_gradients() -> None:
    without = cost(in_place(STEPS["lenet"], runtime), device("a72"))
    weights = sum(STEPS["lenet"].tensors[name].nbytes for name in STEPS["lenet"].trained)
    for optimizer, states in (("sgd", 0), ("momentum", 1), ("adam", 2)):
        fused, apart = (problem("lenet", optimizer, fuse=fuse) for fuse in (True, False))
        assert 0 <= fused.resident_bytes - (without.resident_bytes + (states - 1) * weights) < 200
        assert fused.resident_bytes == apart.resident_bytes
        names = {tensor.name for tensor in apart.tensors}
        assert names >= {f"{name}.grad" for name in STEPS["lenet"].trained}
        assert names.isdisjoint(apart.graph.carried.values() if apart.graph else ())


def test_a_temporary_lies_on_the_new_value_only_once_the_old_one_is_read() -> None:
    """q = p s; r = p q; new = q - r: q may not lie where `new` will, since p is read after it."""
    nodes = (Node("Mul", ("p", "s"), ("q",)), Node("Mul", ("p", "q"), ("r",)), Node("Sub", ("q", "r"), ("new",)))
    operator = Operator("u", "u", nodes, ("p", "s"), ("new",), recomputable=False, updates=(("p", "new"),))
    tensors = {n: Tensor(n, (8,) if n != "s" else (), "float32", Role.PARAMETER) for n in ("p", "s", "q", "r", "new")}
    assert shared_storage(runtime, operator, tensors).get("q") != "new"
    assert shared_storage(runtime, replace(operator, updates=()), tensors)["q"] == "new"
    assert shared_storage(runtime, operator, tensors) == {"r": "new"}


def test_names_that_are_taken_are_told() -> None:
    taken = graph("h = Mul(x, w)\nw.new = Tanh(h)", {"x": [2, 3]}, {"w": np.ones(3, np.float32)}, ["w.new"])
    with pytest.raises(ModelError, match=r"a tensor is named 'w.new' already; rename it"):
        with_updates(differentiate(taken, loss="mse"), "sgd")
    named = graph("y = Mul(lr, w)", {"lr": [2, 3]}, {"w": np.ones(3, np.float32)}, ["y"])
    assert with_updates(differentiate(named, loss="mse"), "sgd").hyperparameters["lr"] == "lr.2"
    with pytest.raises(OptionError, match=r"--optimizer adm: unknown.*adam"):
        with_updates(STEPS["lenet"], "adm")


def test_a_plan_trains_with_its_own_optimizer(tmp_path: Any) -> None:
    """A plan file knows it; and descent in the graph is bit for bit the descent on its gradients."""
    report = po.solve("lenet", device="a72", ram="100%", optimizer="sgd")
    (tmp_path / "plan.json").write_text(report.plan_text(), encoding="utf-8")
    ended = po.train(po.load_plan(tmp_path / "plan.json"), 3, 0.01, check=1)
    assert ended.bit_identical, ended.message
    assert ended.optimizer == "sgd"
    plain = po.train(po.solve("lenet", device="a72", ram="100%"), 3, 0.01)
    assert ended.losses == plain.losses
    assert compare(ended.values, plain.values, tuple(plain.values)).identical
    with pytest.raises(OptionError, match=r"--momentum 0.5: the plan's optimizer is sgd"):
        po.train(report, 3, 0.01, momentum=0.5)
