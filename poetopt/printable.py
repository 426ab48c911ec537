"""Text from files, made safe for a terminal or a page: what would be obeyed rather than shown is written out."""

from __future__ import annotations

import unicodedata

_UNSHOWN = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
"""Unicode categories that a terminal or a page would obey rather than show."""


def unshown(character: str) -> bool:
    """Whether it is a control character, a direction mark or the like."""
    return unicodedata.category(character) in _UNSHOWN


def shown(text: str, *, keep: str = "") -> str:
    """`text` with control characters, direction marks and the like written out as escapes, but for those in `keep`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(c) if unshown(c) and c not in keep else c for c in text)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
