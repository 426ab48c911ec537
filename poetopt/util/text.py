"""Texts for people: what can be printed, and the name that was meant."""

from __future__ import annotations

import difflib
import json
import re
import unicodedata
from collections.abc import Iterable

LONGEST_WORD = 400
LONGEST_LINE = 4000
"""In characters: more than any name, path or message that people wrote has."""


def unshown(character: str) -> bool:
    """Whether it is a control character, a direction mark or the like."""
    # unicode categories that a terminal or a page would obey rather than show
    return unicodedata.category(character) in {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}


def shown(text: str, *, keep: str = "") -> str:
    """`text` with control characters, direction marks and the like written out as escapes, but for those in `keep`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(c) if unshown(c) and c not in keep else c for c in text)


def escaped(error: UnicodeError) -> tuple[str, int]:
    """What an encoding lacks as escapes that are JSON's too; a handler for `codecs.register_error`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return json.dumps(lacking)[1:-1], error.end


def shortened(text: str) -> str:
    """`text` with the middle of overlong words and lines left out: names in damaged files have thousands of letters."""
    words = re.sub(rf"\S{{{LONGEST_WORD + 1},}}", lambda found: _ends(found[0], LONGEST_WORD), text)
    return "\n".join(_ends(line, LONGEST_LINE) for line in words.split("\n"))


def _ends(text: str, most: int) -> str:
    """Both ends of `text`, `most` characters at most, and how many were between them."""
    if len(text) <= most:
        return text
    half = most // 2 - 20
    return f"{text[:half]}[...{len(text) - 2 * half} more...]{text[-half:]}"


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def near(name: str, names: Iterable[str], most: int = 2) -> list[str]:
    """The names that hold `name` or begin like it, then those that are spelled alike, in any case."""
    known = {known.lower(): known for known in names}
    asked = name.strip().lower()
    if asked in known:
        return [known[asked]]
    holding = [key for key in known if len(asked) > 1 and (asked in key or (key in asked and len(key) > 1))]
    alike = difflib.get_close_matches(asked, known, n=most)
    return [known[key] for key in dict.fromkeys((*(key for key in alike if key in holding), *holding, *alike))][:most]


def closest(name: str, names: Iterable[str]) -> str:
    """`; closest: this or that`, for the end of a message; empty where no name is near."""
    found = near(name, names)
    return f"; closest: {' or '.join(found)}" if found else ""


def without_remedy(message: str) -> str:
    """Return the problem that a message states, without the sentences or clauses that follow it."""
    return re.split(r"; |\. (?=[A-Z])", message, maxsplit=1)[0]


def exported(given: object) -> str:
    """Says what makes a model of a torch module; empty for anything else."""
    if not all(hasattr(given, name) for name in ("forward", "state_dict", "named_parameters")):
        return ""
    return (
        'a torch module is exported first: model = po.torch.export(module, example, "net.onnx"); po.fit(module, data, '
        'device="rpi4") trains it in one call'
    )
