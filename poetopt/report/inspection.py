"""Contents of a model, and the RAM, energy and time of its training, as `poetopt inspect` shows them."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field

from poetopt.graph.problem import Problem
from poetopt.plan.assemble import store_all as ordinary
from poetopt.plan.assemble import store_all_bytes
from poetopt.plan.closing import closing_of
from poetopt.plan.effects import effects
from poetopt.plan.instructions import Action, Plan
from poetopt.plan.machine import Machine
from poetopt.plan.simulate import simulate
from poetopt.report.goals import clips
from poetopt.report.layout import Exact, Row, Summary, answer
from poetopt.search.diagnosis.minimum_budget import least_ram
from poetopt.search.solution import Options
from poetopt.search.tuning import WORK
from poetopt.util.figures import figures
from poetopt.util.notes import Note
from poetopt.util.text import shown
from poetopt.util.units import show_bytes, show_joules, show_seconds, show_share
from poetopt.util.work import Work


@dataclass(frozen=True, kw_only=True)
class Needs:
    """RAM of one training step, before anything is solved.

    Attributes
    ----------
    store_all_peak_bytes, peak_operator
        Peak of store-all, and the operator that runs then.
    peak
        Live bytes at that moment: (name, kind, bytes), the largest first, with workspace and the reserve of kernels.
    least_ram_bytes
        Smallest budget with a known schedule; None if none was found.
    least_ram_cut_short
        Whether the search for it ended at its limit of work, so that less RAM may do.
    ram_bound_bytes, binding_operator
        RAM that no schedule is below, and the operator that needs it; "" if the graph inputs do.
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
        """Return plain data for JSON."""
        problem = self.problem
        return {
            "operators": len(problem.operators),
            "backward_operators": sum(operator.backward for operator in problem.operators),
            "tensors": len(problem.tensors),
            **figures(self, ("store_all_peak_bytes", "peak_operator", "least_ram_bytes", "least_ram_cut_short")),
            "peak": [{"name": name, "kind": kind, "bytes": nbytes} for name, kind, nbytes in self.peak],
            "peak_by_kind": self.by_kind(),
            "ram_bound_bytes": self.ram_bound_bytes,
            "binding_operator": self.binding_operator or None,
            "resident_bytes": problem.resident_bytes,
        }

    def by_kind(self) -> dict[str, int]:
        """Return the bytes at the peak by kind of tensor."""
        sums: dict[str, int] = {}
        for _, kind, nbytes in self.peak:
            sums[kind] = sums.get(kind, 0) + nbytes
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def rows(self) -> list[Row]:
        """Return the rows for people, without those of `fit` and `proof`."""
        peak = self.store_all_peak_bytes
        kinds = ", ".join(f"{kind} {show_bytes(nbytes)}" for kind, nbytes in self.by_kind().items())
        largest = ", ".join(f"{name} {show_bytes(nbytes)}" for name, _, nbytes in self.peak[:6])
        backward = sum(operator.backward for operator in self.problem.operators)
        rows: list[Row] = [
            (
                "training step",
                f"{len(self.problem.operators)} operators ({backward} backward), {len(self.problem.tensors)} tensors",
            ),
            ("store-all peak", f"{show_bytes(peak, 4)}, while {self.peak_operator} runs: {kinds}"),
            Exact(("largest", largest)),
            Exact(("store-all peak", f"{peak:,} B")),
        ]
        if self.least_ram_bytes is not None:
            rows.append(Exact(("least RAM known", f"{self.least_ram_bytes:,} B")))
        rows.append(Exact(("no schedule below", f"{self.ram_bound_bytes:,} B")))
        return rows

    def proof(self) -> str:
        """Return the least RAM of a known schedule, and the RAM below which none exists, with the reason."""
        peak, least = self.store_all_peak_bytes, self.least_ram_bytes
        binds = "the graph inputs take it at the start"
        if self.binding_operator:
            binds = f"operator {self.binding_operator} needs it"
        bound = show_bytes(self.ram_bound_bytes, 4)
        if least is None:
            return f"no schedule takes less than {bound}: {binds}"
        share = f" ({show_share(least / peak)} of store-all)" if peak else ""
        if least <= self.ram_bound_bytes:
            return f"the least RAM of a schedule is {bound}{share}: {binds}"
        remark = ", where the search was cut short" if self.least_ram_cut_short else ""
        return f"schedules are known from {show_bytes(least, 4)}{share} on{remark}; none below {bound}: {binds}"


def needs(problem: Problem) -> Needs:
    """Return the RAM that a training step needs, without solving the problem.

    The search for the least RAM is limited by counted work; all else is linear.
    """
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
    """Return the operator that binds the least RAM, in the parts or behind them; "" for the graph inputs."""
    needed, closing = problem.least_ram_bytes, problem.closing
    if closing is not None and closing.least_ram_bytes == needed:
        return _binding(closing)
    takes = ((op.name, problem.least_working_set_bytes(i)) for i, op in enumerate(problem.operators))
    return next((name for name, nbytes in takes if nbytes + problem.reserve_bytes == needed), "")


def _live_at(plan: Plan, at: int, total_bytes: int, beside_bytes: int) -> tuple[tuple[str, str, int], ...]:
    """Return the parts of `total_bytes` at instruction `at` of a plan, the largest first.

    Parameters
    ----------
    beside_bytes
        Bytes of `total_bytes` that lie beside the schedule.
    """
    problem = plan.problem
    machine = Machine(problem)
    *before, last = effects(problem).each(plan.instructions[: at + 1])
    for effect in before:
        machine.apply(effect)
    live = machine.resident.union(last.makes).difference(last.takes)
    workspace = last.extra_bytes + problem.nbytes(last.takes)
    parts = [(problem.tensors[i].name, _kind(problem, i), problem.tensors[i].nbytes) for i in live]
    parts += [("workspace", "workspace", workspace), ("kernels' own", "kernels", problem.reserve_bytes)]
    parts.append(("kept from part to part", "parameters", beside_bytes))
    parts.append(("gaps between buffers", "gaps", total_bytes - sum(nbytes for _, _, nbytes in parts)))
    return tuple(sorted((entry for entry in parts if entry[2]), key=lambda entry: (-entry[2], entry[0])))


def _kind(problem: Problem, tensor: int) -> str:
    held = problem.tensors[tensor]
    if not held.computed:
        return "inputs"
    return "gradients" if problem.operators[held.producer].backward else "activations"


@dataclass(frozen=True, kw_only=True)
class Inspection(Summary):
    """Contents of a model, and what its training needs.

    Attributes
    ----------
    unsupported
        (node, op) of the operators on the way to the loss that have no gradient rule.
    training_error
        Reason why no training step could be derived; `needs` is None then.
    paged
        Needs of a step by `sgd` with its parameters on storage: of all its RAM but `resident_bytes`. None without a
        device
        that has storage.
    resident
        Bytes of the resident region by purpose.
    device
        Name of the device that was asked for, or None.
    """

    contents: Mapping[str, object]
    unsupported: tuple[tuple[str, str], ...] = ()
    training_error: str | None = None
    loss: str | None = None
    needs: Needs | None = None
    paged: Needs | None = None
    resident: Mapping[str, int] = field(default_factory=dict)
    device: str | None = None

    def to_dict(self) -> dict[str, object]:
        """Return plain data for JSON."""
        problem = self.needs.problem if self.needs else None
        costed = problem if self.device is not None else None
        return {
            **self.contents,
            "unsupported": [{"node": name, "op": op} for name, op in self.unsupported],
            **figures(self, ("training_error", "loss", "resident", "device")),
            "micro_batches": problem.parts if problem else None,
            "training": self.needs.to_dict() if self.needs else None,
            "paged": None if self.paged is None else _paged(self.paged),
            **figures(costed, ("flash_bytes", "device_ram_bytes", "baseline_time_s", "baseline_energy_j")),
        }

    def __repr__(self) -> str:
        training = "can't be trained" if self.needs is None else repr(self.needs.problem)
        return f"<Inspection of {shown(str(self.contents['name']))}: {training}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def title(self) -> str:
        """Return the network's name."""
        return str(self.contents["name"])

    def rows(self, after: str | None = None) -> list[Row]:
        """Return the rows of the summary; `after` is what to do next."""
        needs = self.needs
        rows: list[Row] = self._unsupported_rows()
        if needs is not None:
            rows = [*answer(self._fit(needs), self._cost(needs), needs.proof(), after or ""), *rows]
            rows += [*_parts_rows(needs.problem), *needs.rows(), *_resident_rows(needs.problem, self.resident)]
            rows += [] if self.device is None else _device_rows(needs)
            rows += [] if self.paged is None else _paged_rows(self.paged)
        rows += _content_rows(self.contents)
        notes = sorted(_list(self.contents.get("notes")), key=lambda note: not isinstance(note, Note))
        rows += [("note", str(note)) for note in notes]
        return rows

    def _fit(self, needs_of_step: Needs) -> str:
        text = f"store-all takes {show_bytes(needs_of_step.store_all_peak_bytes, 4)}, "
        text += f"parameters and gradients {show_bytes(needs_of_step.problem.resident_bytes)}"
        return text if self.device is None else f"{text}; {_device_words(needs_of_step)}"

    def _cost(self, needs_of_step: Needs) -> str:
        problem = needs_of_step.problem
        if self.device is None:
            return ""
        energy, time = show_joules(problem.baseline_energy_j), show_seconds(problem.baseline_time_s)
        return f"one pass takes {energy} and {time} on {problem.device}"

    def _unsupported_rows(self) -> list[tuple[str, str]]:
        rows = [
            ("no gradient rule", f"node {name}: {op}, opset {self.contents.get('opset')}")
            for name, op in self.unsupported
        ]
        if self.training_error is not None:
            rows.append(("can't be trained", self.training_error))
        return rows


def _content_rows(contents: Mapping[str, object]) -> list[tuple[str, str]]:
    rows = []
    counts = contents.get("operators_by_type")
    if isinstance(counts, dict):
        kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        rows.append(("operators", f"{contents['operators']} (opset {contents['opset']}): {kinds}"))
    rows += [(key[:-1], _tensor(tensor)) for key in ("inputs", "outputs") for tensor in _list(contents.get(key))]
    for key in ("trained", "frozen", "constants"):
        total = contents.get(key)
        if isinstance(total, dict) and total["tensors"]:
            rows.append(
                (key, f"{total['tensors']} tensors, {total['elements']:,} values, {show_bytes(total['bytes'])}")
            )
    return rows


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _tensor(tensor: object) -> str:
    assert isinstance(tensor, dict)
    return (
        f"{tensor['name']}: {tensor['dtype']} [{', '.join(map(str, tensor['shape']))}], {show_bytes(tensor['bytes'])}"
    )


def _parts_rows(problem: Problem) -> list[tuple[str, str]]:
    if problem.parts == 1:
        return []
    then = ("", "") if problem.closing is None else (", then the updates", " or of the updates")
    text = f"in {problem.parts:,} parts, whose gradients are summed{then[0]}; RAM is that of one part{then[1]}"
    return [("batch", text)]


def _resident_rows(problem: Problem, resident: Mapping[str, int]) -> list[Row]:
    parts = ", ".join(f"{name} {show_bytes(nbytes)}" for name, nbytes in resident.items() if nbytes)
    text = f"{show_bytes(problem.resident_bytes, 4)}" + (f": {parts}" if parts else "")
    return [("resident region", text), Exact(("resident region", f"{problem.resident_bytes:,} B"))]


def _paged(needs_of_step: Needs) -> dict[str, object]:
    """Return the needs of a whole step whose parameters are paged, for JSON."""
    problem, least = needs_of_step.problem, needs_of_step.least_ram_bytes
    return {
        "optimizer": str(problem.recipe.get("optimizer", "none")),
        "clip_norm": clips(problem),
        "least_total_ram_bytes": None if least is None else least + problem.beside_bytes,
        "total_ram_bound_bytes": needs_of_step.ram_bound_bytes + problem.beside_bytes,
        "binding_operator": needs_of_step.binding_operator or None,
        **figures(problem, ("resident_bytes", "stack_bytes", "flash_bytes")),
        "storage_bytes": _stored_bytes(problem),
    }


def _stored_bytes(problem: Problem) -> int:
    """Return the bytes with their home on storage, in the parts of a batch or behind them."""
    steps = [one for one in (problem, problem.closing) if one is not None]
    return sum({one.tensors[i].name: one.tensors[i].nbytes for one in steps for i in one.stored_at_start}.values())


def _paged_rows(needs_of_step: Needs) -> list[Row]:
    """Return the rows on a step whose parameters are paged."""
    problem, least = needs_of_step.problem, needs_of_step.least_ram_bytes
    step = f"a step of {problem.recipe.get('optimizer', 'none')}"
    step += " that clips" if clips(problem) else ""
    bound = needs_of_step.ram_bound_bytes + problem.beside_bytes
    known_bytes = None if least is None else least + problem.beside_bytes
    if known_bytes is None:
        text = f"no step takes less than {show_bytes(bound, 4)} in all"
    elif known_bytes <= bound:
        text = f"{step} takes {show_bytes(bound, 4)} in all, and none takes less"
    else:
        text = f"{step} is known in {show_bytes(known_bytes, 4)} in all, none in less than {show_bytes(bound, 4)}"
    if needs_of_step.binding_operator:
        text += f", as operator {needs_of_step.binding_operator} needs it"
    where = [f"{show_bytes(_stored_bytes(problem))} on storage"]
    if problem.flash_bytes:
        where.append(f"{show_bytes(problem.flash_bytes)} in flash")
    exact = f"none in less than {bound:,} B"
    exact = exact if known_bytes is None else f"known in {known_bytes:,} B, {exact}"
    return [("parameters paged", f"{text}; {', '.join(where)}"), Exact(("parameters paged", exact))]


def _device_words(needs_of_step: Needs) -> str:
    """Return whether store-all fits the device, in words."""
    problem = needs_of_step.problem
    if problem.device_ram_bytes is None:
        return f"the RAM of {problem.device} isn't known"
    left = problem.device_ram_bytes - problem.beside_bytes
    fits = "store-all fits" if needs_of_step.store_all_peak_bytes <= left else "store-all does not fit"
    if left <= 0:
        fits = "the resident region alone is too large"
    return f"{problem.device} has {show_bytes(problem.device_ram_bytes)}: {fits}"


def _device_rows(needs_of_step: Needs) -> list[Row]:
    problem = needs_of_step.problem
    if problem.device_ram_bytes is None:
        return []
    left = max(problem.device_ram_bytes - problem.beside_bytes, 0)
    return [Exact((f"RAM of {problem.device}", f"{show_bytes(left)} of it for the schedule"))]
