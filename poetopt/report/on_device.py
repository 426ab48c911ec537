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


def profile_document(graph: Graph, found: Profile, merged: Profile) -> dict[str, object]:
    """Return the object of `profile --json`."""
    storage = found.storage
    return {
        "model": graph.name,
        "operators": len(signatures(graph)),
        "distinct_operators": len(set(signatures(graph).values())),
        "measured": len(found.operators),
        "in_profile": len(merged.operators),
        "missing": _missing(graph, merged),
        "step_s": _step_s(graph, found),
        "power_w": found.power_w,
        "storage": None if storage is None else dict(vars(storage)),
        "about": dict(found.about),
    }


def profile_text(graph: Graph, found: Profile, merged: Profile, path: str) -> str:
    """Return the summary of `poetopt profile`."""
    keys = signatures(graph)
    rows = [
        (
            "operators",
            f"{len(found.operators)} distinct ones of {len(keys)} measured; their step takes "
            f"{show_seconds(_step_s(graph, found))}",
        )
    ]
    if slow := _slowest(graph, found):
        rows.append(("most time", slow))
    if found.storage is not None:
        s = found.storage
        rows.append(
            (
                "storage",
                f"in {show_bytes(round(s.page_in_bytes_per_s))}/s after {show_seconds(s.page_in_latency_s)}, out "
                f"{show_bytes(round(s.page_out_bytes_per_s))}/s after {show_seconds(s.page_out_latency_s)}, "
                f"{'beside' if s.dma else 'by'} the CPU",
            )
        )
    rows += [(key, text) for key, text in sorted(found.about.items())]
    if missing := _missing(graph, merged):
        rows.append(("missing", f"{', '.join(missing[:8])}{', ...' if len(missing) > 8 else ''}: from the roofline"))
    rows.append(("profile", f"{path}, {len(merged.operators)} operators; use it with solve --profile {path}"))
    return table(f"{graph.name}: {found.about.get('machine', 'measured')}", rows)


def instructions_text(emulated: EmulatedProfile) -> str:
    """Return the table of instructions and time on an emulated core: the slowest operators, and all."""
    rows: list[Sequence[str]] = [
        ("operator", "instructions", "cycles: low", "middle", "high", "middle", "most of these")
    ]
    found = sorted(emulated.operators.items(), key=lambda pair: -pair[1].cycles[1])
    rows += [_row(name, one, emulated.clock_hz) for name, one in found[:SLOWEST]]
    if found[SLOWEST:]:
        rows.append(
            _row(f"{len(found) - SLOWEST} others", joined(one for _, one in found[SLOWEST:]), emulated.clock_hz)
        )
    rows.append(_row("a step", joined(emulated.operators.values()), emulated.clock_hz))
    return "\n".join(columns(rows))


def _row(name: str, one: Modelled, clock_hz: float) -> Sequence[str]:
    classes = {kind: count for kind, count in one.classes.items() if kind != TAKEN}
    most = sorted(classes.items(), key=lambda pair: -pair[1])[:2]
    kinds = ", ".join(f"{kind} {100 * count / max(one.instructions, 1):.0f} %" for kind, count in most)
    low, middle, high = (f"{round(cycles):,}" for cycles in one.cycles)
    return f"  {name}", f"{one.instructions:,}", low, middle, high, show_seconds(one.cycles[1] / clock_hz), kinds


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


def device_fit_text(plan: Plan, ended: DeviceFit, out: str) -> str:
    """Return the summary of `poetopt train --on`."""
    pairs = zip(ended.epoch_losses, ended.reference_epoch_losses, strict=True)
    rows = [
        (f"epoch {epoch}", f"loss {mine:.6g} (mean), on onnxruntime {theirs:.6g}")
        for epoch, (mine, theirs) in enumerate(pairs, 1)
    ]
    rows += left_out_rows(ended)
    found = ended.validation
    if found is not None:
        shown = f"loss {found.loss:.6g}" if found.accuracy is None else f"accuracy {100 * found.accuracy:.1f} %"
        rows.append(("validation", f"{shown} of {found.rows:,} rows, by what {ended.steps.on} itself predicts"))
    after = f"{out} is the trained network; any ONNX runtime runs it" if ended.steps.ok else "nothing was written"
    return device_training_text(plan, ended.steps, rows, after)


def device_training_text(plan: Plan, ended: DeviceTraining, more: Sequence[Row] = (), after: str = "") -> str:
    """Return the summary of `poetopt run --on --steps`, with `more` rows; `after` is the next command."""
    same = (
        "bit for bit those of the unscheduled steps on the same kernels"
        if ended.bit_identical
        else "they differ from the unscheduled steps'"
    )
    cost = ""
    if ended.instructions is not None:
        each = ended.instructions // ended.steps
        cost = f"{ended.instructions:,} instructions, {each:,} a step"
    rows = answer(_fit(ended), cost, f"losses and {len(ended.values)} parameters: {same}", after)
    rows.append(
        (
            "losses",
            f"{ended.losses[0]:.6g} in the first step, {ended.losses[-1]:.6g} in the last; no step's is more than "
            f"{ended.max_loss_diff:.2g} from onnxruntime's",
        )
    )
    rows += more
    rows += _moved(ended)
    rows += _predicted(ended)
    rows += network_rows(said(plan))
    rows.append(
        Exact(
            (
                "check",
                f"the parameters' changes are {ended.distance:.2g} from onnxruntime's (relative), the losses "
                f"{ended.loss_distance:.2g}; {_allowed(ended.sensitivity)}",
            )
        )
    )
    rows.append(Exact(("memory", _memory(ended))))
    title = f"{plan.problem.called}: {count(ended.steps, 'step')} of training in C on {ended.on}"
    return table(f"{title}, {optimizer_words(ended)}", rows)


def _allowed(sensitivity: float) -> str:
    return f"{TOLERANCE:g} times {sensitivity:.2g} is allowed, by which one ulp of the input moves them"


def _predicted(checks: DeviceChecks) -> list[Row]:
    found = checks.predicted
    if found is None:
        return []
    text = (
        f"outputs {found.distance:.2g} from onnxruntime's (relative), where {TOLERANCE:g} times "
        f"{found.sensitivity:.2g} is allowed"
    )
    return [
        ("inference", f"po_predict takes {show_bytes(found.arena_bytes)} of the arena"),
        Exact(("inference", f"po_predict takes {found.arena_bytes:,} B; {text}")),
    ]


def _inference(emitted: Emitted) -> str:
    if emitted.prediction_bytes is None:
        return NO_PREDICTION
    without = ", ".join(emitted.not_predicted)
    more = f", without {without}, which nothing computes" if without else ""
    return f"po_predict takes {show_bytes(emitted.prediction_bytes)} of the arena{more}"


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


def _moved(ended: DeviceExecution | DeviceTraining) -> list[Row]:
    """Return the row of the traffic with storage in a step, if there is any."""
    moved = moved_words(ended.bytes_paged, ended.bytes_streamed)
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
