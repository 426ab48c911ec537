"""What is imported when it is needed: public names, optional packages, entry points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from poetopt.util.errors import BackendUnavailableError, PoetError


def loading(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], object], list[str]]:
    """The `__getattr__` and the `__all__` of a package, whose `modules` have these names, with blanks between."""
    homes = {name: f"{package}.{module}" for module, names in modules.items() for name in names.split()}

    def found(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return found, sorted(homes)


PACKAGES = ("pyomo", "scipy", "highspy")
INSTALL = "pip install " + " ".join(PACKAGES)


def check_solving() -> None:
    """Raises BackendUnavailableError where a package is missing that solving needs."""
    if words := _missing():
        raise BackendUnavailableError(words)


def told(error: ModuleNotFoundError) -> str | None:
    """What to say of a failed import; None where it is none of these packages."""
    return _missing() if (error.name or "").partition(".")[0] in PACKAGES else None


def _missing() -> str | None:
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if not missing:
        return None
    verb = "is" if len(missing) == 1 else "are"
    return (
        f"{', '.join(missing)} {verb} not installed, and making plans needs that (executing them and training don't); "
        f"install it with: {INSTALL}"
    )


_loaded: dict[EntryPoint, None] = {}
"""What this process has asked for, the latest last."""

GROUPS = (
    "poetopt.frontends",
    "poetopt.rules",
    "poetopt.formulations",
    "poetopt.blocks",
    "poetopt.backends",
    "poetopt.runtimes",
    "poetopt.kernels",
)


def origin(point: EntryPoint) -> str:
    """`package poetopt-wakeups 0.1.0, entry point poetopt.blocks: wakeups = poetopt_wakeups.wakeups:option`."""
    package = f"package {point.dist.name} {point.dist.version}, " if point.dist is not None else ""
    return f"{package}entry point {point.group}: {point.name} = {point.value}"


def load(point: EntryPoint, what: str, kind: type[PoetError]) -> object:
    """What an entry point holds.

    what, kind
        How a message calls it (`block`), and the error to raise where it can't be loaded, whatever its module raises.
    """
    try:
        return loaded(point)
    except Exception as error:
        text = str(error) if isinstance(error, (ImportError, AttributeError)) else failure(error)
        raise kind(
            f"{what} '{point.name}' ({origin(point)}) can't be loaded: {text}; reinstall its "
            "package, or tell its authors"
        ) from error


def loaded(point: EntryPoint) -> object:
    """What an entry point holds; raises whatever its module raises. Its package fails in its name from then on."""
    found: object = point.load()
    _loaded.pop(point, None)
    _loaded[point] = None
    return found


def failure(error: BaseException) -> str:
    """`ValueError: invalid literal (options.py:12)`: the innermost line of a package that is registered, or of all."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append((str(trace.tb_frame.f_globals.get("__name__", "")), trace))
        trace = trace.tb_next
    theirs = {_top(point.value) for group in GROUPS for point in entry_points(group=group)}
    own = [found for module, found in frames if _top(module) in theirs - {"poetopt"}] or [found for _, found in frames]
    place = f" ({Path(own[-1].tb_frame.f_code.co_filename).name}:{own[-1].tb_lineno})" if own else ""
    return f"{type(error).__name__}: {error}{place}"


def culprit(trace: TracebackType | None) -> EntryPoint | None:
    """The entry point whose package's code ran innermost when an error came up; None: no such package's did."""
    modules = []
    while trace is not None:
        modules.append(str(trace.tb_frame.f_globals.get("__name__", "")))
        trace = trace.tb_next
    return registered(modules)


def registered(modules: Sequence[str]) -> EntryPoint | None:
    """The entry point behind the last of the modules that belongs to a registered package; None where none does.

    Where the package has several entry points: the one that was asked for last, else that of this very module.
    """
    if all(_top(module) == "poetopt" for module in modules):
        return None
    points = [point for group in GROUPS for point in entry_points(group=group)]
    for module in reversed(modules):
        own = [point for point in points if _top(point.value) == _top(module) != "poetopt"]
        if own:
            asked = [point for point in reversed(_loaded) if point in own]
            very = [point for point in own if point.value.partition(":")[0] == module]
            return (asked or very or own)[0]
    return None


def _top(module: str) -> str:
    return module.partition(":")[0].partition(".")[0]
