"""Bridge between torch.compile and the solver: a module's graphs are planned, partitioned, run and measured.

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
"""Accepted share of the recomputing time: kernel times are estimates, so a smaller gap gains nothing."""
TRIES = 4
"""Attempts of a search whose graphs exceed the plan, because a kernel also writes outputs that nothing reads."""


class _Planned(Exception):  # noqa: N818 - a signal, not an error
    """Signal that ends a compilation as soon as there is a plan."""


class Compiled:
    """Module with a memory budget."""

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
        """Return the module, whose calls now go through this object."""
        module = self.module()
        assert module is not None
        compiled = self._compiled(module, self.fullgraph)

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._call_guarded(compiled, *args, **kwargs)

        module._compiled_call_impl = call
        module.memory_plans = self.plans
        return module

    def planned(self, example: Any, least: bool = False) -> MemoryPlan:
        """Return the plan for an example, or only its lower bound (`least`); nothing runs."""
        module = self.module()
        assert module is not None
        self.only_plan, self.only_least = True, least
        args = example if isinstance(example, tuple) else () if isinstance(example, dict) else (example,)
        kwargs = example if isinstance(example, dict) else {}
        compiled = self._compiled(module, True)
        try:
            self._call_guarded(compiled, *args, **kwargs)
        except _Planned:
            return self.plans[-1]
        raise ModelError(f"{self.name}: torch traced no operator of it, so there is nothing to plan")

    def _compiled(self, module: torch.nn.Module, fullgraph: bool) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:  # torch doesn't trace frames of its own layers
            return module._call_impl(*args, **kwargs)

        # torch limits recompilations by code object, so each module gets its own.
        step.__code__ = step.__code__.replace(co_name=f"step_of_{self.name}")
        backend = self._backend
        return torch.compile(step, backend=backend, fullgraph=fullgraph, dynamic=False)  # type: ignore[no-any-return]

    def _call_guarded(self, compiled: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a compiled function; turn torch's errors into one message."""
        try:
            with dynamo.patch(fail_on_recompile_limit_hit=True):  # else torch continues without a plan
                outputs = compiled(*args, **kwargs)
        except FailOnRecompileLimitHit as error:
            raise ModelError(
                f"{self.name}: there are plans for {len(self.plans)} sizes of inputs, and torch compiles no more. "
                "Call torch._dynamo.mark_dynamic(x, 0) on inputs whose batch changes, or raise "
                "torch._dynamo.config.recompile_limit."
            ) from error
        except BackendCompilerFailed as error:
            if isinstance(error.inner_exception, (PoetError, _Planned)):
                raise error.inner_exception from None
            raise ModelError(f"{self.name}: torch can't compile it: {_first_line(error.inner_exception)}") from error
        except TorchDynamoException as error:
            raise ModelError(
                f"{self.name}: torch can't trace it as one graph: {_first_line(error)}. Change that part"
                + ("." if self.only_plan or not isinstance(self.budget, Share) else ", or give fullgraph=False.")
            ) from error
        needs_gradient = any(isinstance(y, torch.Tensor) and y.requires_grad for y in tree_leaves(outputs))
        if needs_gradient and not self.plans:
            raise ModelError(f"{self.name}: torch traced no operator of it, so the budget has no effect")
        return outputs

    def _backend(self, module: fx.GraphModule, example: list[Any]) -> Any:
        plans: list[MemoryPlan] = []  # of this graph: its backward is compiled later, after other graphs

        def partition(joint: fx.GraphModule, example_inputs: Any, **options: Any) -> Graphs:
            graphs, plan = self._partition(joint, example_inputs, **options)
            plans.append(plan)
            return graphs

        if self.backend == "inductor" and not self.only_plan:
            return _inductor(module, example, partition)
        return aot_autograd(
            fw_compiler=lambda graph, example_inputs: self._with_meter(
                self._with_size_check(graph, boxed_nop(graph, example_inputs)), None
            ),
            bw_compiler=lambda graph, example_inputs: self._with_meter(boxed_nop(graph, example_inputs), plans[-1]),
            inference_compiler=self._inference,
            partition_fn=partition,
        )(module, example)

    def _inference(self, module: fx.GraphModule, example: Any) -> Any:
        if self.only_plan:
            raise ModelError(f"{self.name}: no output wants a gradient, so there is nothing to plan")
        return boxed_nop(module, example)

    def _with_size_check(self, graph: fx.GraphModule, run: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """Return a function that runs forward, and raises OptionError for sizes beyond the planned ones."""
        values = [node.meta.get("val") for node in graph.graph.find_nodes(op="placeholder")]
        limits = {position: size_of(value) for position, value in enumerate(values) if isinstance(value, torch.SymInt)}

        def held(inputs: list[Any]) -> Any:
            for position, size in limits.items():
                if size is not None and inputs[position] > size:
                    raise OptionError(
                        f"{self.name}: a size of {inputs[position]} where the plan is for {size} at most. Call with "
                        "the largest batch first."
                    )
            return run(inputs)

        return held if limits else run

    def _with_meter(self, run: Callable[[list[Any]], Any], plan: MemoryPlan | None) -> Any:
        """Return a function that runs a graph, and measures its first run; `plan` is given for backward."""
        is_first = True

        def measured(inputs: list[Any]) -> Any:
            nonlocal is_first
            if not is_first:
                return run(inputs)
            is_first = False
            with self.meter.over(inputs, forward=plan is None):
                outputs = run(inputs)
            if plan is not None:
                plan.measured_bytes = self.meter.peak
            return outputs

        measured._boxed_call = True  # type: ignore[attr-defined]
        return measured

    def _partition(
        self, module: fx.GraphModule, example_inputs: Any, *, num_fwd_outputs: int, **options: Any
    ) -> tuple[Graphs, MemoryPlan]:
        """Return forward and backward of a joint graph, and their plan."""
        options.pop("compiler", None)
        reduce_apart(module.graph)
        torch_graphs = min_cut_rematerialization_partition(
            _copy_graph(module), example_inputs, num_fwd_outputs=num_fwd_outputs, **options
        )
        try:
            joint = read(module, num_fwd_outputs, self.measure and not self.only_least)
        except ModelError as error:
            raise ModelError(f"{self.name}: {error}") from error
        problem = joint.problem(self.name, moves(joint, self.folder, self.measure) if self.folder is not None else ())
        fixed_bytes = sum(
            {
                storage: bytes_of(value)
                for node in module.graph.find_nodes(op="placeholder")
                if not is_tangent(node)
                for value in tensors_of(node)
                for storage in (value.untyped_storage()._cdata,)
            }.values()
        )
        all_bytes = peak_bytes(partitioned(joint, store_all(problem).instructions), joint)
        limit_bytes = (
            int(self.budget.fraction * all_bytes) if isinstance(self.budget, Share) else self.budget - fixed_bytes
        )
        least = hardest_step(problem, Options(ram_bytes=limit_bytes)).nbytes
        plan = MemoryPlan(self.name, limit_bytes, fixed_bytes, all_bytes, _torch_peak(torch_graphs, joint), 0, least)
        if self.only_least:
            self.plans.append(plan)
            raise _Planned
        if plan.torch_bytes is not None and plan.torch_bytes <= limit_bytes:
            plan.own, plan.planned_bytes = True, plan.torch_bytes
            graphs: Graphs = torch_graphs
        else:
            graphs = self._search_graphs(joint, problem, plan)
        self.plans.append(plan)
        self.told(str(plan))
        if self.only_plan:
            raise _Planned
        return graphs, plan

    def _search_graphs(self, joint: Joint, problem: Problem, plan: MemoryPlan) -> Graphs:
        """Return the graphs of the fastest plan within the budget. Raises InfeasibleError, NoScheduleError."""
        solution, graphs, plan.planned_bytes = self._solve_within(joint, problem, plan.budget_bytes)
        if graphs is None:
            raise self._missing_plan_error(plan, solution, self._known_budget(joint, problem, solution))
        assert solution.plan is not None
        assert solution.simulation is not None
        simulation = solution.simulation
        plan.recomputes, plan.moved_bytes = again(joint, solution.plan.instructions), simulation.bytes_written
        plan.recompute_share = simulation.overhead_j / max(simulation.energy_j - simulation.overhead_j, 1e-12)
        plan.gap, plan.scope_gap, plan.scope = solution.overhead_gap, solution.scope_gap, solution.scope
        return graphs

    def _solve_within(self, joint: Joint, problem: Problem, budget_bytes: int) -> tuple[Solution, Graphs | None, int]:
        """Return the solution within a budget, with its graphs and their peak.

        If no graphs keep the budget, they are None, and the peak is that of the first attempt.
        """
        begin, ram, first_peak = time.monotonic(), budget_bytes, 0
        options = Options(ram_bytes=0, paging=problem.paging, time_limit_s=self.time_limit_s, threads=1, gap=self.gap)
        for _ in range(TRIES):
            solution = solve(problem, replace(options, ram_bytes=max(ram, 0)), begin=begin)
            if solution.plan is None:
                break
            graphs = partitioned(joint, solution.plan.instructions, self.folder or "")
            peak = peak_bytes(graphs, joint)
            if peak <= budget_bytes:
                return solution, graphs, peak
            first_peak, ram = first_peak or peak, ram - (peak - budget_bytes)
        return solution, None, first_peak

    def _known_budget(self, joint: Joint, problem: Problem, solution: Solution) -> int | None:
        """Return a budget that its plan's graphs keep, close to the least that the solver knows, or None."""
        budget = solution.least_ram_bytes
        for _ in range(TRIES):
            if not budget:
                return None
            _, graphs, peak = self._solve_within(joint, problem, budget)
            if graphs is not None:
                return budget
            budget = peak if peak > budget else 0
        return None

    def _missing_plan_error(self, plan: MemoryPlan, solution: Solution, known_bytes: int | None) -> PoetError:
        """Return the error that explains the missing plan, with a budget that has one."""
        is_share, least = isinstance(self.budget, Share), max(plan.least_bytes, solution.ram_bound_bytes or 0)
        fixed_bytes = 0 if is_share else plan.beside_bytes
        fixed_text = f" and {show_bytes(fixed_bytes)} of parameters, buffers and inputs" if fixed_bytes else ""
        message = f"{self.name}: the budget leaves {show_bytes(max(plan.budget_bytes, 0))} for a step{fixed_text}, "
        if plan.budget_bytes >= least:
            message += f"and no plan was found for so little, though the proven lower bound is {show_bytes(least)}"
        else:
            message += f"and any plan takes {show_bytes(least)} or more"
        if known_bytes is not None:
            per_mille = -(-1000 * known_bytes // plan.store_all_bytes)  # rounded up, so that it suffices
            message += (
                f". A plan is known with memory={f'{per_mille / 10}%' if is_share else known_bytes + fixed_bytes}"
            )
        is_proven = plan.budget_bytes < least or solution.exhausted
        return (InfeasibleError if is_proven else NoScheduleError)(message)


class Meter(TorchDispatchMode):
    """Meter of the live storages that forward and backward allocate; the peak counts from the first forward on.

    A storage counts once, from the operator that allocates it until its last owner releases it. Inputs of forward don't
    count; of backward's inputs, the gradients of the outputs count. Tensors that are paged out don't count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = self.open = self.turn = 0
        self.known: set[int] = set()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return that compiled code runs unchanged under this mode."""
        return True

    @contextmanager
    def over(self, inputs: list[Any], forward: bool) -> Iterator[None]:
        """Count while a graph runs on its inputs."""
        if forward and not self.open:
            self.live = self.peak = 0
            self.turn += 1
            self.known.clear()
        self.open += 1 if forward else -1
        for value in inputs:
            self.see(value, counts=not forward)
        with self:
            yield

    def see(self, value: Any, *, counts: bool = True) -> None:
        """Count the storage of a tensor if it is new."""
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return
        storage, turn = value.untyped_storage(), self.turn
        key, size = storage._cdata, storage.nbytes() if counts else 0
        if key in self.known:
            return
        self.known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)

        def release() -> None:
            if turn == self.turn:
                self.known.discard(key)
                self.live -= size

        weakref.finalize(storage, release)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = function(*args, **(kwargs or {}))
        for value in tree_leaves(outputs):
            self.see(value, counts=function is not PAGE_OUT)
        return outputs


def _inductor(module: fx.GraphModule, example: list[Any], partition: Callable[..., Graphs]) -> Any:
    """Compile a graph with inductor, partitioned by `partition`."""
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.custom_graph_pass import CustomPartitionerFn

    class Ours(CustomPartitionerFn):
        def __call__(self, joint: fx.GraphModule, example_inputs: Any, **options: Any) -> Graphs:
            return partition(joint, example_inputs, **options)

        def uuid(self) -> None:
            return None

    # Inductor's cache finds results by the graph alone, without the plan.
    return compile_fx(module, example, config_patches={"custom_partitioner_fn": Ours(), "fx_graph_cache": False})


def _torch_peak(graphs: Graphs, joint: Joint) -> int | None:
    """Return `peak_bytes`, or None if torch's partitioner added a tensor of unknown size."""
    try:
        return peak_bytes(graphs, joint)
    except ModelError:
        return None


def _copy_graph(module: fx.GraphModule) -> fx.GraphModule:
    """Return a copy of the graph with the same fake tensors: torch's partitioner changes its argument."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in module.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule(module, graph)


def _first_line(error: BaseException) -> str:
    """Return the first non-empty line of an error message."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
