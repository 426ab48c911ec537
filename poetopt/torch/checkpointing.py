"""The recomputes of a plan in torch, by the selective policy of torch.utils.checkpoint."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from poetopt.torch.counterparts import MOVES, matched
from poetopt.torch.fates import Fate, Recomputation, recomputation
from poetopt.torch.needed import check_module, needed
from poetopt.torch.tensors import shape_word, stored_in
from poetopt.util.errors import ExecutionError, PlanError
from poetopt.util.notes import listed

if TYPE_CHECKING:
    from poetopt.graph import Graph
    from poetopt.plan.codec import PlanFile
    from poetopt.plan.instructions import Plan
    from poetopt.report.report import Report
    from poetopt.torch.parts import Part

Loss = Callable[[Any], Any]


@dataclass(frozen=True)
class Checkpointed:
    """A module with a plan's recomputes, and what both took.

    module
        To be called in the module's stead.
    parts
        How many parts of it are checkpointed.
    kept_instead
        Operators that the plan recomputes and torch keeps, as what is cut there needs them.
    unmapped
        Operators that the plan recomputes and that are no function of their own in the module, as inside of attention.
    peak_bytes, plain_peak_bytes
        Most bytes of tensors that were live at once in a step: with the policy, and of the module as it was. Inputs
        count; parameters, buffers and the parameters' gradients don't, nor what kernels take inside.
    plan_peak_bytes, store_all_peak_bytes
        What the plan takes by its simulation, and ordinary training: workspaces and kernels count there.
    """

    module: Any = field(repr=False)
    parts: int
    kept_instead: tuple[str, ...]
    unmapped: tuple[str, ...]
    peak_bytes: int
    plain_peak_bytes: int
    plan_peak_bytes: int
    store_all_peak_bytes: int

    @property
    def saved(self) -> float:
        """The share of the module's own peak that the policy spares."""
        return 1 - self.peak_bytes / self.plain_peak_bytes

    @property
    def planned(self) -> float:
        """The same of the plan."""
        return 1 - self.plan_peak_bytes / self.store_all_peak_bytes

    def __str__(self) -> str:
        kept = f"; kept instead of recomputed: {listed(self.kept_instead)}" if self.kept_instead else ""
        kept += f"; without a counterpart: {listed(self.unmapped)}" if self.unmapped else ""
        return (
            f"{self.parts} checkpointed parts: {self.peak_bytes:,} B instead of {self.plain_peak_bytes:,} B "
            f"({self.saved:.0%} less); the plan {self.plan_peak_bytes:,} B instead of {self.store_all_peak_bytes:,} B "
            f"({self.planned:.0%} less){kept}"
        )


@dataclass(frozen=True)
class CheckpointPolicy:
    """What a plan recomputes, for the module that its network was exported from.

    plan
        The plan.
    recomputed
        Names of the network's operators that it recomputes.
    """

    plan: Plan
    recomputed: tuple[str, ...]
    _wanted: Recomputation = field(repr=False)

    def apply(self, module: Any, example: Any, *, loss: Loss | None = None) -> Checkpointed:
        """The module with checkpointed parts, cut as takes the fewest bytes.

        module
            What the plan's network was exported from, in the same mode. What comes back has its layers, parameters and
            buffers, not copies: an optimizer of the module's parameters trains it.
        example
            Its positional arguments, or the only one. Copies of the module take a step with them for each way to cut.
        loss
            Of the module's output, a scalar; by default the mean of its squares.

        Gradients are bit for bit the module's, and running statistics move once a step: both are checked.

        Raises PlanError where the module has other parameters than the network, torch.fx has no program of it, a
        function of a part works in place, or no way to cut takes less than the module as it is.
        """
        from poetopt.api.problems import store_all_peak_bytes
        from poetopt.plan.simulate import simulate
        from poetopt.torch.live_bytes import stepped
        from poetopt.torch.parts import cuttings
        from poetopt.torch.tracing import program_of, trace_of

        needed()
        check_module(module)
        _check_same(module, self._wanted.network)
        arguments = tuple(example) if isinstance(example, (tuple, list)) else (example,)
        program = program_of(module)
        trace = trace_of(program, arguments)
        matches = matched(trace.calls, self._wanted.network)
        mapped = {name for names in matches.values() for name in names}
        mapped |= {entry.name for entry in self._wanted.network.operators if entry.view or entry.kind in MOVES}
        returned = {index: names[-1] for index, names in matches.items()}
        choices = cuttings(program, trace, returned, self._wanted.fates)
        for part in dict.fromkeys(part for choice in choices for part in choice.parts):
            if wrong := [what for node, what in trace.in_place.items() if part.first <= node <= part.last]:
                raise PlanError(
                    f"{wrong[0]} works in place, over what a recompute would read; make it one that doesn't "
                    "(inplace=False)"
                )
        plain = stepped(copy.deepcopy(module), arguments, loss)
        best = None
        for choice in choices:
            twin = copy.deepcopy(module)
            step = stepped(twin, arguments, loss, _checkpointed(program_of(twin), choice.parts))
            if step.results != plain.results:
                raise ExecutionError(
                    f"{type(module).__name__}: gradients or statistics with checkpoints differ from those without; "
                    "please report the module and the plan"
                )
            if best is None or step.peak_bytes < best[0]:
                best = step.peak_bytes, choice
        if best is None or best[0] >= plain.peak_bytes:
            raise PlanError(
                f"{type(module).__name__}: the plan's recomputes spare nothing in torch, which reruns parts of the "
                f"program as a whole: {best[0] if best else 0:,} B, and {plain.peak_bytes:,} B as it is"
            )
        peak, choice = best
        return Checkpointed(
            _checkpointed(program, choice.parts),
            len(choice.parts),
            choice.kept_instead,
            tuple(name for name in self.recomputed if name not in mapped),
            peak,
            plain.peak_bytes,
            simulate(self.plan).peak_bytes,
            store_all_peak_bytes(self.plan.problem),
        )


def checkpoint_policy(plan: Plan | PlanFile | Report | str | os.PathLike[str]) -> CheckpointPolicy:
    """The recomputes of a plan as a policy for torch.utils.checkpoint.

    plan
        A plan, what `solve` or `load_plan` gave, or a plan file's path.

    Raises PlanError for a plan that pages, that recomputes nothing or operators of the backward pass, or that has no
    network behind it.
    """
    from poetopt.api.plans import plan_in, read_plan

    found = plan_in(read_plan(plan))
    wanted = recomputation(found)
    names = tuple(name for name, fate in wanted.fates.items() if fate is Fate.RECOMPUTED)
    return CheckpointPolicy(found, names, wanted)


def _check_same(module: Any, network: Graph) -> None:
    """Raise PlanError for a module with other parameters than the network's."""
    has = {
        name: tuple(tensor.shape) for entry in stored_in(module) for name in entry.names for tensor in (entry.tensor,)
    }
    for name in network.trained:
        if has.get(name) != network.tensors[name].shape:
            here = f"a {name} of {shape_word(has[name])}" if name in has else f"no {name}"
            raise PlanError(
                f"{type(module).__name__}: it has {here}, and the plan's network one of "
                f"{shape_word(network.tensors[name].shape)}; give the module that it was exported from with "
                "po.torch.export"
            )


def _checkpointed(program: Any, parts: Sequence[Part]) -> Any:
    """The program with its parts as modules that are checkpointed."""
    from torch.fx.passes.split_module import split_module

    numbers = {node: index for index, node in enumerate(program.graph.nodes)}

    def part_of(node: Any) -> int:
        """Odd for the parts, even between them."""
        before = sum(part.last < numbers[node] for part in parts)
        return 2 * before + any(part.first <= numbers[node] <= part.last for part in parts)

    split = split_module(program, program, part_of)
    for index, part in enumerate(parts):
        name = f"submod_{2 * index + 1}"
        setattr(split, name, _module(getattr(split, name), part))
    return split


def _module(inner: Any, part: Part) -> Any:
    """A module that runs `inner` under torch.utils.checkpoint."""
    import torch
    from torch.utils.checkpoint import checkpoint

    class Rerun(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *values: Any) -> Any:
            return checkpoint(self.inner, *values, use_reentrant=False, context_fn=lambda: _contexts(inner, part))

    return Rerun()


def _contexts(inner: Any, part: Part) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """What a part's forward pass, and its rerun, run in."""
    from torch.utils.checkpoint import CheckpointPolicy as Policy
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    from poetopt.torch.tracing import name_of

    counts = {False: 0, True: 0}

    def policy(context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        place = counts[context.is_recompute]
        counts[context.is_recompute] += 1
        name = name_of(function)
        if place >= len(part.saved) or part.saved[place][0] != name:
            raise PlanError(f"{name} ran where the policy was not made for it; apply the policy anew")
        return Policy.MUST_SAVE if part.saved[place][1] else Policy.PREFER_RECOMPUTE

    forward, again = create_selective_checkpoint_contexts(policy)
    return forward, _both(again, inner)


@contextmanager
def _both(again: AbstractContextManager[Any], inner: Any) -> Iterator[None]:
    """The rerun's own context, with buffers that it may write to: statistics have moved in the forward pass."""
    with ExitStack() as stack:
        for layer in inner.modules():
            kept = dict(layer._buffers)
            layer._buffers.update({name: tensor.clone() for name, tensor in kept.items() if tensor is not None})
            stack.callback(layer._buffers.update, kept)
        stack.enter_context(again)
        yield
