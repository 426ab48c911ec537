"""Summaries of steps in C, of emitted files and of profiles, for people and for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from poetopt.backends.c.execution import TOLERANCE, DeviceChecks, DeviceExecution, DeviceTraining
from poetopt.backends.c.profiling import TAKEN, EmulatedProfile, Modelled, joined
from poetopt.devices.profile import Profile
from poetopt.graph import Graph
from poetopt.ops.nodes import signatures
from poetopt.plan.instructions import Plan
from poetopt.report.execution import count, left_out_rows, moved_words, network_rows, optimizer_words, said
from poetopt.report.layout import Exact, Row, answer, columns, table
from poetopt.report.summary import NO_PREDICTION
from poetopt.training.in_c import DeviceFit
from poetopt.util.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from poetopt.api.on_device import Emitted

SLOWEST = 12
"""Number of operators that are named with their instructions."""


def profile_document(graph: Graph, measured: Profile, merged: Profile) -> dict[str, object]:
    """Return the object of `profile --json`."""
    storage = measured.storage
    return {
        "model": graph.name,
        "operators": len(signatures(graph)),
        "distinct_operators": len(set(signatures(graph).values())),
        "measured": len(measured.operators),
        "in_profile": len(merged.operators),
        "missing": _missing(graph, merged),
        "step_s": _step_s(graph, measured),
        "power_w": measured.power_w,
        "storage": None if storage is None else dict(vars(storage)),
        "about": dict(measured.about),
    }


def profile_text(graph: Graph, measured: Profile, merged: Profile, path: str) -> str:
    """Return the summary of `poetopt profile`."""
    keys = signatures(graph)
    rows = [
        (
            "operators",
            f"{len(measured.operators)} distinct ones of {len(keys)} measured; their step takes "
            f"{show_seconds(_step_s(graph, measured))}",
        )
    ]
    if slow := _slowest(graph, measured):
        rows.append(("most time", slow))
    if measured.storage is not None:
        s = measured.storage
        rows.append(
            (
                "storage",
                f"in {show_bytes(round(s.page_in_bytes_per_s))}/s after {show_seconds(s.page_in_latency_s)}, out "
                f"{show_bytes(round(s.page_out_bytes_per_s))}/s after {show_seconds(s.page_out_latency_s)}, "
                f"{'beside' if s.dma else 'by'} the CPU",
            )
        )
    rows += [(key, text) for key, text in sorted(measured.about.items())]
    if missing := _missing(graph, merged):
        rows.append(("missing", f"{', '.join(missing[:8])}{', ...' if len(missing) > 8 else ''}: from the roofline"))
    rows.append(("profile", f"{path}, {len(merged.operators)} operators; use it with solve --profile {path}"))
    return table(f"{graph.name}: {measured.about.get('machine', 'measured')}", rows)


def instructions_text(emulated: EmulatedProfile) -> str:
    """Return the table of instructions and time on an emulated core: the slowest operators, and all."""
    rows: list[Sequence[str]] = [
        ("operator", "instructions", "cycles: low", "middle", "high", "middle", "most of these")
    ]
    slowest = sorted(emulated.operators.items(), key=lambda pair: -pair[1].cycles[1])
    rows += [_row(name, one, emulated.clock_hz) for name, one in slowest[:SLOWEST]]
    if slowest[SLOWEST:]:
        rows.append(
            _row(f"{len(slowest) - SLOWEST} others", joined(one for _, one in slowest[SLOWEST:]), emulated.clock_hz)
        )
    rows.append(_row("a step", joined(emulated.operators.values()), emulated.clock_hz))
    return "\n".join(columns(rows))


def _row(name: str, modelled: Modelled, clock_hz: float) -> Sequence[str]:
    classes = {kind: count for kind, count in modelled.classes.items() if kind != TAKEN}
    most = sorted(classes.items(), key=lambda pair: -pair[1])[:2]
    kinds = ", ".join(f"{kind} {100 * count / max(modelled.instructions, 1):.0f} %" for kind, count in most)
    low, middle, high = (f"{round(cycles):,}" for cycles in modelled.cycles)
    return (
        f"  {name}",
        f"{modelled.instructions:,}",
        low,
        middle,
        high,
        show_seconds(modelled.cycles[1] / clock_hz),
        kinds,
    )


def _step_s(graph: Graph, profile: Profile) -> float:
    """Return the seconds of all measured operators of a step."""
    return sum(profile.operators[key].time_s for key in signatures(graph).values() if key in profile.operators)


def _missing(graph: Graph, profile: Profile) -> list[str]:
    return [name for name, key in signatures(graph).items() if key not in profile.operators]


def _slowest(graph: Graph, profile: Profile) -> str:
    """Return the three kinds of operators that take most of the step, in words."""
    sums: dict[str, float] = {}
    for key in signatures(graph).values():
        if key in profile.operators:
            kind = key.partition("(")[0]
            sums[kind] = sums.get(kind, 0.0) + profile.operators[key].time_s
    total = sum(sums.values())
    most: Mapping[str, float] = dict(sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:3])
    return ", ".join(f"{kind} {100 * taken / total:.0f} %" for kind, taken in most.items()) if total else ""


def device_text(plan: Plan, execution: DeviceExecution, after: str = "") -> str:
    """Return the summary of `poetopt run --on`; `after` is the next command."""
    cost = ""
    if execution.instructions is not None:
        cost = f"{execution.instructions:,} instructions a step"
    elif execution.step_s is not None and execution.store_all_step_s is not None:
        cost = f"{show_seconds(execution.step_s)} a step here; store-all {show_seconds(execution.store_all_step_s)}"
    rows = answer(_fit(execution), cost, _sameness(execution), after)
    if execution.code_bytes is not None:
        rows.append(("code", f"{show_bytes(execution.code_bytes)} beside the weights, by {execution.compiler}"))
    if dearest := _dearest(execution):
        rows.append(("most by", dearest))
    rows += _moved(execution)
    rows += _predicted(execution)
    rows += network_rows(said(plan))
    rows.append(Exact(("check", _accuracy(execution))))
    rows.append(Exact(("memory", _memory(execution))))
    if execution.code_bytes is not None:
        rows.append(Exact(("code", f"{execution.code_bytes:,} B")))
    title = f"{plan.problem.called}: {len(plan.instructions):,} instructions executed in C on {execution.on}"
    return table(title, rows)


def device_fit_text(plan: Plan, fitted: DeviceFit, out: str) -> str:
    """Return the summary of `poetopt train --on`."""
    pairs = zip(fitted.epoch_losses, fitted.reference_epoch_losses, strict=True)
    rows = [
        (f"epoch {epoch}", f"loss {mine:.6g} (mean), on onnxruntime {theirs:.6g}")
        for epoch, (mine, theirs) in enumerate(pairs, 1)
    ]
    rows += left_out_rows(fitted)
    validation = fitted.validation
    if validation is not None:
        shown = (
            f"loss {validation.loss:.6g}"
            if validation.accuracy is None
            else f"accuracy {100 * validation.accuracy:.1f} %"
        )
        rows.append(("validation", f"{shown} of {validation.rows:,} rows, by what {fitted.steps.on} itself predicts"))
    after = f"{out} is the trained network; any ONNX runtime runs it" if fitted.steps.ok else "nothing was written"
    return device_training_text(plan, fitted.steps, rows, after)


def device_training_text(plan: Plan, training: DeviceTraining, more: Sequence[Row] = (), after: str = "") -> str:
    """Return the summary of `poetopt run --on --steps`, with `more` rows; `after` is the next command."""
    same = (
        "bit for bit those of the unscheduled steps on the same kernels"
        if training.bit_identical
        else "they differ from the unscheduled steps'"
    )
    cost = ""
    if training.instructions is not None:
        each = training.instructions // training.steps
        cost = f"{training.instructions:,} instructions, {each:,} a step"
    rows = answer(_fit(training), cost, f"losses and {len(training.values)} parameters: {same}", after)
    rows.append(
        (
            "losses",
            f"{training.losses[0]:.6g} in the first step, {training.losses[-1]:.6g} in the last; no step's is more "
            f"than {training.max_loss_diff:.2g} from onnxruntime's",
        )
    )
    rows += more
    rows += _moved(training)
    rows += _predicted(training)
    rows += network_rows(said(plan))
    rows.append(
        Exact(
            (
                "check",
                f"the parameters' changes are {training.distance:.2g} from onnxruntime's (relative), the losses "
                f"{training.loss_distance:.2g}; {_allowed(training.sensitivity)}",
            )
        )
    )
    rows.append(Exact(("memory", _memory(training))))
    title = f"{plan.problem.called}: {count(training.steps, 'step')} of training in C on {training.on}"
    return table(f"{title}, {optimizer_words(training)}", rows)


def _allowed(sensitivity: float) -> str:
    return f"{TOLERANCE:g} times {sensitivity:.2g} is allowed, by which one ulp of the input moves them"


def _predicted(checks: DeviceChecks) -> list[Row]:
    prediction = checks.predicted
    if prediction is None:
        return []
    text = (
        f"outputs {prediction.distance:.2g} from onnxruntime's (relative), where {TOLERANCE:g} times "
        f"{prediction.sensitivity:.2g} is allowed"
    )
    return [
        ("inference", f"po_predict takes {show_bytes(prediction.arena_bytes)} of the arena"),
        Exact(("inference", f"po_predict takes {prediction.arena_bytes:,} B; {text}")),
    ]


def _inference(emitted: Emitted) -> str:
    if emitted.prediction_bytes is None:
        return NO_PREDICTION
    without = ", ".join(emitted.not_predicted)
    remark = f", without {without}, which nothing computes" if without else ""
    return f"po_predict takes {show_bytes(emitted.prediction_bytes)} of the arena{remark}"


def _exact_storage(emitted: Emitted) -> str:
    erased = f", erasing {emitted.sectors:,} sectors once each" if emitted.sectors else ""
    return f"{emitted.storage_bytes:,} B with both copies of po_save, which writes {emitted.save_bytes:,} B{erased}"


def emitted_text(plan: Plan, emitted: Emitted, after: str = "") -> str:
    """Return the summary of `poetopt emit`; `after` is the next command."""
    arena, resident, limit = emitted.arena_bytes, emitted.resident_bytes, plan.problem.device_ram_bytes
    total = arena + resident
    of_device = "" if limit is None else f" of the {show_bytes(limit, 4)} of {plan.problem.device}"
    fit = f"{show_bytes(total, 4)}{of_device} beside the stack: arena {show_bytes(arena, 4)} + resident "
    fit += show_bytes(resident, 4)
    cost = (
        f"{emitted.instructions:,} instructions of the plan, {emitted.operators:,} operators; "
        f"{show_bytes(emitted.storage_bytes)} of storage with both copies of po_save"
    )
    rows = answer(fit, cost, after=after)
    rows += [
        ("files", f"{emitted.folder}: {', '.join(emitted.files)}"),
        ("saving", f"po_save writes {show_bytes(emitted.save_bytes)}; steps after the last po_save are lost"),
        ("inference", _inference(emitted)),
        Exact(("memory", f"{total:,} B: arena {arena:,} B, resident {resident:,} B")),
        Exact(("storage", _exact_storage(emitted))),
    ]
    if emitted.prediction_bytes is not None:
        rows.append(Exact(("inference", f"{emitted.prediction_bytes:,} B of the arena")))
    title = f"{plan.problem.called} in C for {emitted.target}"
    return table(f"{title}: {emitted.folder}/README.md says how to build and call it", rows)


def _moved(checks: DeviceExecution | DeviceTraining) -> list[Row]:
    """Return the row of the traffic with storage in a step, if there is any."""
    moved = moved_words(checks.bytes_paged, checks.bytes_streamed)
    return [("paged", f"{moved} to and from a file in each step")] if moved else []


def _sameness(execution: DeviceExecution) -> str:
    compared = f"{execution.outputs} outputs"
    if execution.loss is not None:
        compared = f"{execution.gradients} gradients, the loss ({execution.loss:.6g})"
    if execution.statistics:
        compared += f" and {execution.statistics} statistics"
    same = (
        "bit for bit those of the unscheduled step on the same kernels"
        if execution.bit_identical
        else f"{len(execution.different)} differ from the unscheduled step's, by up to {execution.max_abs_diff:.3g}"
    )
    return f"{compared}: {same}, {execution.distance:.2g} from onnxruntime's (relative)"


def _accuracy(execution: DeviceExecution) -> str:
    return f"{execution.distance:.2g} from onnxruntime's (relative); {_allowed(execution.sensitivity)}"


def _fit(execution: DeviceExecution | DeviceTraining) -> str:
    """Return the RAM of a step in C, beside the budget of its arena."""
    text = f"arena {show_bytes(execution.arena_bytes, 4)} of {show_bytes(execution.budget_bytes, 4)}"
    text += f"; resident {show_bytes(execution.resident_bytes)}"
    if execution.stack_bytes is not None:
        text += f"; stack {show_bytes(execution.stack_bytes)}"
        if execution.stack_reserved_bytes is not None:
            text += f" of {show_bytes(execution.stack_reserved_bytes)}"
    return text


def _memory(execution: DeviceExecution | DeviceTraining) -> str:
    text = f"arena {execution.arena_bytes:,} B + resident {execution.resident_bytes:,} B"
    if execution.linked_ram_bytes is not None:
        text += f"; the linker has {execution.linked_ram_bytes:,} B"
    if execution.stack_bytes is not None:
        text += f"; stack {execution.stack_bytes:,} B"
    if execution.stack_bound_bytes is not None:
        text += f", {execution.stack_bound_bytes:,} at most, of {execution.stack_reserved_bytes:,}"
    return f"{text}; budget of the arena {execution.budget_bytes:,} B"


def _dearest(execution: DeviceExecution) -> str:
    """Return the operators that take most instructions, with these."""
    most = sorted(execution.by_operator.items(), key=lambda pair: -pair[1])[:5]
    return ", ".join(f"{name} {instructions:,}" for name, instructions in most)
