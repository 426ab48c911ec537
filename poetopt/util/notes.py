"""Notes on a model for the user, one line each, and whether a result depends on them.

A plain `str` among notes is a detail, which `poetopt inspect` shows. A `Note` is about the trained tensors, the loss,
or unexpected gradients: every result shows it (`solve`, `run`, `grad`), and JSON has it under `important`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

SHOWN = 6
"""Limit of names in a list on the screen."""


class About(StrEnum):
    """Subjects of notes."""

    TRAINED = "trained"
    """The trained tensors, and what the exporter did to them."""
    LOSS = "loss"
    """The loss, and the output that it is on."""
    GRADIENTS = "gradients"
    """Gradients that are correct but unexpected."""


class Note(str):
    """A note that a result depends on.

    Attributes
    ----------
    about
        The subject.
    short
        Text beside a result; default: the whole text.
    """

    about: About
    short: str

    def __new__(cls, text: str, about: About = About.TRAINED, short: str = "") -> Note:
        """Create a note of `text`."""
        note = super().__new__(cls, text)
        note.about, note.short = about, short or text
        return note

    def __getnewargs__(self) -> tuple[str, About, str]:  # type: ignore[override]
        """Return the arguments of `__new__` for copies and pickles."""
        return str(self), self.about, self.short


def important(notes: Iterable[str]) -> list[Note]:
    """Return the notes that a result depends on, without duplicates."""
    return list(dict.fromkeys(note for note in notes if isinstance(note, Note)))


def document(notes: Iterable[str]) -> list[dict[str, str]]:
    """Return the important notes for JSON."""
    return [{"about": str(note.about), "text": str(note)} for note in important(notes)]


def rows(notes: Iterable[str]) -> list[tuple[str, str]]:
    """Return the important notes as lines of a summary: label and text."""
    return [("note", note.short) for note in important(notes)]


MOST = 3
"""Limit of notes on the screen."""
_ALL: list[bool] = []


def show_all(*, wanted: bool) -> None:
    """Set whether summaries have all notes, as with `--verbose`."""
    _ALL[:] = [True] if wanted else []


def all_shown() -> bool:
    """Return whether summaries have all notes."""
    return bool(_ALL)


def few(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Replace notes beyond the limit by their count, unless all are shown."""
    note_indices = [k for k, (label, _) in enumerate(rows) if label == "note"]
    hidden = note_indices[MOST - 1 :] if len(note_indices) > MOST and not all_shown() else []
    counted = ("note", f"{len(hidden)} more with --verbose, and in --json")
    return [counted if k in hidden[:1] else row for k, row in enumerate(rows) if k not in hidden[1:]]


def loss_of(notes: Iterable[str]) -> tuple[str, list[str]]:
    """Return the loss for a summary ("" if no note has it), and the other notes."""
    loss, others = "", []
    for note in notes:
        if isinstance(note, Note) and note.about is About.LOSS and note.startswith("loss: "):
            loss = note.short.removeprefix("loss: ")
        else:
            others.append(note)
    return loss, others


def listed(names: Sequence[str], most: int = SHOWN) -> str:
    """Join names, with a count for the rest of a long list: `a, b and 12 more`."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"
