"""Names and texts of a model as C takes them."""

from __future__ import annotations

import re

LONGEST = 40


def identifier(name: str) -> str:
    """`name` with what no C identifier may have replaced; not unique, and it may begin with a digit."""
    return re.sub(r"[^0-9A-Za-z]+", "_", name).strip("_")[:LONGEST] or "x"


def comment(text: str) -> str:
    """`text` as it may stand in a comment: a line of printable ASCII that means nothing to C or a terminal."""
    plain = re.sub(r"\s+", " ", text).encode("ascii", "backslashreplace").decode("ascii")
    plain = re.sub(r"[^ -~]", "?", plain).replace("\\", "|").replace("*/", "* /").replace("/*", "/ *")
    return re.sub(r"\?(?=\?)", "? ", plain)  # two in a row begin a trigraph


def literal(text: str) -> str:
    """`text` as a C string."""
    made = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}" for byte in text.encode("utf-8")
    )
    return f'"{made}"'
