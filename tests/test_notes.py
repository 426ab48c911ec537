"""Notes that the answer depends on reach every answer; details stay where a model is looked at."""

from __future__ import annotations

import copy
import pickle

from poetopt.util import notes
from poetopt.util.notes import About, Note

SAID = Note("the whole text, with advice", About.GRADIENTS, "the text")


def test_a_note_is_a_text_that_knows_what_it_is_about() -> None:
    assert SAID == "the whole text, with advice"
    assert SAID.about == "gradients"
    assert Note("text").short == "text"
    for again in (pickle.loads(pickle.dumps(SAID)), copy.deepcopy(SAID)):
        assert (again, again.about, again.short) == (SAID, SAID.about, SAID.short)


def test_details_are_not_important() -> None:
    said = ["2 constant nodes folded", SAID, SAID]
    assert notes.important(said) == [SAID]
    assert notes.document(said) == [{"about": "gradients", "text": "the whole text, with advice"}]
    assert notes.rows(said) == [("note", "the text")]


def test_long_lists_end_in_a_count() -> None:
    assert notes.listed(["a", "b", "c"], 3) == "a, b, c"
    assert notes.listed(list("abcde"), 3) == "a, b, c and 2 more"
