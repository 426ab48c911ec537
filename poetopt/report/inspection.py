"""What a model needs before anything is solved: the look that `poetopt inspect` gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from poetopt.api import SAME_BYTES, Model, TrainingFile
from poetopt.engine.least import least_ram
from poetopt.engine.solution import Options
from poetopt.errors import ModelError
from poetopt.plan.instructions import Action, Plan
from poetopt.plan.simulate import simulate
from poetopt.plan.storeall import store_all as ordinary
from poetopt.plan.storeall import store_all_bytes
from poetopt.problem import Problem
from poetopt.report.layout import table
from poetopt.units import show_bytes, show_joules, show_seconds, show_share

SHOWN_TENSORS = 6
"""So many of the largest tensors are named."""


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
    ram_bound_bytes, binding_operator
        No schedule has less RAM, because this operator needs so much (or the graph inputs: an empty name).
    """

    problem: Problem = field(repr=False)
    store_all_peak_bytes: int
    peak_operator: str
    peak: tuple[tuple[str, str, int], ...]
    least_ram_bytes: int | None
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
            rows.append(
                (
                    "least RAM known",
                    f"{least:,} B ({show_share(least / peak)} of store-all)" if peak else f"{least:,} B",
                )
            )
        binds = (
            f"operator {self.binding_operator} needs it"
            if self.binding_operator
            else "the graph inputs take it at the start"
        )
        rows.append(("no schedule below", f"{self.ram_bound_bytes:,} B: {binds}"))
        return rows


def needs(problem: Problem) -> Needs:
    """Look at a problem without solving it (a few seconds at most for the zoo's networks)."""
    plan = ordinary(problem)
    simulation = simulate(plan)
    live = simulation.live_bytes
    at = max(range(len(live)), key=live.__getitem__)
    operator = next(i.target for i in plan.instructions[at:] if i.action is Action.COMPUTE)
    store_all = store_all_bytes(problem)
    ram_bound = problem.least_ram_bytes
    binding = next(
        (
            op.name
            for i, op in enumerate(problem.operators)
            if problem.working_set_bytes(i) + problem.reserve_bytes == ram_bound
        ),
        "",
    )
    return Needs(
        problem=problem,
        store_all_peak_bytes=store_all,
        peak_operator=problem.operators[operator].name,
        peak=_live_at(plan, at, store_all),
        least_ram_bytes=least_ram(problem, Options(ram_bytes=store_all)),
        ram_bound_bytes=ram_bound,
        binding_operator=binding,
    )


def _live_at(plan: Plan, at: int, total_bytes: int) -> tuple[tuple[str, str, int], ...]:
    """What of `total_bytes` is taken during instruction `at` of a plan, the largest first."""
    problem = plan.problem
    live = dict.fromkeys(problem.inputs)
    workspace = 0
    for index, step in enumerate(plan.instructions[: at + 1]):
        if step.action is Action.FREE and index < at:
            live.pop(step.target, None)
        elif step.action is Action.PAGE_IN:
            live[step.target] = None
        elif step.action is Action.COMPUTE:
            live.update(dict.fromkeys(problem.operators[step.target].outputs))
            workspace = problem.operators[step.target].workspace_bytes if index == at else 0
    found = [(problem.tensors[i].name, _kind(problem, i), problem.tensors[i].nbytes) for i in live]
    found += [("workspace", "workspace", workspace), ("kernels' own", "kernels", problem.reserve_bytes)]
    found.append(("gaps between buffers", "gaps", total_bytes - sum(nbytes for _, _, nbytes in found)))
    return tuple(sorted((entry for entry in found if entry[2]), key=lambda entry: (-entry[2], entry[0])))


def _kind(problem: Problem, tensor: int) -> str:
    producer = problem.tensors[tensor].producer
    if producer < 0:
        return "inputs"
    return "gradients" if problem.operators[producer].backward else "activations"


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """A model at rest.

    unsupported
        (node, op) of the operators on the way to the loss that have no gradient rule.
    training_error
        Why no training step could be derived, where that is so; then `needs` is None.
    resident
        The resident region by what it is for, in bytes.
    device
        Name of the device that was asked for, or None.
    """

    contents: Mapping[str, object]
    unsupported: tuple[tuple[str, str], ...] = ()
    training_error: str | None = None
    loss: str | None = None
    needs: Needs | None = None
    resident: Mapping[str, int] = field(default_factory=dict)
    device: str | None = None

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        problem = self.needs.problem if self.needs else None
        known = problem if self.device is not None else None
        return {
            **self.contents,
            "unsupported": [{"node": name, "op": op} for name, op in self.unsupported],
            "training_error": self.training_error,
            "loss": self.loss,
            "training": self.needs.to_dict() if self.needs else None,
            "resident": dict(self.resident),
            "device": self.device,
            "device_ram_bytes": known.device_ram_bytes if known else None,
            "baseline_time_s": known.baseline_time_s if known else None,
            "baseline_energy_j": known.baseline_energy_j if known else None,
        }

    def __str__(self) -> str:
        rows = [*self._unsupported_rows(), *_content_rows(self.contents)]
        if self.needs is not None:
            rows += self.needs.rows()
            rows.append(_resident_row(self.needs.problem, self.resident))
            if self.device is not None:
                rows += _device_rows(self.needs)
        rows += [("note", str(note)) for note in _list(self.contents.get("notes"))]
        return table(str(self.contents["name"]), rows)

    def _unsupported_rows(self) -> list[tuple[str, str]]:
        rows = [
            ("no gradient rule", f"node {name}: {op}, opset {self.contents.get('opset')}")
            for name, op in self.unsupported
        ]
        if self.training_error is not None:
            rows.append(("can't be trained", self.training_error))
        return rows


def inspect(
    model: Model | TrainingFile, *, device: str | None = None, loss: str = "auto", output: str | None = None
) -> Inspection:
    """Look at a model: contents, what has no gradient rule, and what training it takes.

    device
        Name or file of a device to compare with; for a problem file one of its own (default: its first).

    Raises DeviceError for an unknown device. A model that can't be trained is told in the result.
    """
    if isinstance(model, TrainingFile):
        problem = model.cost(device or next(iter(model.file.costs)))
        return Inspection(
            contents={
                "name": problem.name,
                "source": problem.model_ref,
                "content_hash": problem.model_hash,
                "notes": list(problem.notes),
            },
            needs=needs(problem),
            device=device,
        )
    from poetopt.autodiff import unsupported
    from poetopt.devices import device as device_of
    from poetopt.devices.cost import resident_breakdown, type_notes
    from poetopt.frontends.summary import summary

    found = device_of(device or SAME_BYTES)
    contents = summary(model.graph)
    missing = tuple(unsupported(model.graph))
    try:
        training = model.differentiate(loss=loss, output=output)
    except ModelError as error:
        return Inspection(contents=contents, unsupported=missing, training_error=str(error), device=device)
    return Inspection(
        contents={**contents, "notes": [*training.graph.notes, *type_notes(training.graph)]},
        unsupported=missing,
        loss=training.graph.loss_kind,
        needs=needs(training.cost(found)),
        resident=resident_breakdown(training.graph),
        device=device,
    )


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


def _resident_row(problem: Problem, resident: Mapping[str, int]) -> tuple[str, str]:
    parts = ", ".join(f"{name} {show_bytes(nbytes)}" for name, nbytes in resident.items() if nbytes)
    return ("resident region", f"{problem.resident_bytes:,} B" + (f": {parts}" if parts else ""))


def _device_rows(found: Needs) -> list[tuple[str, str]]:
    problem, rows = found.problem, []
    if problem.device_ram_bytes is not None:
        left = problem.device_ram_bytes - problem.resident_bytes
        fits = "store-all fits" if found.store_all_peak_bytes <= left else "store-all does not fit"
        if left <= 0:
            fits = "the resident region alone is too large"
        rows.append(
            (
                f"RAM of {problem.device}",
                f"{show_bytes(problem.device_ram_bytes)}, {show_bytes(max(left, 0))} of it for the schedule: {fits}",
            )
        )
    rows.append(
        (
            "one pass",
            f"{show_seconds(problem.baseline_time_s)}, {show_joules(problem.baseline_energy_j)} on {problem.device}",
        )
    )
    return rows
