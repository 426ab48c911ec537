"""What people should know of a model, one line each, and whether the answer depends on it.

A plain `str` among notes is a detail, which `poetopt inspect` shows. A `Note` says what is trained, which loss it is or
what is odd about the gradients: it stands beside every answer (`solve`, `run`, `grad`), and in JSON under `important`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

SHOWN = 6
"""So many names of a list stand on the screen."""


class About(StrEnum):
    """What a note is about."""

    TRAINED = "trained"
    """Which tensors are trained, and what the exporter did to them."""
    LOSS = "loss"
    """Which loss it is, on what."""
    GRADIENTS = "gradients"
    """Gradients that are right, and not what people expect."""


class Note(str):
    """A note that the answer depends on.

    about
        What it is about.
    short
        What stands beside an answer, where that is less than the whole text.
    """

    about: About
    short: str

    def __new__(cls, text: str, about: About = About.TRAINED, short: str = "") -> Note:
        """The note of that text."""
        note = super().__new__(cls, text)
        note.about, note.short = about, short or text
        return note

    def __getnewargs__(self) -> tuple[str, About, str]:  # type: ignore[override]
        """What copies are made of."""
        return str(self), self.about, self.short


def important(notes: Iterable[str]) -> list[Note]:
    """Those of `notes` that the answer depends on, each once."""
    return list(dict.fromkeys(note for note in notes if isinstance(note, Note)))


def document(notes: Iterable[str]) -> list[dict[str, str]]:
    """The important ones as they stand in JSON."""
    return [{"about": str(note.about), "text": str(note)} for note in important(notes)]


def rows(notes: Iterable[str]) -> list[tuple[str, str]]:
    """The important ones as rows of a summary: label and text."""
    return [("note", note.short) for note in important(notes)]


MOST = 3
"""So many notes stand on a screen."""
_ALL: list[bool] = []


def show_all(*, wanted: bool) -> None:
    """Say whether summaries have all notes from now on, as `--verbose` asks."""
    _ALL[:] = [True] if wanted else []


def all_shown() -> bool:
    """Say whether summaries have all notes."""
    return bool(_ALL)


def few(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The rows without notes behind the first ones, unless all are asked for; they are counted."""
    places = [k for k, (label, _) in enumerate(rows) if label == "note"]
    left_out = places[MOST - 1 :] if len(places) > MOST and not all_shown() else []
    counted = ("note", f"{len(left_out)} more with --verbose, and in --json")
    return [counted if k in left_out[:1] else row for k, row in enumerate(rows) if k not in left_out[1:]]


def loss_of(notes: Iterable[str]) -> tuple[str, list[str]]:
    """Which loss it is, as a summary says it ("" where no note does), and the other notes."""
    found, others = "", []
    for note in notes:
        if isinstance(note, Note) and note.about is About.LOSS and note.startswith("loss: "):
            found = note.short.removeprefix("loss: ")
        else:
            others.append(note)
    return found, others


def listed(names: Sequence[str], most: int = SHOWN) -> str:
    """The names, the last of a long list as a count: `a, b and 12 more`."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"
