"""Texts for users: escape unprintable characters, shorten long texts, suggest names."""

from __future__ import annotations

import difflib
import json
import re
import unicodedata
from collections.abc import Iterable

LONGEST_WORD = 400
LONGEST_LINE = 4000
"""Limits in characters, longer than any name, path or message that people write."""


def unshown(character: str) -> bool:
    """Return whether a character is invisible: a control character, a direction mark or the like."""
    # Unicode categories that a terminal or a page interprets rather than shows
    return unicodedata.category(character) in {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}


def shown(text: str, *, keep: str = "") -> str:
    """Return `text` with invisible characters as escapes, except those in `keep`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(c) if unshown(c) and c not in keep else c for c in text)


def escaped(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks by JSON escapes; a handler for `codecs.register_error`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return json.dumps(lacking)[1:-1], error.end


def shortened(text: str) -> str:
    """Return `text` with overlong words and lines shortened: names in damaged files have thousands of letters."""
    words = re.sub(rf"\S{{{LONGEST_WORD + 1},}}", lambda found: _ends(found[0], LONGEST_WORD), text)
    return "\n".join(_ends(line, LONGEST_LINE) for line in words.split("\n"))


def _ends(text: str, most: int) -> str:
    """Return both ends of `text`, at most `most` characters, with the number of omitted ones between."""
    if len(text) <= most:
        return text
    half = most // 2 - 20
    return f"{text[:half]}[...{len(text) - 2 * half} more...]{text[-half:]}"


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def near(name: str, names: Iterable[str], most: int = 2) -> list[str]:
    """Return the names that contain `name` or are contained in it, then those spelled alike, ignoring case."""
    known = {entry.lower(): entry for entry in names}
    wanted = name.strip().lower()
    if wanted in known:
        return [known[wanted]]
    nested = [key for key in known if len(wanted) > 1 and (wanted in key or (key in wanted and len(key) > 1))]
    similar = difflib.get_close_matches(wanted, known, n=most)
    return [known[key] for key in dict.fromkeys((*(key for key in similar if key in nested), *nested, *similar))][:most]


def closest(name: str, names: Iterable[str]) -> str:
    """Return `; closest: this or that` for the end of a message; empty if no name is close."""
    close = near(name, names)
    return f"; closest: {' or '.join(close)}" if close else ""


def without_remedy(message: str) -> str:
    """Return the problem that a message states, without the sentences or clauses that follow it."""
    return re.split(r"; |\. (?=[A-Z])", message, maxsplit=1)[0]


def exported(given: object) -> str:
    """Return how to turn a torch module into a model; empty for any other object."""
    if not all(hasattr(given, name) for name in ("forward", "state_dict", "named_parameters")):
        return ""
    return (
        'a torch module must be exported first: model = po.torch.export(module, example, "net.onnx"); '
        'po.fit(module, data, device="rpi4") trains it in one call'
    )
