"""A budget of memory for a torch module's step: what was planned, what is proven of it, and what was measured."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from poetopt.formulations.goal import TIME
from poetopt.torch.tensors import check_module, needed
from poetopt.util.errors import BackendUnavailableError, OptionError
from poetopt.util.units import Share, parse_ram, parse_time, show_bytes, show_share

LEAST_TORCH = (2, 10)
"""torch cuts graphs whose nodes are told where to be, and says which outputs are written into inputs, since then."""
BACKENDS = ("aot_eager", "inductor")


@dataclass
class MemoryPlan:
    """What a step of one graph takes, above its parameters, buffers and inputs, and what recomputing costs.

    budget_bytes
        What the step may take.
    beside_bytes
        Parameters, buffers and inputs.
    store_all_bytes, torch_bytes
        The peak where nothing is computed again, and where torch chooses; None where torch's can't be told.
    planned_bytes
        The peak of what runs; of the graphs themselves, each storage counted while somebody needs it.
    least_bytes
        No order of computing takes less in which each kernel of backward runs once, in torch's order.
    own
        Whether torch's choice runs, because it fits.
    recomputes
        Kernels that run again.
    recompute_share
        Their time, and that of moving, as a share of the step's without either.
    moved_bytes
        What is put outside of memory in a step (`offload=True`).
    gap, scope_gap, scope
        The share of that time which another plan could save at most: any plan, and one of the scope that was searched.
        None where torch's choice runs.
    measured_bytes
        The peak of the first step, of all graphs together; None before it, and with inductor, whose code allocates out
        of sight.
    batch, batch_bound
        The largest batch that was found to fit, and the one above which none does; None where that wasn't asked for.
    """

    name: str
    budget_bytes: int
    beside_bytes: int
    store_all_bytes: int
    torch_bytes: int | None
    planned_bytes: int
    least_bytes: int
    own: bool = False
    recomputes: int = 0
    recompute_share: float = 0.0
    moved_bytes: int = 0
    gap: float | None = None
    scope_gap: float | None = None
    scope: str = ""
    measured_bytes: int | None = None
    batch: int | None = None
    batch_bound: int | None = None

    def __str__(self) -> str:
        from poetopt.report.proof import Claim

        share = show_share(self.planned_bytes / self.store_all_bytes) if self.store_all_bytes else "all"
        lines = [
            f"{self.name}: a step takes {show_bytes(self.planned_bytes)} of {show_bytes(self.budget_bytes)}, {share} "
            f"of the {show_bytes(self.store_all_bytes)} without recomputing",
            f"  beside     {show_bytes(self.beside_bytes)} of parameters, buffers and inputs",
        ]
        if self.own:
            lines.append("  choice     torch's own, which fits: nothing is gained by another")
        else:
            theirs = "can't be told" if self.torch_bytes is None else f"takes {show_bytes(self.torch_bytes)}"
            moved = f" and puts {show_bytes(self.moved_bytes)} outside" if self.moved_bytes else ""
            lines.append(
                f"  recomputes {self.recomputes} kernels{moved}, {show_share(self.recompute_share)} of a step's time; "
                f"torch's own choice {theirs}"
            )
            claim = Claim(
                scope=self.scope,
                gap=self.gap,
                scope_gap=self.scope_gap,
                goal=TIME.name,
                paging=self.moved_bytes > 0,
            )
            lines += [f"  proof      {line}" for line in claim.plain()]
        lines.append(f"  least      no plan takes less than {show_bytes(self.least_bytes)}")
        if self.batch is not None:
            lines.append(f"  batch      {self.batch} fits; none above {self.batch_bound} does")
        if self.measured_bytes is not None:
            lines.append(f"  measured   {show_bytes(self.measured_bytes)} in the first step")
        return "\n".join(lines)


def compile_module(
    module: Any,
    *,
    memory: str | float | Share,
    time_limit: str | float = 30.0,
    backend: str = "aot_eager",
    fullgraph: bool = True,
    progress: bool = False,
    measure: bool = True,
    offload: bool | str | Path = False,
) -> Any:
    """Compile a torch module in place so that its training step keeps a budget of memory at every point; gives it back.

        net = po.torch.compile(net, memory="60%")
        for x, y in batches:
            net(x, y).backward()  # net gives its loss
        print(*net.memory_plans)

    memory
        Bytes or a size (`"8GB"`) for all of the step: parameters, buffers, inputs, gradients and what is computed. Or
        a share (`"60%"`) of what is computed where nothing is computed again, gradients included. Live tensors count,
        what a kernel allocates inside of itself doesn't; nor does what is computed outside of the module (so let
        `forward` give the loss), gradients of earlier steps that are still there, and states of an optimizer.
    time_limit
        Of the search, for each graph.
    backend
        `aot_eager` runs torch's kernels in the order that was planned; `inductor` fuses and orders them anew: then the
        plan's peak is an estimate, and isn't measured.
    fullgraph
        False lets torch break the module into several graphs. Each gets its share of the budget, which has to be a
        share, so that their peaks add up to no more than that of the whole; what runs between them isn't planned.
    progress
        Write the plan to stderr as soon as there is one.
    measure
        Each kernel runs a few times by itself, on random data, and costs what it took; False: costs are by FLOPs and
        bytes, the same on every machine.
    offload
        Tensors may wait outside, too, where that costs less than recomputing: those of an accelerator in the host's
        memory, those of a CPU in files, of a folder that is given or of Python's own (`TMPDIR`). On a CPU that frees
        memory if the folder is on a disk, from which the system may write them. The files have no names, and are gone
        with their tensors.

    The first call with new shapes plans, and `module.memory_plans` grows by a `MemoryPlan` for each graph. Random
    numbers are drawn once, so that Dropout's mask is the same in backward. Gradients are torch's own bit for bit with
    `aot_eager`. Without gradients (`torch.no_grad`) nothing is planned. A copy of the module, or what pickle gives
    back, runs as it is written: compile it anew.

    Raises OptionError for a budget that can't be understood, ModelError for a module that torch can't trace or that
    can't be planned, BackendUnavailableError without a torch that has the hook. The first call raises InfeasibleError
    where no plan keeps the budget, with one that would do, and NoScheduleError where none was found in time. A step
    raises OutputError where the folder is full.
    """
    _checked(module, backend)
    budget = parse_ram(memory, option="memory")
    if not fullgraph and not isinstance(budget, Share):
        raise OptionError(
            f"memory={memory!r}: with fullgraph=False give a share such as '60%', of which each graph gets its own; a "
            "size needs the whole module in one graph"
        )
    from poetopt.torch.compiled import Compiled

    limit_s, folder = _seconds(time_limit), _folder(offload)
    return Compiled(module, budget, limit_s, backend, fullgraph, progress, measure, folder=folder).attached()


def plan(
    module: Any,
    example: Any,
    *,
    memory: str | float | Share = "100%",
    time_limit: str | float = 30.0,
    measure: bool = True,
    largest: bool = False,
    offload: bool | str | Path = False,
) -> MemoryPlan:
    """The plan that `po.torch.compile` would run on an example, without running the module.

    module, memory, time_limit, measure, offload
        As there.
    example
        A tensor, or a tuple of the arguments of `forward`, or a dict of keywords.
    largest
        The plan of the largest batch that fits, in its stead: tensors of the example that have the first one's
        dimension 0 are cut or repeated along it. `memory` has to be a size. Up to six batches are planned for, each
        until it is found to fit: recomputing isn't the least.

    Raises what that raises.
    """
    _checked(module, "aot_eager")
    budget, limit_s, folder = parse_ram(memory, option="memory"), _seconds(time_limit), _folder(offload)
    from poetopt.torch.compiled import Compiled

    if not largest:
        return Compiled(module, budget, limit_s, measure=measure, folder=folder).planned(example)
    if isinstance(budget, Share):
        raise OptionError(
            f"memory={memory!r}: the largest batch within a share isn't defined; give a size such as '8GB'"
        )
    from poetopt.torch.batch import largest_batch

    trial = partial(Compiled, module, budget, limit_s, measure=measure, gap=1.0, folder=folder)
    return largest_batch(
        example, budget, lambda given: trial().planned(given, least=True), lambda given: trial().planned(given)
    )


def _seconds(time_limit: str | float) -> float:
    return parse_time(time_limit, option="time_limit")


def _folder(offload: bool | str | Path) -> str | None:
    """The folder that tensors are put into; None where all stay. Raises OptionError where there is no such folder."""
    if offload is False:
        return None
    folder = tempfile.gettempdir() if offload is True else str(offload)
    if not os.access(folder, os.W_OK | os.X_OK) or not os.path.isdir(folder):
        raise OptionError(f"offload={folder!r}: it isn't a folder that can be written to")
    return folder


def _checked(module: Any, backend: str) -> None:
    """Raise BackendUnavailableError, ModelError or OptionError for what can't be compiled with."""
    torch = needed()
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < LEAST_TORCH:
        raise BackendUnavailableError(
            f"torch {torch.__version__} doesn't say enough of its graphs; this needs "
            f"{'.'.join(map(str, LEAST_TORCH))} or newer: pip install --upgrade torch"
        )
    check_module(module)
    if backend not in BACKENDS:
        raise OptionError(f"backend={backend!r}: choose one of {', '.join(BACKENDS)}")
