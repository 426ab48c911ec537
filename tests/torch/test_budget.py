"""`po.torch.compile`: gradients are torch's, the peak that is measured keeps the budget, and what can't be is said."""

from __future__ import annotations

import copy
import gc
import shutil
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import poetopt as po
from poetopt.util.errors import InfeasibleError, ModelError, NoScheduleError, OptionError, OutputError
from poetopt.util.units import show_bytes
from tests.support.later import ALL_USE_TORCH, later

pytestmark = ALL_USE_TORCH
torch = later("torch")
nn = later("torch.nn")

KINDS = ("resnet", "mobilenet", "unet", "gpt", "bert")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    from tests.support.torch.modules import one_thread

    with one_thread():
        torch.compiler.reset()
        yield
        torch.compiler.reset()


compiled_to = partial(po.torch.compile, time_limit=6, measure=False)
planned_for = partial(po.torch.plan, time_limit=6, measure=False)


def made(kind: str) -> tuple[Any, tuple[Any, ...]]:
    from tests.support.torch.networks import made as network

    return network(kind)


def step(module: Any, given: tuple[Any, ...], seed: int = 1) -> dict[str, Any]:
    """Gradients of one step, and buffers after it."""
    torch.manual_seed(seed)
    module.zero_grad()
    module(*given).sum().backward()
    gradients = {f"{name}.grad": p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    return {**gradients, **{name: buffer.clone() for name, buffer in module.named_buffers()}}


def check_same(found: dict[str, Any], wanted: dict[str, Any], within: float = 1e-6) -> None:
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        size = float(value.abs().max()) if value.numel() else 0.0
        torch.testing.assert_close(found[key], value, rtol=0, atol=within * size)


def peak_of(module: Any, given: tuple[Any, ...]) -> int:
    """The most bytes of storages alive at once that a step makes, by a count apart from the package's."""
    from torch.utils._python_dispatch import TorchDispatchMode

    alive: dict[int, int] = {}
    most = 0

    class Count(TorchDispatchMode):  # type: ignore[misc]
        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal most
            found = function(*args, **(kwargs or {}))
            outside = str(function) == "poetopt.page_out.default"
            for value in torch.utils._pytree.tree_leaves(found):
                if isinstance(value, torch.Tensor) and not outside:
                    storage = value.untyped_storage()
                    if storage.data_ptr() not in there and storage._cdata not in alive:
                        alive[storage._cdata] = storage.nbytes()
                        weakref.finalize(storage, alive.pop, storage._cdata)
            most = max(most, sum(alive.values()))
            return found

    module.zero_grad()
    gc.collect()
    there = {t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers(), *given)}
    with Count():
        module(*given).backward()
    return most


@pytest.mark.parametrize("kind", KINDS)
def test_the_measured_peak_keeps_the_budget_and_gradients_are_torchs(kind: str) -> None:
    module, given = made(kind)
    eager, twin = copy.deepcopy(module), copy.deepcopy(module)
    wanted, usual = step(eager, given), peak_of(eager, given)
    compiled = compiled_to(twin, memory="70%")
    assert compiled is twin
    check_same(step(compiled, given), wanted)
    (plan,) = compiled.memory_plans
    assert not plan.own
    assert plan.recomputes > 0
    assert plan.measured_bytes is not None
    assert plan.measured_bytes <= plan.planned_bytes <= plan.budget_bytes
    measured = peak_of(compiled, given)
    assert plan.least_bytes <= measured <= plan.budget_bytes
    assert measured < 0.8 * usual
    assert len(compiled.memory_plans) == 1  # the same shapes need no other plan
    assert all(word in str(plan) for word in ("proof", "least", "measured"))


def mapped_files(folder: Path) -> int:
    """How many files of a folder this process has in its memory, with a name or without."""
    return sum(str(folder) in line for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.skipif(sys.platform != "linux", reason="sees mapped files in /proc")
def test_offloaded_tensors_wait_in_files_that_are_gone_with_them(tmp_path: Path) -> None:
    module, given = made("gpt")  # with Dropout, whose masks wait, too
    with pytest.raises(InfeasibleError):
        planned_for(copy.deepcopy(module), given, memory="30%", time_limit=2)
    compiled = compiled_to(copy.deepcopy(module), memory="30%", offload=tmp_path)
    check_same(step(compiled, given), step(module, given))
    (plan,) = compiled.memory_plans
    assert plan.least_bytes <= peak_of(compiled, given) <= plan.planned_bytes <= plan.budget_bytes
    assert plan.measured_bytes is not None
    assert plan.measured_bytes <= plan.planned_bytes
    assert f"moves {show_bytes(plan.moved_bytes)} out" in str(plan)
    wanted = {name: p.grad.clone() for name, p in module.named_parameters()}
    torch.manual_seed(1)
    compiled.zero_grad()
    loss = compiled(*given)
    assert mapped_files(tmp_path) > 0
    assert not list(tmp_path.iterdir())  # no names, so that nothing is left however the process ends
    loss.backward()
    check_same({name: p.grad for name, p in compiled.named_parameters()}, wanted)
    loss = compiled(*given)  # no backward follows
    del loss
    with files_of_at_most(100), pytest.raises(OutputError, match="can't be put there"):
        compiled(*given)
    gc.collect()
    assert mapped_files(tmp_path) == 0


def test_buffers_and_inputs_that_forward_changes_wait_outside_as_they_were(tmp_path: Path) -> None:
    from tests.support.torch.networks import Counting

    torch.manual_seed(0)
    module, x = Counting(), torch.randn(256, 16)
    compiled = compiled_to(copy.deepcopy(module), memory="40%", offload=tmp_path)
    for _ in range(2):
        mine, theirs = torch.ones(3), torch.ones(3)
        check_same(step(compiled, (x, mine)), step(module, (x, theirs)))
        assert torch.equal(mine, theirs)
    (plan,) = compiled.memory_plans
    assert plan.moved_bytes > 0
    assert plan.measured_bytes <= plan.budget_bytes


@contextmanager
def files_of_at_most(nbytes: int) -> Iterator[None]:
    """A limit that the system refuses to write beyond, as it does where a disk is full."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_folder_ends_in_one_error(tmp_path: Path) -> None:
    moving: Any = import_module("poetopt.torch.offload")

    with (
        files_of_at_most(1000),
        pytest.raises(OutputError, match=r"1\.20 kB can't be put there: File too large. Free some space"),
    ):
        moving.page_out(torch.ones(300), str(tmp_path))
    assert not list(tmp_path.iterdir())
    for x in (torch.randn(3, 5).T, torch.randn(4, 6)[1:3, ::2], torch.zeros(0, 3), torch.tensor(True)):
        held = moving.page_out(x, str(tmp_path))
        assert torch.equal(moving.page_in(held, x.device), x)
        assert held.stride() == x.stride()
    with pytest.raises(OptionError, match="isn't a writable folder"):
        compiled_to(nn.Linear(2, 2), memory="50%", offload=tmp_path / "none")


def test_a_budget_in_bytes_is_for_parameters_buffers_and_inputs_too() -> None:
    module, given = made("gpt")
    beside = sum(t.nbytes for t in (*module.parameters(), *module.buffers()))
    share = planned_for(module, given, memory="60%")
    plan = planned_for(module, given, memory=share.budget_bytes + share.beside_bytes)
    assert plan.budget_bytes == share.budget_bytes
    assert share.beside_bytes == beside + given[0].nbytes  # tokens and labels are one tensor, the tied weight is one
    assert all(p.grad is None for p in module.parameters())


def test_torchs_own_choice_stays_where_it_fits() -> None:
    module, given = made("resnet")
    compiled = compiled_to(copy.deepcopy(module), memory="1GB")
    check_same(step(compiled, given), step(module, given))
    (plan,) = compiled.memory_plans
    assert plan.own
    assert plan.planned_bytes == plan.torch_bytes
    assert plan.measured_bytes is not None
    assert plan.planned_bytes - 64 <= plan.measured_bytes <= plan.planned_bytes
    assert "torch's own, because it fits" in str(plan)


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("g++") is None, reason="compiles C++, reads /proc")
def test_fused_kernels_save_no_more_than_the_plan(tmp_path: Path) -> None:
    module = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.Tanh(), nn.Softplus())))
    given = (torch.randn(1024, 256),)
    compiled = compiled_to(copy.deepcopy(module), memory="60%", backend="inductor", offload=tmp_path)
    check_same(step(compiled, given), step(module, given), 1e-5)
    (plan,) = compiled.memory_plans
    assert plan.measured_bytes is None
    assert plan.recomputes > 0
    assert plan.moved_bytes > 0
    y = compiled(*given)
    assert mapped_files(tmp_path) > 0
    saved = {t.untyped_storage().data_ptr(): t.nbytes for t in y.grad_fn.saved_tensors if t is not given[0]}
    assert sum(saved.values()) - plan.moved_bytes <= plan.planned_bytes <= plan.budget_bytes < plan.torch_bytes


@pytest.mark.parametrize("memory", ["85%", "1GB"])  # ours and torch's
def test_a_loss_holds_no_more_than_its_scalar(memory: str) -> None:
    from tests.support.torch.networks import Losses

    torch.manual_seed(0)
    module, x = Losses(), torch.randn(64, 24)
    compiled = compiled_to(copy.deepcopy(module), memory=memory)
    check_same(step(compiled, (x,)), step(module, (x,)))
    (plan,) = compiled.memory_plans
    assert plan.own == (memory == "1GB")
    assert plan.measured_bytes <= plan.planned_bytes <= plan.budget_bytes


def test_a_plan_that_breaks_its_budget_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from poetopt.plan.assemble import store_all

    compiling: Any = import_module("poetopt.torch.compiled")

    module, given = made("unet")
    searched, counted, calls = compiling.solve, compiling.peak_bytes, iter(range(99))

    def broken(problem: Any, *rest: Any, **named: Any) -> Any:
        return replace(searched(problem, *rest, **named), plan=store_all(problem))

    monkeypatch.setattr(compiling, "solve", broken)
    monkeypatch.setattr(compiling, "TRIES", 1)
    with pytest.raises(NoScheduleError, match="no plan was found"):  # by the count over the graphs
        step(compiled_to(copy.deepcopy(module), memory="70%"), given)
    torch.compiler.reset()
    monkeypatch.setattr(compiling, "peak_bytes", lambda *given: counted(*given) if next(calls) < 2 else 1)
    compiled = compiled_to(module, memory="70%")
    step(compiled, given)
    (plan,) = compiled.memory_plans
    assert plan.measured_bytes is not None
    assert plan.store_all_bytes >= plan.measured_bytes > plan.budget_bytes
    assert peak_of(compiled, given) > plan.budget_bytes


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("memory", ["5%", "300kB"])
def test_a_budget_below_the_least_names_one_that_would_do(memory: str, offload: bool) -> None:
    module, given = made("resnet")
    with pytest.raises(InfeasibleError, match=r"any plan takes .* or more. A plan is known with memory=\d+") as caught:
        planned_for(module, given, memory=memory, offload=offload)
    assert "\n" not in str(caught.value)
    plan = planned_for(module, given, memory=str(caught.value).rpartition("memory=")[2], offload=offload)
    assert plan.planned_bytes <= plan.budget_bytes


def test_a_budget_below_what_stands_beside_is_refused() -> None:
    module, given = made("resnet")
    with pytest.raises(InfeasibleError, match="parameters, buffers and inputs"):
        planned_for(module, given, memory="1KB")


def test_a_module_that_cant_be_traced_ends_in_one_error() -> None:
    from tests.support.torch.networks import Branches

    x = torch.randn(64, 8)
    module = Branches()
    with pytest.raises(ModelError, match=r"Branches: torch can't trace it as one graph.*fullgraph=False"):
        compiled_to(copy.deepcopy(module), memory="99%")(x)
    with pytest.raises(ModelError, match="Branches: torch can't trace it"):
        planned_for(module, x)
    with pytest.raises(OptionError, match="give a share"):
        compiled_to(module, memory="1GB", fullgraph=False)
    broken = compiled_to(copy.deepcopy(module), memory="100%", fullgraph=False)
    check_same(step(broken, (x,)), step(module, (x,)))
    assert len(broken.memory_plans) == 2
    assert peak_of(broken, (x,)) <= sum(plan.budget_bytes for plan in broken.memory_plans)


def test_buffers_and_inputs_that_forward_changes() -> None:
    from tests.support.torch.networks import Counting

    torch.manual_seed(0)
    module, x = Counting(), torch.randn(256, 16)
    compiled = compiled_to(copy.deepcopy(module), memory="65%")
    for _ in range(3):  # the value before, each time
        mine, theirs = torch.ones(3), torch.ones(3)
        check_same(step(compiled, (x, mine)), step(module, (x, theirs)))
        assert torch.equal(mine, theirs)
    assert compiled.memory_plans[0].recomputes > 0


def test_other_shapes_get_a_plan_of_their_own_and_evaluation_none() -> None:
    module, (tokens, labels) = made("bert")
    compiled = compiled_to(copy.deepcopy(module), memory="70%")
    for rows in (4, 2):
        given = tokens[:rows], labels[:rows]
        check_same(step(compiled, given), step(module, given))
        assert peak_of(compiled, given) <= compiled.memory_plans[-1].budget_bytes
    assert len(compiled.memory_plans) == 2
    compiled.eval()
    with torch.no_grad():
        assert torch.equal(compiled(tokens, labels), module.eval()(tokens, labels))
    assert len(compiled.memory_plans) == 2


def test_a_dynamic_batch_has_one_plan_for_the_first_and_largest() -> None:
    from torch import _dynamo

    module, given = made("bert")
    compiled = compiled_to(copy.deepcopy(module), memory="70%")

    def rows(count: int) -> tuple[Any, ...]:
        cut = tuple(torch.cat([x, x])[:count] for x in given)
        for x in cut:
            _dynamo.mark_dynamic(x, 0)
        return cut

    for count in (4, 3):
        check_same(step(compiled, rows(count)), step(module, rows(count)))
        (plan,) = compiled.memory_plans
        assert plan.recomputes > 0
        assert peak_of(compiled, rows(count)) <= plan.budget_bytes * count / 3.9
    with pytest.raises(OptionError, match="a size of 8 where the plan is for 4 at most"):
        compiled(*rows(8))


@pytest.mark.parametrize("fullgraph", [True, False])
def test_more_shapes_than_torch_compiles_for_end_in_one_error(fullgraph: bool) -> None:
    from torch import _dynamo

    compiled = compiled_to(nn.Linear(4, 4), memory="120%", fullgraph=fullgraph)
    with _dynamo.config.patch(recompile_limit=2):
        for rows in (2, 3):
            compiled(torch.randn(rows, 4)).sum().backward()
        with pytest.raises(ModelError, match=r"plans for 2 sizes of inputs.*mark_dynamic"):
            compiled(torch.randn(4, 4))


def test_the_largest_batch_that_fits() -> None:
    module = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.Tanh(), nn.Softplus())))
    x = torch.randn(4, 32)
    plan = planned_for(module, x, memory="200KB", largest=True, time_limit=2)
    assert plan.batch is not None
    assert plan.batch_bound is not None
    assert 0 < plan.batch <= plan.batch_bound
    assert plan.planned_bytes + plan.beside_bytes <= 200_000
    assert f"{plan.batch} fits; none above {plan.batch_bound} does" in str(plan)
    above = x[torch.arange(plan.batch_bound + 1) % len(x)]
    with pytest.raises(InfeasibleError, match="any plan takes"):
        planned_for(module, above, memory="200KB", time_limit=2)
    with pytest.raises(OptionError, match="Give a size"):
        planned_for(module, x, memory="50%", largest=True)
    with pytest.raises(InfeasibleError, match="a batch of 1 takes"):
        planned_for(module, x, memory="20KB", largest=True)


def test_costs_are_measured_kernel_by_kernel() -> None:
    from torch import fx
    from torch._subclasses import FakeTensorMode

    timing: Any = import_module("poetopt.torch.timing")
    shapes = {"small": (8, 8), "large": (512, 512)}
    graph, seconds = fx.Graph(), {}
    state = torch.get_rng_state()
    for name, shape in shapes.items():
        x = graph.placeholder(name)
        x.meta["val"] = FakeTensorMode().from_tensor(torch.empty(shape))
        node = graph.call_function(torch.ops.aten.mm.default, (x, x))
        node.meta["val"] = x.meta["val"]
        seconds[name] = timing.seconds_of(node, True)
    assert seconds["large"] > 20 * seconds["small"] > 0
    indices = graph.call_function(torch.ops.aten.index_select.default, (x, 0, x))  # no indices: it can't run
    indices.meta["val"] = x.meta["val"]
    assert timing.seconds_of(indices, True) == timing.seconds_of(indices, False) > 0
    assert torch.equal(state, torch.get_rng_state())


def test_many_modules_in_one_process() -> None:
    for _ in range(10):  # more than torch recompiles one function
        compiled = compiled_to(nn.Linear(4, 4), memory="100%")
        compiled(torch.randn(2, 4)).sum().backward()
        assert len(compiled.memory_plans) == 1


def test_checkpointed_regions_and_other_types() -> None:
    from torch.utils.checkpoint import checkpoint

    module, (tokens, labels) = made("gpt")
    plain = copy.deepcopy(module)
    for layer in module.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    compiled = compiled_to(module, memory="60%")
    found, wanted = step(compiled, (tokens, labels)), step(plain, (tokens, labels))
    check_same(found, wanted)
    half = compiled_to(copy.deepcopy(plain), memory="60%")
    usual = compiled_to(plain, memory="100%")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check_same(step(half, (tokens, labels)), step(usual, (tokens, labels)))
    assert half.memory_plans[0].measured_bytes <= half.memory_plans[0].budget_bytes


def test_outputs_and_their_gradients_count() -> None:
    module = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.Tanh(), nn.Softplus())))
    x = torch.randn(512, 32)
    compiled = compiled_to(copy.deepcopy(module), memory="80%")
    check_same(step(compiled, (x,)), step(module, (x,)))
    (plan,) = compiled.memory_plans
    assert plan.least_bytes >= 2 * x.nbytes
    assert plan.measured_bytes is not None
    assert plan.measured_bytes <= plan.planned_bytes <= plan.budget_bytes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"memory": "much"}, "memory"),
        ({"memory": 0.4}, "Did you mean"),
        ({"memory": "50%", "backend": "eager"}, "Choose one of"),
        ({"memory": "50%", "time_limit": "soon"}, "time_limit"),
    ],
)
def test_options_that_cant_be_understood(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        po.torch.compile(nn.Linear(2, 2), **options)


def test_what_has_no_plan() -> None:
    with pytest.raises(ModelError, match="Module"):
        compiled_to(lambda x: x, memory="50%")
    with pytest.raises(ModelError, match="wants a gradient"):
        planned_for(nn.Linear(2, 2).requires_grad_(False), torch.randn(2, 2))

    class Picking(nn.Linear):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return super().forward(x[x > 0])

    with pytest.raises(ModelError, match=r"Picking: .*sizes that depend on the data can't be planned for"):
        planned_for(Picking(2, 2), torch.ones(2))
