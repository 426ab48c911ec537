"""The summary of an answer: each line is made from the figures of its JSON document alone.

`solve` and notebooks show it, and so do the page and the text of a plan file, whose document is recomputed from the
plan (`poetopt.report.verification.recounted`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from poetopt.graph import FORWARD_ONLY
from poetopt.report.layout import Exact, Row, answer
from poetopt.report.proof import exact_words, headline, proof_words
from poetopt.search.solution import DeadlineModel
from poetopt.util import notes as told
from poetopt.util.text import shown
from poetopt.util.units import finite, show_amount, show_bytes, show_joules, show_seconds, show_share

Document = Mapping[str, Any]


def rows(document: Document, notes: Sequence[str] | None = None, after: str = "") -> list[Row]:
    """Return the rows of the summary: the answer, the details behind it, and those that `--verbose` shows.

    Parameters
    ----------
    notes
        Notes of the frontend and the loss; by default the important ones of the document.
    after
        The next command or call.
    """
    important = document.get("important") or ()
    network = [told.Note(one["text"], told.About(one["about"])) for one in important] if notes is None else notes
    loss, notes_of_network = told.loss_of(network)
    found = answer(_fit(document), _cost(document), headline(document), after)
    found += [(label, text) for label, lines in DETAILS for text in lines(document)]
    found += [("loss", loss)] if loss else []
    found += told.rows(notes_of_network)
    found += [("note", text) for text in _notes(document, network)]
    exact = [(label, text) for label, lines in FIGURES for text in lines(document)]
    exact += [("solved", made_by(document))] if made_by(document) else []
    return [*((label, shown(text)) for label, text in found), *(Exact((label, shown(text))) for label, text in exact)]


def title(document: Document) -> str:
    """Return the network and the device, with the size of the problem, in a line."""
    name = shown(str(document.get("model_ref") or document.get("model") or "")) or "a model without a name"
    return (
        f"{name} on {shown(str(document['device']))}: {document['operators']} operators, {document['tensors']} tensors"
    )


def proof(document: Document) -> str:
    """Return the proof of the plan, in plain sentences; "optimal" appears only for a proof."""
    lines = [headline(document), *proof_words(document).split("\n")[1:]]
    return " ".join(f"{shown(line[:1].upper() + line[1:])}." for line in lines)


def proof_exact(document: Document) -> str:
    """Return the proof of the scope as the formulation defines it; "" if nothing is proven."""
    words = exact_words(document)
    return f"{shown(words[:1].upper() + words[1:])}." if words else ""


def made_by(document: Document) -> str:
    """Return formulation, backend and seconds, in a line."""
    total = show_seconds(finite(document.get("total_s")) or 0.0)
    if document.get("backend") is None:
        return ""
    if document.get("scope") == "store-all":
        return f"in {total}, without a solver"
    build, solve = (show_seconds(finite(document.get(key)) or 0.0) for key in ("build_s", "solve_s"))
    maker = shown(f"{document.get('formulation')} on {document.get('backend')}")
    return f"{maker}: built in {build}, solved in {solve}, {total} in all"


def warning(document: Document) -> str | None:
    """Return the warning that a step takes more RAM than the device has, with the remedy; None if it fits."""
    if document.get("fits_device") is not False:
        return None
    return (
        f"the step doesn't fit: it takes {document['total_ram_bytes']:,} bytes, and {document['device']} has "
        f"{document['device_ram_bytes']:,}. Plan for the device's own RAM: leave out the budget."
    )


def _fit(document: Document) -> str:
    """Return what the schedule takes of the budget and the step of the device's RAM; the warning if it is too much."""
    peak, budget, store_all = (document[key] for key in ("peak_bytes", "ram_budget_bytes", "store_all_peak_bytes"))
    if peak is None:
        return "no schedule was found" + (f" in {show_bytes(budget, 4)}" if budget is not None else "")
    taken = max(peak, (document.get("arena_bytes") or 0) + document["reserve_bytes"])
    parts = [warning(document) or "", f"peak {show_bytes(taken, 4)}"]
    if budget is not None:
        parts[-1] += f" of {show_bytes(budget, 4)}"
    if document.get("scope") == "store-all":
        parts.append("store-all fits, and there was nothing to save")
    else:
        parts.append(f"store-all {show_bytes(store_all, 4)}")
    total, limit = document.get("total_ram_bytes"), document["device_ram_bytes"]
    if total is not None:
        of_device = "" if limit is None else f" of the {show_bytes(limit)} of {document['device']}"
        parts.append(f"the whole step {show_bytes(total)}{of_device}")
    return "; ".join(filter(None, parts))


def _cost(document: Document) -> str:
    """Return energy and time of a step beside those of store-all; "" without a schedule."""
    baseline, overhead, makespan = (document[key] for key in ("baseline_energy_j", "overhead_j", "makespan_s"))
    if overhead is None or makespan is None:
        return ""
    text = f"{show_joules(baseline + overhead)} and {show_seconds(makespan)} a step"
    one_pass, limit = document["baseline_time_s"], document["deadline_s"]
    other = "one pass over all operators" if document["parameters"] == "paged" else "store-all"
    if overhead and baseline:
        slower = f", {makespan / one_pass:.3g}x the time" if one_pass and makespan > 1.005 * one_pass else ""
        text += f"; {show_share(overhead / baseline)} more energy than {other} ({show_joules(overhead)}){slower}"
    elif not overhead:
        text += f"; no more energy than {other}"
    return text if limit is None else f"{text}; deadline {show_seconds(limit)}{_by(document)}"


def next_call(document: Document) -> str:
    """Return the call of Python that uses the plan of a report; "" without a plan."""
    if document["peak_bytes"] is None:
        return ""
    if document.get("loss") is None:
        return "po.show(report) draws the schedule"
    if document.get("runtime") == "c":
        return 'po.emit(report, "firmware") writes the step in C'
    if document.get("optimizer") not in (None, "none"):
        return "po.Trainer(report).fit(data) trains with it"
    return "po.execute(report) runs the step and compares its results with ordinary training"


def next_command(document: Document, plan: str | None) -> str:
    """Return the command that uses the plan file `plan`; None: the plan was not written."""
    if document["peak_bytes"] is None:
        return ""
    file = plan or "plan.json"
    if document.get("loss") is None:
        command = f"poetopt show {file}"
    elif document.get("runtime") == "c":
        command = f"poetopt emit {file} -o firmware"
    elif document.get("optimizer") not in (None, "none"):
        command = f"poetopt train {file} --data train.npz -o trained.onnx"
    else:
        command = f"poetopt run {file}"
    return command if plan else f"repeat with -o {file}, then: {command}"


def _largest(document: Document) -> Iterator[str]:
    largest = document.get("largest_batch")
    if largest:
        text = f"{largest['batch']:,} is the largest"
        if largest["refused"] is None:
            yield f"{text} that can be asked for"
        elif largest["proven"]:
            yield f"{text}: with {largest['refused']:,}, {largest['why']}"
        else:
            yield (
                f"{text} with a known schedule, and {largest['refused']:,} has none: {largest['why']}; nothing is "
                "known in between"
            )
    parts = document.get("micro_batches") or 1
    if parts > 1:
        yield f"in {parts:,} parts, each by this schedule; all figures are of the whole step"
    for parts_tried in document.get("micro_batches_tried") or ():
        number = parts_tried["micro_batches"]
        text = parts_tried["why"]
        if parts_tried["energy_j"] is not None:
            text = f"{show_joules(parts_tried['energy_j'])}, {show_seconds(parts_tried['time_s'])}, "
            text += f"{show_bytes(parts_tried['total_ram_bytes'])} in all{': taken' if number == parts else ''}"
        yield f"{number:,} part{'s' * (number > 1)}: {text}"


def _ram(document: Document) -> Iterator[str]:
    budget, store_all = document["ram_budget_bytes"], document["store_all_peak_bytes"]
    text = "no budget is named" if budget is None else f"budget {budget:,} B ({show_bytes(budget)})"
    if budget is not None and store_all > budget:
        text += f", {show_share(budget / store_all)} of the {show_bytes(store_all)} that store-all takes"
    peak, reserve = document["peak_bytes"], document["reserve_bytes"]
    if peak is not None:
        laid = (document.get("arena_bytes") or 0) + reserve
        text += f"; peak {peak:,} B" + (f", {laid:,} B with gaps between buffers" if laid > peak else "")
    text += f", {reserve:,} B of it for kernels" if reserve else ""
    yield text


def _memory(document: Document) -> Iterator[str]:
    total, resident = document.get("total_ram_bytes"), document["resident_bytes"]
    if document["peak_bytes"] is None or total is None:
        if resident:
            yield f"{show_bytes(resident)} of parameters, gradients and constants beside it, never scheduled"
        return
    text = f"{show_bytes(total)} in all"
    text += f" with {show_bytes(document['stack_bytes'])} of stack" if document["stack_bytes"] else ""
    if document["parameters"] == "paged":
        in_ram = show_bytes(document["parameter_bytes_in_ram"] or 0)
        text += f": of parameters and states {in_ram} begin the step in RAM, others on storage; updated by "
        text += str(document["optimizer"])
    elif resident:
        text += f": {show_bytes(resident)} of parameters, gradients and constants beside the schedule"
    text += f"; {show_bytes(document['flash_bytes'])} lie in flash" if document["flash_bytes"] else ""
    limit = document["device_ram_bytes"]
    if limit is not None:
        text += f"; {document['device']} has {show_bytes(limit)}" + (", LESS THAN THAT" if total > limit else "")
    yield text


def _energy(document: Document) -> Iterator[str]:
    baseline, overhead = document["baseline_energy_j"], document["overhead_j"]
    if overhead is not None:
        share = f" ({show_share(overhead / baseline)})" if baseline else ""
        yield f"{show_joules(baseline)} baseline + {show_joules(overhead)} overhead{share}"


NO_PREDICTION = "no po_predict: the step has no outputs beside its results, moves rows of tables, or leaves no room"


def _inference(document: Document) -> Iterator[str]:
    if not _has_inference(document):
        return
    taken, arena = document.get("prediction_bytes"), document["arena_bytes"]
    fits = "" if taken is None else f"po_predict fits in the same RAM: {show_bytes(taken)} of the {show_bytes(arena)}"
    yield fits or NO_PREDICTION


def _exact_inference(document: Document) -> Iterator[str]:
    if _has_inference(document) and document.get("prediction_bytes") is not None:
        yield f"po_predict takes {document['prediction_bytes']:,} B of the {document['arena_bytes']:,}"


def _has_inference(document: Document) -> bool:
    """Return whether the plan is of a step in C that could have `po_predict`."""
    trains = document["loss"] not in (None, FORWARD_ONLY)
    return trains and document.get("runtime") == "c" and document["arena_bytes"] is not None


def _by(document: Document) -> str:
    paper = document.get("deadline_model") == DeadlineModel.PAPER
    return ", counted as the sum of compute times" if paper else ""


def _time(document: Document) -> Iterator[str]:
    makespan, one_pass, limit = (document[key] for key in ("makespan_s", "baseline_time_s", "deadline_s"))
    if makespan is not None:
        text = f"{show_seconds(makespan)} a step" + (f" ({makespan / one_pass:.3g}x one pass)" if one_pass else "")
        yield text + (", no deadline" if limit is None else f", deadline {show_seconds(limit)}{_by(document)}")


def _schedule(document: Document) -> Iterator[str]:
    if document["peak_bytes"] is None or document.get("scope") == "store-all":
        return
    counts = ((document[f"{name}s".replace("-", "_")], name) for name in ("recompute", "page-out", "page-in"))
    text = ", ".join(f"{count:,} {name}{'s' * (count != 1)}" for count, name in counts)
    runs = document["streamed_runs"]
    text += f"; {runs:,} run{'s' * (runs > 1)} streamed" if runs else ""
    yield text


def _transfers(document: Document) -> Iterator[str]:
    paged, streamed = document.get("bytes_paged") or 0, document.get("bytes_streamed") or 0
    took, hidden = document["transfer_s"], document["hidden_s"]
    if not paged + streamed:
        return
    text = show_bytes(paged) if paged else ""
    if took and hidden is not None:
        # smaller values are rounding errors of sums
        during = f"{show_seconds(hidden)} of it while the CPU computes" if hidden > 1e-12 else "while the CPU waits"
        text = f"{show_bytes(paged)} in {show_seconds(took)}, {during}"
    if streamed:
        chunks = f"{show_bytes(streamed)} in chunks, in their operators' time"
        text = f"{text}; {chunks}" if text else chunks
    if written := document.get("bytes_written") or 0:
        holds = document.get("storage_bytes")
        share = written / (holds or written)
        worn = f" ({show_share(share) if share >= LEAST_SHARE else 'under 0.001 %'} of the storage)" if holds else ""
        text += f"; {show_bytes(written)} written{worn}"
    yield text


def _cheaper(document: Document) -> Iterator[str]:
    """Yield a cheaper alternative to a plan that costs more than twice the energy of store-all."""
    overhead, baseline, batch = document["overhead_j"], document["baseline_energy_j"], document.get("batch")
    # an overhead of the baseline's energy or more asks for another batch
    if not overhead or not baseline or overhead < baseline or document.get("scope") == "store-all":
        return
    room, all_bytes = document["ram_budget_bytes"], document["store_all_peak_bytes"]
    fits = 0
    if batch and room and all_bytes and document["parameters"] != "paged":
        fits = batch // (document.get("micro_batches") or 1) * room // all_bytes
    text = f"{overhead / baseline:.1f} times the energy of ordinary training is spent beside it"
    if batch and 0 < fits < batch:
        parts = next(k for k in range(-(-batch // fits), batch + 1) if batch % k == 0)
        text += f": about a batch of {fits:,}, or --micro-batch {parts:,}, fits without that"
    yield f"{text}; `poetopt fit` shows what each batch costs"


def _training(document: Document) -> Iterator[str]:
    run = document.get("training")
    if not run:
        return
    text = f"{run['steps']:,} step{'s' * (run['steps'] > 1)}"
    if run["samples"] is not None:
        left_out = f", {run['left_out']:,} left out" if run["left_out"] else ""
        text += f" ({run['epochs']:,} x {run['samples']:,} samples in batches of {run['batch']:,}{left_out})"
    if run["time_s"] is not None:
        text += f": {show_seconds(run['time_s'])}"
        text += "" if run["deadline_s"] is None else f" of {show_seconds(run['deadline_s'])}{_by(document)}"
        text += f", {show_joules(run['energy_j'])}"
        text += f", {show_bytes(run['bytes_written'])} written to storage" if run["bytes_written"] else ""
    yield text


def _minimised(document: Document) -> Iterator[str]:
    objective = document.get("objective") or {}
    if objective.get("name", "energy") == "energy":
        return
    unit, value, bound = objective["unit"], objective["overhead"], objective["bound"]
    parts = [f"{show_amount(objective['baseline'], unit)} of one pass"] if objective["baseline"] else []
    parts += [] if value is None else [show_amount(value, unit)]
    needed = f", of which {show_amount(bound, unit)} are proven to be needed" if bound and value is not None else ""
    yield f"{objective['name']}: {' + '.join(parts) or 'none'}{needed}"


def _scope(document: Document) -> Iterator[str]:
    """Yield what is proven of the schedules that were searched, where that is more than what is proven of all."""
    yield from proof_words(document).split("\n")[1:]


def _notes(document: Document, shown_already: Sequence[str]) -> Iterator[str]:
    if document.get("interrupted"):
        yield "interrupted: this is the best schedule so far"
    if document["peak_bytes"] is not None and document.get("reason"):
        yield str(document["reason"])
    yield from (text for text in document.get("notes") or () if text not in shown_already)


Lines = Sequence[tuple[str, Callable[[Document], Iterator[str]]]]
DETAILS: Lines = (
    ("batch", _largest),
    ("cheaper", _cheaper),
    ("training", _training),
    ("schedule", _schedule),
    ("transfers", _transfers),
    ("asked", lambda document: iter(map(str, document.get("asks") or ()))),
    ("minimised", _minimised),
    ("scope", _scope),
    ("inference", _inference),
)
"""Rows behind the answer: label, and the texts that a document gives for it."""
FIGURES: Lines = (
    ("RAM", _ram),
    ("memory", _memory),
    ("energy", _energy),
    ("time", _time),
    ("inference", _exact_inference),
)
"""Rows with `--verbose`."""
LEAST_SHARE = 1e-5
"""Smaller shares of the storage are not told apart."""
FACTS = ("fit", "cost", "schedule", "transfers")
"""Rows that a page shows as figures."""
