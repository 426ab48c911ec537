"""What a training showed, for people."""

from __future__ import annotations

from poetopt.graph import TrainingGraph
from poetopt.report.layout import table
from poetopt.training.result import Position, Trained
from poetopt.util import notes
from poetopt.util.units import show_bytes, show_seconds


def trained_document(graph: TrainingGraph, ended: Trained, out: str) -> dict[str, object]:
    """The object of `train --json`."""
    return {**ended.to_dict(), "trained": out, "important": notes.document(graph.notes)}


def epoch_text(position: Position, epochs: int) -> str:
    """One epoch's line."""
    text = f"epoch {position.epoch} of {epochs}: loss {position.losses[-1]:.6g}"
    if position.validations and position.validations[-1]["epoch"] == position.epoch:
        text += f"; validation {_validation(position.validations[-1]['loss'], position.validations[-1]['accuracy'])}"
    return text


def trained_text(graph: TrainingGraph, ended: Trained, out: str) -> str:
    """The summary of `poetopt train`."""
    rows = []
    if ended.losses:
        rows.append(("loss", f"{ended.losses[0]:.6g} in the first epoch, {ended.losses[-1]:.6g} in the last (means)"))
    if ended.validations:
        first, last = ended.validations[0], ended.validations[-1]
        rows.append(("validation", f"{_validation(first['loss'], first['accuracy'])} after epoch {first['epoch']}, "
                     f"{_validation(last['loss'], last['accuracy'])} after epoch {last['epoch']}"))  # fmt: skip
    rows.append(("memory", f"{show_bytes(ended.total_ram_bytes)} by the plan{_process(ended)}"))
    rows.append(("time", f"{show_seconds(ended.seconds)}, {show_seconds(ended.step_s)} a step"))
    if ended.left_out:
        rows.append(
            ("note", f"the last {ended.left_out} rows of each epoch fill no batch of {ended.batch}, and were left out")
        )
    if ended.resumed_at:
        rows.append(("note", f"resumed after step {ended.resumed_at:,}"))
    rows += [("note", text) for text in ended.changed]
    rows += [("note", f"a damaged checkpoint was passed over: {fault}") for fault in ended.passed_over]
    rows += notes.rows(graph.notes)
    rows.append(("written", out))
    name = graph.source or graph.name
    how = ", ".join([ended.optimizer, *(f"{key} {value:g}" for key, value in ended.hyperparameters.items())])
    return table(f"{name}: {ended.epochs} epochs, {ended.steps:,} steps of {ended.batch}, {how}", rows)


def _process(ended: Trained) -> str:
    if ended.process_peak_bytes is None:
        return ""
    return f"; {show_bytes(ended.process_peak_bytes)} at most in the process, Python and onnxruntime included"


def _validation(loss: float | int | None, accuracy: float | int | None) -> str:
    text = f"loss {loss:.6g}"
    return text if accuracy is None else f"{text}, accuracy {accuracy:.2%}"
