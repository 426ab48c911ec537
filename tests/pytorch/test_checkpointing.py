"""A plan's recomputes in torch: the same bits, less memory, and refusals where there is no counterpart."""

from __future__ import annotations

import copy
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import poetopt as po
from poetopt.graph import Graph, Operator
from poetopt.util.errors import PlanError
from tests.later import ALL_USE_TORCH, later
from tests.pytorch.modules import image, labels, one_thread, residual

torch = later("torch")
nn = later("torch.nn")
pytestmark = ALL_USE_TORCH


@dataclass(frozen=True)
class Case:
    """A module, a plan of it that recomputes, its policy, and a copy of the module with that."""

    module: Any
    report: po.Report
    policy: Any
    called: Any
    applied: Any


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    pytest.importorskip("onnxscript")
    module = residual()
    path = tmp_path_factory.mktemp("torch") / "net.onnx"
    with one_thread():
        model = po.torch.export(module, image(), path, dynamic_batch=False)
        problem = model.differentiate(loss="cross-entropy").cost("a72")
        report = po.solve(problem, ram="75%", paging=False, scope="depth:4", gap=0.5)
        policy, called = po.torch.checkpoint_policy(report), copy.deepcopy(module)
        return Case(module, report, policy, called, policy.apply(called, image(), loss=loss_of))


def loss_of(output: Any) -> Any:
    return nn.functional.cross_entropy(output, labels())


def trained(module: Any, called: Any) -> list[bytes]:
    """Losses and all that a module saves, after three steps."""
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    torch.manual_seed(3)
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = loss_of(called(image()))
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return [tensor.numpy().tobytes() for tensor in (*found, *module.state_dict().values())]


def allocated(module: Any, called: Any, path: Path) -> int:
    """The most bytes that torch's allocator had given out at once in a step, by its profiler."""
    x = image()
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        loss_of(called(x)).backward()
    profile.export_chrome_trace(str(path))
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["name"] == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda event: event["ts"]):
        live += event["args"]["Bytes"]
        most = max(most, live)
    return int(most + x.nbytes)


def test_the_same_bits_and_less_memory(case: Case, tmp_path: Path) -> None:
    plain, applied = copy.deepcopy(case.module), case.applied
    # The profiler sees what kernels take inside, too.
    with_policy = allocated(case.called, applied.module, tmp_path / "policy.json")
    without = allocated(plain, plain, tmp_path / "plain.json")
    assert applied.peak_bytes <= with_policy < without >= applied.plain_peak_bytes
    assert applied.plan_peak_bytes == po.simulate(case.report).peak_bytes
    assert trained(case.called, applied.module) == trained(plain, plain)


def test_what_runs_again_is_what_the_plan_recomputes(case: Case) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    counts: Counter[str] = Counter()

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            counts[func._schema.name.removeprefix("aten::")] += 1
            return func(*args, **(kwargs or {}))

    with Count():
        loss_of(case.applied.module(image())).backward()
    again = {name for name in case.policy.recomputed if name not in case.applied.kept_instead}
    assert again
    for kind, function, once in (("Conv", "convolution", 5), ("Relu", "relu", 4), ("Dropout", "bernoulli_", 1)):
        more = sum(name.rpartition("/")[2].startswith(kind) for name in again)
        assert counts[function] == once + more, kind


def test_the_policy_is_for_a_plan_that_only_recomputes(tmp_path: Path) -> None:
    problem = po.load("lenet", batch=4).differentiate().cost("a72")
    whole = po.solve(problem, ram="100%")
    with pytest.raises(PlanError, match="recomputes nothing"):
        po.torch.checkpoint_policy(whole)
    paging = po.solve("mlp", device="a72", ram="80%", remat=False, time_limit=10)
    with pytest.raises(PlanError, match=r"moves tensors to storage .*paging=False \(--no-paging\)"):
        po.torch.checkpoint_policy(paging)


def test_modules_that_cannot_be_mapped_are_refused(case: Case) -> None:
    module, policy = case.module, case.policy

    class Branches(nn.Sequential):  # type: ignore[name-defined]
        def forward(self, x: Any) -> Any:
            return super().forward(x if x.sum() > 0 else x * 2)

    with pytest.raises(PlanError, match=r"Branches: torch\.fx can't trace it"):
        policy.apply(Branches(*module), image())
    with pytest.raises(PlanError, match=r"Sequential: it has no 5\.weight, and the plan's network one of 5x512"):
        policy.apply(module[:-1], image())
    wider = nn.Sequential(nn.Conv2d(3, 8, 1), *module[1:])
    with pytest.raises(PlanError, match=r"it has a 0\.weight of 8x3x1x1, and the plan's network one of 8x3x3x3"):
        policy.apply(wider, image())
    in_place = copy.deepcopy(module)
    for layer in in_place.modules():
        layer.inplace = isinstance(layer, nn.ReLU)
    with pytest.raises(PlanError, match=r"relu_ of [12]\.relu works in place.*inplace=False"):
        policy.apply(in_place, image())


def test_live_bytes_are_those_of_storages() -> None:
    from poetopt.torch.live_bytes import LiveBytes

    given = torch.zeros(100)
    count = LiveBytes()
    count.know(given)
    with count:
        a = given * 2
        b = a.view(10, 10)
        del a
        c = b + 1
        del b
        d = c.double()
    assert count.peak_bytes() == 400 + 800
    assert count.peak_bytes([d]) == 800
    del c, d
    with count:
        kept = torch.zeros(25)
    assert count.peak_bytes([kept]) == 1200


def test_live_bytes_of_a_step_are_what_the_allocator_gave_out(tmp_path: Path) -> None:
    """Of layers whose kernels take nothing inside."""
    from poetopt.torch.live_bytes import stepped

    module = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 5))
    counted = stepped(copy.deepcopy(module), (image(),), loss_of).peak_bytes
    gradients = sum(parameter.nbytes for parameter in module.parameters())
    given = allocated(module, module, tmp_path / "step.json")
    assert given - gradients <= counted <= given


def test_functions_are_operators_in_order_and_in_their_layers() -> None:
    """Attention as one function has no counterpart; what stands around it has, each in its own layer."""
    from poetopt.torch.counterparts import Call, matched

    kinds = {
        "a/Relu": "Relu", "b/Gelu": "Gelu", "b/MatMul": "MatMul", "b/Transpose": "Transpose", "b/Softmax": "Softmax",
        "b/MatMul_2": "MatMul", "b/Add": "Add", "c/MatMul": "MatMul", "c/Add": "Add", "c/Relu": "Relu",
    }  # fmt: skip
    operators = tuple(Operator(name, kind, (), (), (f"{name}.y",)) for name, kind in kinds.items())
    network = Graph(name="net", tensors={}, operators=operators, inputs=(), outputs=(), values={}, trained=(), opset=20)
    ran = [("relu", "a"), ("strange", "b"), ("_scaled_dot_product_flash_attention_for_cpu", "b"), ("add", "b"),
           ("t", "c"), ("addmm", "c"), ("relu_", "c")]  # fmt: skip
    calls = [Call(name, layer, layer, node, moves=name == "t") for node, (name, layer) in enumerate(ran)]
    assert matched(calls, network) == {
        0: ("a/Relu",), 2: ("b/MatMul", "b/Softmax", "b/MatMul_2"), 3: ("b/Add",), 5: ("c/MatMul", "c/Add"),
        6: ("c/Relu",),
    }  # fmt: skip
    elsewhere = [Call(call.name, "d", "d", call.node, call.moves) for call in calls]
    assert matched(elsewhere, network) == {}
