"""Between torch.compile and the engine: a module's graphs as they come, planned, cut in two, run and measured.

Imports torch: only `po.torch.compile` and `po.torch.plan` import it.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._dynamo import config as dynamo
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._dynamo.exc import BackendCompilerFailed, FailOnRecompileLimitHit, TorchDynamoException
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from poetopt.graph.problem import Problem
from poetopt.plan.assemble import store_all
from poetopt.search.diagnosis.solve import solve
from poetopt.search.limits import hardest_step
from poetopt.search.solution import Options, Solution
from poetopt.torch.budget import MemoryPlan
from poetopt.torch.joint import Joint, bytes_of, is_tangent, read, reduce_apart, tensors_of
from poetopt.torch.offload import PAGE_OUT, moves
from poetopt.torch.partition import Graphs, again, partitioned, peak_bytes
from poetopt.torch.timing import size_of
from poetopt.util.errors import InfeasibleError, ModelError, NoScheduleError, OptionError, PoetError
from poetopt.util.progress import telling
from poetopt.util.units import Share, show_bytes

GAP = 0.01
"""Of the time that recomputing takes: kernels' times are estimates, so that nothing is gained by more."""
TRIES = 4
"""Of a search, where the graphs take a little more than the plan: outputs that a kernel writes though nobody asks."""


class _Planned(Exception):  # noqa: N818 - an end, and no error
    """Ends a compilation as soon as there is a plan."""


class Compiled:
    """A module with a budget."""

    def __init__(
        self,
        module: torch.nn.Module,
        budget: int | Share,
        time_limit_s: float,
        backend: str = "aot_eager",
        fullgraph: bool = True,
        progress: bool = False,
        measure: bool = True,
        gap: float = GAP,
        folder: str | None = None,
    ) -> None:
        self.name = type(module).__name__
        self.module = weakref.ref(module)
        self.budget, self.time_limit_s, self.backend, self.fullgraph = budget, time_limit_s, backend, fullgraph
        self.told, self.measure, self.gap, self.folder = telling(progress), measure, gap, folder
        self.plans: list[MemoryPlan] = []
        self.meter = Meter()
        self.only_plan = self.only_least = False

    def attached(self) -> torch.nn.Module:
        """The module, which is called through this from now on."""
        module = self.module()
        assert module is not None
        compiled = self._compiled(module, self.fullgraph)

        def call(*given: Any, **named: Any) -> Any:
            return self._guarded(compiled, *given, **named)

        module._compiled_call_impl = call
        module.memory_plans = self.plans
        return module

    def planned(self, example: Any, least: bool = False) -> MemoryPlan:
        """The plan for an example, or what none takes less than; nothing runs."""
        module = self.module()
        assert module is not None
        self.only_plan, self.only_least = True, least
        given = example if isinstance(example, tuple) else () if isinstance(example, dict) else (example,)
        named = example if isinstance(example, dict) else {}
        compiled = self._compiled(module, True)
        try:
            self._guarded(compiled, *given, **named)
        except _Planned:
            return self.plans[-1]
        raise ModelError(f"{self.name}: torch traced nothing of it; there is nothing to plan")

    def _compiled(self, module: torch.nn.Module, fullgraph: bool) -> Callable[..., Any]:
        def whole(*given: Any, **named: Any) -> Any:  # torch traces no frame of its own layers alone
            return module._call_impl(*given, **named)

        # torch counts recompilations by code object, and gives up after a few: each module has its own.
        whole.__code__ = whole.__code__.replace(co_name=f"step_of_{self.name}")
        backend = self._backend
        return torch.compile(whole, backend=backend, fullgraph=fullgraph, dynamic=False)  # type: ignore[no-any-return]

    def _guarded(self, compiled: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Call what torch compiled; what fails on the way ends in one message of ours."""
        try:
            with dynamo.patch(fail_on_recompile_limit_hit=True):  # torch would go on without a plan
                found = compiled(*given, **named)
        except FailOnRecompileLimitHit as error:
            raise ModelError(
                f"{self.name}: there are plans for {len(self.plans)} sizes of inputs, as many as torch compiles for; "
                "call torch._dynamo.mark_dynamic(x, 0) on inputs whose batch changes, or raise "
                "torch._dynamo.config.recompile_limit"
            ) from error
        except BackendCompilerFailed as error:
            if isinstance(error.inner_exception, (PoetError, _Planned)):
                raise error.inner_exception from None
            raise ModelError(f"{self.name}: torch can't compile it: {_first(error.inner_exception)}") from error
        except TorchDynamoException as error:
            raise ModelError(
                f"{self.name}: torch can't trace it as one graph: {_first(error)}; change that part"
                + ("" if self.only_plan or not isinstance(self.budget, Share) else ", or give fullgraph=False")
            ) from error
        wanted = any(isinstance(y, torch.Tensor) and y.requires_grad for y in tree_leaves(found))
        if wanted and not self.plans:
            raise ModelError(f"{self.name}: torch could trace nothing of it, so that the budget can't be kept")
        return found

    def _backend(self, module: fx.GraphModule, example: list[Any]) -> Any:
        plans: list[MemoryPlan] = []  # of this graph: backward is compiled later, when others may have followed

        def partition(joint: fx.GraphModule, given: Any, **options: Any) -> Graphs:
            graphs, plan = self._partition(joint, given, **options)
            plans.append(plan)
            return graphs

        if self.backend == "inductor" and not self.only_plan:
            return _inductor(module, example, partition)
        return aot_autograd(
            fw_compiler=lambda graph, given: self._measured(self._within(graph, boxed_nop(graph, given)), None),
            bw_compiler=lambda graph, given: self._measured(boxed_nop(graph, given), plans[-1]),
            inference_compiler=self._inference,
            partition_fn=partition,
        )(module, example)

    def _inference(self, module: fx.GraphModule, example: Any) -> Any:
        if self.only_plan:
            raise ModelError(f"{self.name}: nothing of it wants a gradient; there is nothing to plan")
        return boxed_nop(module, example)

    def _within(self, graph: fx.GraphModule, run: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """What runs forward, held to the sizes that were planned for."""
        values = [node.meta.get("val") for node in graph.graph.find_nodes(op="placeholder")]
        most = {place: size_of(value) for place, value in enumerate(values) if isinstance(value, torch.SymInt)}

        def held(given: list[Any]) -> Any:
            for place, size in most.items():
                if size is not None and given[place] > size:
                    raise OptionError(
                        f"{self.name}: a size of {given[place]} where the plan is for {size} at most; call with the "
                        "largest batch first"
                    )
            return run(given)

        return held if most else run

    def _measured(self, run: Callable[[list[Any]], Any], plan: MemoryPlan | None) -> Any:
        """What runs a graph, backward where its plan is given; the first run is measured, too."""
        first = True

        def measured(given: list[Any]) -> Any:
            nonlocal first
            if not first:
                return run(given)
            first = False
            with self.meter.over(given, forward=plan is None):
                found = run(given)
            if plan is not None:
                plan.measured_bytes = self.meter.peak
            return found

        measured._boxed_call = True  # type: ignore[attr-defined]
        return measured

    def _partition(
        self, module: fx.GraphModule, given: Any, *, num_fwd_outputs: int, **options: Any
    ) -> tuple[Graphs, MemoryPlan]:
        """The forward and backward graphs of one joint graph, and their plan."""
        options.pop("compiler", None)
        reduce_apart(module.graph)
        own = min_cut_rematerialization_partition(_copied(module), given, num_fwd_outputs=num_fwd_outputs, **options)
        try:
            joint = read(module, num_fwd_outputs, self.measure and not self.only_least)
        except ModelError as error:
            raise ModelError(f"{self.name}: {error}") from error
        problem = joint.problem(self.name, moves(joint, self.folder, self.measure) if self.folder is not None else ())
        beside = sum(
            {
                storage: bytes_of(value)
                for node in module.graph.find_nodes(op="placeholder")
                if not is_tangent(node)
                for value in tensors_of(node)
                for storage in (value.untyped_storage()._cdata,)
            }.values()
        )
        all_bytes = peak_bytes(partitioned(joint, store_all(problem).instructions), joint)
        may = int(self.budget.fraction * all_bytes) if isinstance(self.budget, Share) else self.budget - beside
        least = hardest_step(problem, Options(ram_bytes=may)).nbytes
        plan = MemoryPlan(self.name, may, beside, all_bytes, _own_peak(own, joint), 0, least)
        if self.only_least:
            self.plans.append(plan)
            raise _Planned
        if plan.torch_bytes is not None and plan.torch_bytes <= may:
            plan.own, plan.planned_bytes = True, plan.torch_bytes
            graphs: Graphs = own
        else:
            graphs = self._searched(joint, problem, plan)
        self.plans.append(plan)
        self.told(str(plan))
        if self.only_plan:
            raise _Planned
        return graphs, plan

    def _searched(self, joint: Joint, problem: Problem, plan: MemoryPlan) -> Graphs:
        """The graphs of the plan of least time whose peak keeps the budget. Raises InfeasibleError, NoScheduleError."""
        solution, graphs, plan.planned_bytes = self._keeping(joint, problem, plan.budget_bytes)
        if graphs is None:
            raise self._none(plan, solution, self._known(joint, problem, solution))
        assert solution.plan is not None
        assert solution.simulation is not None
        done = solution.simulation
        plan.recomputes, plan.moved_bytes = again(joint, solution.plan.instructions), done.bytes_written
        plan.recompute_share = done.overhead_j / max(done.energy_j - done.overhead_j, 1e-12)
        plan.gap, plan.scope_gap, plan.scope = solution.overhead_gap, solution.scope_gap, solution.scope
        return graphs

    def _keeping(self, joint: Joint, problem: Problem, budget_bytes: int) -> tuple[Solution, Graphs | None, int]:
        """The solution within a budget, its graphs and their peak; None: there are none, with the peak of the first."""
        begin, ram, first = time.monotonic(), budget_bytes, 0
        options = Options(ram_bytes=0, paging=problem.paging, time_limit_s=self.time_limit_s, threads=1, gap=self.gap)
        for _ in range(TRIES):
            solution = solve(problem, replace(options, ram_bytes=max(ram, 0)), begin=begin)
            if solution.plan is None:
                break
            graphs = partitioned(joint, solution.plan.instructions, self.folder or "")
            taken = peak_bytes(graphs, joint)
            if taken <= budget_bytes:
                return solution, graphs, taken
            first, ram = first or taken, ram - (taken - budget_bytes)
        return solution, None, first

    def _known(self, joint: Joint, problem: Problem, solution: Solution) -> int | None:
        """A budget whose plan's graphs keep it, near the least that the solver knows; None: none is known."""
        budget = solution.least_ram_bytes
        for _ in range(TRIES):
            if not budget:
                return None
            _, graphs, taken = self._keeping(joint, problem, budget)
            if graphs is not None:
                return budget
            budget = taken if taken > budget else 0
        return None

    def _none(self, plan: MemoryPlan, solution: Solution, known: int | None) -> PoetError:
        """Says why there is no plan, and with which budget there is one."""
        share, least = isinstance(self.budget, Share), max(plan.least_bytes, solution.ram_bound_bytes or 0)
        more = 0 if share else plan.beside_bytes
        beside = f" and {show_bytes(more)} of parameters, buffers and inputs" if more else ""
        words = f"{self.name}: the budget leaves {show_bytes(max(plan.budget_bytes, 0))} for a step{beside}, "
        if plan.budget_bytes >= least:
            words += f"and no plan was found that takes so little; none is proven to take more than {show_bytes(least)}"
        else:
            words += f"and any plan takes {show_bytes(least)} or more"
        if known is not None:
            per_mille = -(-1000 * known // plan.store_all_bytes)  # never below what it takes
            words += f"; one is known with memory={f'{per_mille / 10}%' if share else known + more}"
        proven = plan.budget_bytes < least or solution.exhausted
        return (InfeasibleError if proven else NoScheduleError)(words)


class Meter(TorchDispatchMode):
    """Counts the bytes of live storages that forward and backward allocate; the peak from the first forward on.

    A storage counts once, from the operator that gives it until nobody has it, whoever holds it. What forward is given
    is there before; of what backward is given, the outputs' gradients count. What is paged out counts as nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = self.open = self.turn = 0
        self.known: set[int] = set()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code runs as it is under this mode."""
        return True

    @contextmanager
    def over(self, given: list[Any], forward: bool) -> Iterator[None]:
        """Count while a graph runs on what it is given."""
        if forward and not self.open:
            self.live = self.peak = 0
            self.turn += 1
            self.known.clear()
        self.open += 1 if forward else -1
        for value in given:
            self.see(value, counts=not forward)
        with self:
            yield

    def see(self, value: Any, *, counts: bool = True) -> None:
        """Count a tensor's storage, if it is new."""
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return
        storage, turn = value.untyped_storage(), self.turn
        key, size = storage._cdata, storage.nbytes() if counts else 0
        if key in self.known:
            return
        self.known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)

        def gone() -> None:
            if turn == self.turn:
                self.known.discard(key)
                self.live -= size

        weakref.finalize(storage, gone)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for value in tree_leaves(found):
            self.see(value, counts=function is not PAGE_OUT)
        return found


def _inductor(module: fx.GraphModule, example: list[Any], partition: Callable[..., Graphs]) -> Any:
    """What inductor makes of a graph that is cut in two by `partition`."""
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.custom_graph_pass import CustomPartitionerFn

    class Ours(CustomPartitionerFn):
        def __call__(self, joint: fx.GraphModule, given: Any, **options: Any) -> Graphs:
            return partition(joint, given, **options)

        def uuid(self) -> None:
            return None

    # A plan isn't to be found in a cache by the graph alone.
    return compile_fx(module, example, config_patches={"custom_partitioner_fn": Ours(), "fx_graph_cache": False})


def _own_peak(graphs: Graphs, joint: Joint) -> int | None:
    """`peak_bytes`; None where torch's partitioner put something into its graphs whose size it doesn't say."""
    try:
        return peak_bytes(graphs, joint)
    except ModelError:
        return None


def _copied(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph once more, of the same fake tensors: torch's partitioner changes what it takes."""
    graph, now = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in module.graph.nodes:
        now[node] = graph.node_copy(node, now.__getitem__)
    return fx.GraphModule(module, graph)


def _first(error: BaseException) -> str:
    """The first line of a message that says something."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
