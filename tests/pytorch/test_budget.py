"""`po.torch.compile`: gradients are torch's, the peak that is measured keeps the budget, and what can't be is said."""

from __future__ import annotations

import copy
import gc
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
from poetopt.util.errors import InfeasibleError, NoScheduleError, OutputError
from poetopt.util.units import show_bytes
from tests.later import ALL_USE_TORCH, later

pytestmark = ALL_USE_TORCH
torch = later("torch")

KINDS = ("resnet", "mobilenet", "unet", "gpt", "bert")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from tests.pytorch.modules import one_thread

    monkeypatch.setattr(import_module("poetopt.torch.compiled"), "SETTINGS", (0.2, 0.6))  # two are enough here
    with one_thread():
        torch.compiler.reset()
        yield
        torch.compiler.reset()


compiled_to = partial(po.torch.compile, time_limit=6, measure=False)
planned_for = partial(po.torch.plan, time_limit=6, measure=False)


def made(kind: str) -> tuple[Any, tuple[Any, ...]]:
    from tests.pytorch.networks import made as network

    return network(kind)


def step(module: Any, given: tuple[Any, ...], seed: int = 1) -> dict[str, Any]:
    """Gradients of one step, and buffers after it."""
    torch.manual_seed(seed)
    module.zero_grad()
    module(*given).sum().backward()
    gradients = {f"{name}.grad": p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    return {**gradients, **{name: buffer.clone() for name, buffer in module.named_buffers()}}


def check_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        size = float(value.abs().max()) if value.numel() else 0.0
        torch.testing.assert_close(found[key], value, rtol=0, atol=1e-6 * size)


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
    assert f"puts {show_bytes(plan.moved_bytes)} outside" in str(plan)
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


def test_a_budget_below_the_least_names_one_that_would_do() -> None:
    module, given = made("resnet")
    with pytest.raises(InfeasibleError, match=r"any plan takes .* or more; one is known with memory=\d+") as caught:
        compiled_to(copy.deepcopy(module), memory="20%")(*given)
    assert "\n" not in str(caught.value)
    known = float(str(caught.value).rpartition(", ")[2].removesuffix("%"))
    plan = planned_for(module, given, memory=f"{known + 0.1}%")
    assert plan.planned_bytes <= plan.budget_bytes
    with pytest.raises(InfeasibleError, match="parameters, buffers and inputs"):
        planned_for(module, given, memory="1KB")
