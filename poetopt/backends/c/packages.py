"""Emitted sources as a package of somebody else's build: CMake, Zephyr, Arduino, PlatformIO, ESP-IDF.

A package has the step without an example, a start-up or a linker script, and constants as arrays of C, so that it is
built from wherever it lies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Template

from poetopt.backends.c.text import filled
from poetopt.util.errors import OptionError
from poetopt.util.version import __version__

PLAIN = "plain"
FLAGS = "-ffp-contract=off -fno-math-errno"
FILES = {
    "cmake": ("CMakeLists.txt",),
    "zephyr": ("CMakeLists.txt", "zephyr/module.yml"),
    "esp-idf": ("CMakeLists.txt",),
    "platformio": ("library.json",),
    "arduino": ("library.properties",),
}
"""Files that each build wants beside the sources."""
HOW: Mapping[str, str] = {
    "cmake": "`add_subdirectory` of this folder, and `target_link_libraries(app PRIVATE $name)`.",
    "zephyr": "Name this folder in `ZEPHYR_EXTRA_MODULES`, or in the manifest.",
    "esp-idf": "Put this folder into `components/$name`, and name `$name` in `REQUIRES`.",
    "platformio": "Put this folder into `lib/$name`.",
    "arduino": "Put this folder into `libraries/$name`, and include `$name.h`.",
}
FORMS = (PLAIN, *FILES)
_OWN = re.compile(r"main(?:_sd)?\.c|driver_nor\.c|\w+_(?:startup|libm)\.c|\w+\.ld|freestanding/.*")
"""What a board without a system has of its own here, and has of somebody else in a package."""
_LISTED = re.compile(r"\| `(main|driver|freestanding|\w+_(startup|libm)\.c)")
_EMBEDDED = re.compile(r"#if defined\(__APPLE__\)\n.*?#endif\n", re.DOTALL)


def packaged(made: Mapping[str, bytes], form: str, prefix: str) -> Mapping[str, bytes]:
    """The emitted files, whose names begin with `prefix`, as a package of that form; themselves where it is plain.

    Raises `OptionError` for another form.
    """
    if form not in FORMS:
        raise OptionError(f"--as {form}: must be {', '.join(FORMS)}")
    if form == PLAIN:
        return made
    kept = {name: content for name, content in made.items() if not _OWN.fullmatch(name)}
    for what in ("weights", "flash"):
        source = f"{prefix}_{what}.c"
        text = kept[source].decode()
        embedded = _EMBEDDED.search(text)
        if embedded is not None:  # else it is on storage
            kind = f"const {prefix.upper()}_ALIGNED unsigned char"
            array = f"{kind} {prefix}_{what}[] = {{\n{_numbers(kept.pop(f'{prefix}_{what}.bin'))}}};\n"
            kept[source] = (text[: embedded.start()] + array + text[embedded.end() :]).encode()
    sources = sorted(name for name in kept if name.endswith(".c"))
    values = {
        "name": prefix,
        "flags": FLAGS,
        "version": __version__,
        "sources": "".join(f"  {name}\n" for name in sources),
    }
    readme = kept["README.md"].decode()
    how = Template(HOW[form]).substitute(values)
    build = f"## Build\n\n{how} Its sources want `{FLAGS}`; never use `-ffast-math`.\n\n## Call"
    readme = re.sub(r"## Build\n.*?## Call", lambda _: build, readme, flags=re.DOTALL)
    kept["README.md"] = "\n".join(line for line in readme.split("\n") if not _LISTED.match(line)).encode()
    inside = "src/" if form == "arduino" else ""
    found = {f"{inside}{name}" if name.endswith((".c", ".h")) else name: content for name, content in kept.items()}
    return found | {name: filled(f"packages/{form}/{name}", values).encode() for name in FILES[form]}


def _numbers(data: bytes) -> str:
    """The bytes as C has them; an array has one at least."""
    data = data or b"\0"
    rows = (data[at : at + 32] for at in range(0, len(data), 32))
    return "".join(f"    {', '.join(map(str, row))},\n" for row in rows)
