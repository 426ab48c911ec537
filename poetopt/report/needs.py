"""What one training step needs in bytes, before anything is solved."""

from __future__ import annotations

from dataclasses import dataclass, field

from poetopt.graph.problem import Problem
from poetopt.plan.closing import closing_of
from poetopt.plan.effects import effects
from poetopt.plan.instructions import Action, Plan
from poetopt.plan.machine import Machine
from poetopt.plan.simulate import simulate
from poetopt.plan.storeall import store_all as ordinary
from poetopt.plan.storeall import store_all_bytes
from poetopt.search.diagnosis.minimum_budget import least_ram
from poetopt.search.solution import Options
from poetopt.search.tuning import WORK
from poetopt.util.units import show_bytes, show_share
from poetopt.util.work import Work

SHOWN_TENSORS = 6
"""How many of the largest tensors are named."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What one training step needs in bytes.

    store_all_peak_bytes
        The peak of ordinary training, and `peak_operator`, which runs then.
    peak
        What is live at that moment: (name, kind, bytes), the largest first; the operator's workspace and what
        is reserved for kernels are among them.
    least_ram_bytes
        The smallest budget with a known schedule (None: none was found).
    least_ram_cut_short
        Whether the search for it ended at its limit of work, so that less RAM may do.
    ram_bound_bytes, binding_operator
        No schedule has less RAM, because this operator needs so much (or the graph inputs: an empty name).
    """

    problem: Problem = field(repr=False)
    store_all_peak_bytes: int
    peak_operator: str
    peak: tuple[tuple[str, str, int], ...]
    least_ram_bytes: int | None
    least_ram_cut_short: bool
    ram_bound_bytes: int
    binding_operator: str

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        problem = self.problem
        return {
            "operators": len(problem.operators),
            "backward_operators": sum(operator.backward for operator in problem.operators),
            "tensors": len(problem.tensors),
            "store_all_peak_bytes": self.store_all_peak_bytes,
            "peak_operator": self.peak_operator,
            "peak": [{"name": name, "kind": kind, "bytes": nbytes} for name, kind, nbytes in self.peak],
            "peak_by_kind": self.by_kind(),
            "least_ram_bytes": self.least_ram_bytes,
            "least_ram_cut_short": self.least_ram_cut_short,
            "ram_bound_bytes": self.ram_bound_bytes,
            "binding_operator": self.binding_operator or None,
            "resident_bytes": problem.resident_bytes,
        }

    def by_kind(self) -> dict[str, int]:
        """Bytes at the peak by kind of tensor."""
        sums: dict[str, int] = {}
        for _, kind, nbytes in self.peak:
            sums[kind] = sums.get(kind, 0) + nbytes
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def rows(self) -> list[tuple[str, str]]:
        """Label and text, for people."""
        peak = self.store_all_peak_bytes
        kinds = ", ".join(f"{kind} {show_bytes(nbytes)}" for kind, nbytes in self.by_kind().items())
        largest = ", ".join(f"{name} {show_bytes(nbytes)}" for name, _, nbytes in self.peak[:SHOWN_TENSORS])
        backward = sum(operator.backward for operator in self.problem.operators)
        rows = [
            (
                "training step",
                f"{len(self.problem.operators)} operators ({backward} backward), {len(self.problem.tensors)} tensors",
            ),
            ("store-all peak", f"{peak:,} B ({show_bytes(peak)}), while {self.peak_operator} runs"),
            ("  made of", kinds),
            ("  largest", largest),
        ]
        least = self.least_ram_bytes
        if least is not None:
            share = f" ({show_share(least / peak)} of store-all)" if peak else ""
            more = "; the search ended at its limit of work, and less may do" if self.least_ram_cut_short else ""
            rows.append(("least RAM known", f"{least:,} B{share}{more}"))
        binds = (
            f"operator {self.binding_operator} needs it"
            if self.binding_operator
            else "the graph inputs take it at the start"
        )
        rows.append(("no schedule below", f"{self.ram_bound_bytes:,} B: {binds}"))
        return rows


def needs(problem: Problem) -> Needs:
    """Look at a problem without solving it: the search for the least RAM is limited, and all else is linear."""
    plan = ordinary(problem)
    live, beside = simulate(plan).live_bytes, 0
    after = closing_of(problem, plan.instructions)
    if after is not None and after.peak_bytes > max(live):
        plan, live, beside = Plan(after.problem, after.instructions), after.simulation.live_bytes, after.beside_bytes
    at = max(range(len(live)), key=live.__getitem__)
    operator = next(i.target for i in plan.instructions[at:] if i.action is Action.COMPUTE)
    store_all = store_all_bytes(problem)
    work = Work(WORK)
    least = least_ram(problem, Options(ram_bytes=store_all), work=work)
    return Needs(
        problem=problem,
        store_all_peak_bytes=store_all,
        peak_operator=plan.problem.operators[operator].name,
        peak=_live_at(plan, at, store_all, beside),
        least_ram_bytes=least,
        least_ram_cut_short=work.over,
        ram_bound_bytes=problem.least_ram_bytes,
        binding_operator=_binding(problem),
    )


def _binding(problem: Problem) -> str:
    """The operator that no schedule has less RAM than, in the parts of a batch or behind them; "" for the inputs."""
    needed, closing = problem.least_ram_bytes, problem.closing
    if closing is not None and closing.least_ram_bytes == needed:
        return _binding(closing)
    takes = ((op.name, problem.least_working_set_bytes(i)) for i, op in enumerate(problem.operators))
    return next((name for name, nbytes in takes if nbytes + problem.reserve_bytes == needed), "")


def _live_at(plan: Plan, at: int, total_bytes: int, beside_bytes: int) -> tuple[tuple[str, str, int], ...]:
    """What of `total_bytes` is taken during instruction `at` of a plan, the largest first; some of it lies beside."""
    problem = plan.problem
    machine = Machine(problem)
    *before, last = effects(problem).each(plan.instructions[: at + 1])
    for effect in before:
        machine.apply(effect)
    live = machine.resident.union(last.makes).difference(last.takes)
    workspace = last.extra_bytes + problem.nbytes(last.takes)
    found = [(problem.tensors[i].name, _kind(problem, i), problem.tensors[i].nbytes) for i in live]
    found += [("workspace", "workspace", workspace), ("kernels' own", "kernels", problem.reserve_bytes)]
    found.append(("kept from part to part", "parameters", beside_bytes))
    found.append(("gaps between buffers", "gaps", total_bytes - sum(nbytes for _, _, nbytes in found)))
    return tuple(sorted((entry for entry in found if entry[2]), key=lambda entry: (-entry[2], entry[0])))


def _kind(problem: Problem, tensor: int) -> str:
    held = problem.tensors[tensor]
    if not held.computed:
        return "inputs"
    return "gradients" if problem.operators[held.producer].backward else "activations"
