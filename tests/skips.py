"""Why a test may skip: what it needs isn't there. Any other skip is a failure, so that nothing skips silently.

A run says with `--present NAME` what may not be absent: `packages`, `torch` or `system`. Then that is a failure, too.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.seeds import everything

ROOT = Path(__file__).resolve().parents[1]
GROUPS = ("packages", "torch", "system")
"""What pip brings without torch, what comes with torch, and what only the system's packages bring."""


@dataclass(frozen=True)
class Known:
    """A reason to skip.

    words
        A pattern of the reason.
    may
        Says of a reason's match whether the test may skip for it here.
    group
        Of those of `GROUPS`; the others are of the machine itself, or of a case that was drawn.
    """

    words: str
    may: Callable[[re.Match[str]], bool]
    group: str = ""


def _lacks(*programs: str) -> Callable[[object], bool]:
    return lambda _: not any(map(shutil.which, programs))


def _lacks_module(match: re.Match[str]) -> bool:
    return find_spec(match["module"]) is None


def _lacks_path(path: str | Path) -> Callable[[object], bool]:
    return lambda _: not Path(path).exists()


def _unless_linux(_: object) -> bool:
    return sys.platform != "linux"


def _unless_posix(_: object) -> bool:
    return os.name != "posix"


def _always(_: object) -> bool:
    return True


IMPORT = "could not import '(?P<module>{})[.']"
KNOWN = (
    Known(IMPORT.format("torch|onnxscript|sklearn"), _lacks_module, "torch"),
    Known("(?P<module>torch) is not installed", _lacks_module, "torch"),
    Known(
        IMPORT.format("PIL|capstone|distributed|hatchling|matplotlib|onnx_ir|onnxruntime|pyscipopt|tensorboardX"),
        _lacks_module,
        "packages",
    ),
    Known("backend '.*' is not installed", _always, "packages"),
    Known("(?P<module>gurobipy) is not installed", _lacks_module, "packages"),
    Known("backend 'gurobi' has no valid licence", _always),
    Known("zig isn't installed", lambda _: find_spec("ziglang") is None, "packages"),
    Known("the emulator isn't installed", lambda _: find_spec("unicorn") is None, "packages"),
    Known("no C compiler", _lacks("cc", "gcc", "clang"), "system"),
    Known("the compiler has no address sanitizer", _always, "system"),
    Known("compiles C\\+\\+, reads /proc", _lacks("g++"), "system"),
    Known("QEMU for ARM isn't installed", _lacks("qemu-system-arm"), "system"),
    Known("the shared .* are not here|the cases aren't there|a shared file", _lacks_path(ROOT.parent / "shared")),
    Known("MiniMalloc's problems are not here|.* is not there", _lacks_path(ROOT.parent / "shared")),
    Known("this onnx package comes without its test data", _always),
    Known("resident memory can't be measured|this platform doesn't say what is resident", _unless_linux),
    Known("the peak is read from /proc|sees mapped files in /proc", _unless_linux),
    Known("links are exchanged atomically by renaming|names are UTF-8 here", _unless_linux),
    Known("this C library gives nothing back", lambda _: not hasattr(ctypes.CDLL(None), "malloc_trim")),
    Known("no named pipes", _unless_posix),
    Known(IMPORT.format("resource"), _unless_posix),
    Known("reads a pipe", _lacks_path("/dev/fd")),
    Known("no endless device", _lacks_path("/dev/zero")),
    Known("(no|needs) /dev/full", _lacks_path("/dev/full")),
    Known("a source distribution has no links", _lacks_path(ROOT / "formulations")),
    Known("one emulated board at each change", lambda _: not everything()),
    Known("everything fits|no schedule of Algorithm 1 exists", _always),
)


def fault(reason: str, present: Iterable[str], marks: Iterable[str]) -> str:
    """Say why a test may not skip for a reason; empty: it may.

    present
        Groups of which nothing may be absent.
    marks
        The test's own: `make torch` goes through those with the mark `torch`.
    """
    for known in KNOWN:
        if match := re.match(known.words, reason):
            if known.group in present:
                return f"skipped ({reason}), and nothing of '{known.group}' may be absent in this run"
            if known.group == "torch" and "torch" not in marks:
                return f"skipped ({reason}) without the mark torch, so that nothing runs it where torch is"
            return "" if known.may(match) else f"skipped ({reason}), and that isn't so here"
    return f"skipped ({reason}): tests/skips.py doesn't know that reason; name there what the test needs"


def reason_of(longrepr: object) -> str:
    """The reason in the report of a skipped test."""
    said = longrepr[-1] if isinstance(longrepr, tuple) else str(longrepr)
    return str(said).removeprefix("Skipped: ")


def counted(reasons: Iterable[str]) -> list[str]:
    """A line for each reason, most first."""
    return [f"{count} skipped: {reason}" for reason, count in Counter(reasons).most_common()]
