"""The weights that `--train` names, and what to say where a pattern names none."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass

from poetopt.frontends.batchnorms import merged_by_name
from poetopt.frontends.exporters import KEEPS_NAMES, TRAINING, UNFOLDED
from poetopt.util.errors import ModelError
from poetopt.util.notes import listed

_CLOSEST = 4


@dataclass(frozen=True)
class Choice:
    """What can be named.

    names
        The float weights that can have a gradient, in the order of the file.
    aliases
        Other names of weights -> those.
    settings
        Weights without a gradient, and what each is in words.
    hidden
        Weights that are not meant by `*`.
    last
        Weights of the last layer.
    gone
        The module's parameters that the exporter left nothing of.
    whole
        Weights that are no floats, and the type of each.
    """

    names: Sequence[str]
    aliases: Mapping[str, str]
    settings: Mapping[str, str]
    hidden: Set[str]
    last: Sequence[str]
    gone: Collection[str]
    whole: Mapping[str, str]


def matching(where: str, choice: Choice, train: str | Sequence[str]) -> tuple[str, ...]:
    """The names that `train` matches: glob patterns, comma separated or in a sequence, each of which must match one."""
    texts = [train] if isinstance(train, str) else list(train)
    patterns = [pattern.strip() for text in texts for pattern in text.split(",") if pattern.strip()]
    if not patterns:
        raise ModelError(f"{where}: --train has no pattern; give one such as 'fc.*', or leave it out")
    known = set(choice.names)
    roots = {name: name for name in choice.names}
    roots.update((name, root) for name, root in choice.aliases.items() if root in known)
    chosen: set[str] = set()
    for pattern in patterns:
        found = {root for name, root in roots.items() if fnmatch.fnmatchcase(name, pattern)}
        if not pattern.strip("*"):
            found -= choice.hidden
        if not found:
            raise ModelError(f"{where}: --train {pattern!r} {_why_not(choice, roots, pattern)}")
        chosen |= found
    return tuple(name for name in choice.names if name in chosen)


def _why_not(choice: Choice, roots: Mapping[str, str], pattern: str) -> str:
    """Why a pattern names nothing, and what to do."""
    settings = choice.settings
    for name, root in (*((name, name) for name in settings), *choice.aliases.items()):
        if root in settings and fnmatch.fnmatchcase(name, pattern):
            return f"names {name!r}, which is {settings[root]}: no gradient rule gives one for it; leave it out"
    whole = next((name for name in choice.whole if pattern.strip("*") and fnmatch.fnmatchcase(name, pattern)), "")
    if whole:
        held = choice.whole[whole]
        return f"names {whole!r}, which is {held}: only floats are trained; choose one, or export before quantization"
    if not choice.names:
        return "matches no weight; the model has no float weights"
    gone = [name for name in sorted(choice.gone) if fnmatch.fnmatchcase(name, pattern)]
    if gone:
        return (
            f"matches no weight of the file: the exporter folded {listed(gone, 3)} into others; export with {UNFOLDED}"
        )
    last = [name for name in choice.last if name in roots][:_CLOSEST]
    close = difflib.get_close_matches(pattern.strip("*"), list(roots), n=_CLOSEST, cutoff=0.3) or list(roots)[:_CLOSEST]
    close = [name for name in close if name not in last]
    hints = [f"the last layer's are {', '.join(last)}"] if last else []
    hints += [f"the closest names are {', '.join(close)}"] if close else []
    return "; ".join(["matches no weight", *hints, *_renamed(choice.names)])


def _renamed(names: Sequence[str]) -> list[str]:
    """What torch's older exporter did to names, and how they are kept."""
    merged = merged_by_name(names)
    found = []
    if merged:
        found.append(f"BatchNormalization is merged into {listed(merged, 3)}, export with {TRAINING} to keep both")
    folded = [name for name in names if "::" in name and name not in merged]
    if folded:
        found.append(
            f"the exporter folded parameters into {listed(folded, 3)}, export with {KEEPS_NAMES} to keep their names"
        )
    return found
