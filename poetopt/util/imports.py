"""Lazy imports: public names, optional packages, entry points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from poetopt.util.errors import BackendUnavailableError, PoetError


def loading(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], object], list[str]]:
    """Return `__getattr__` and `__all__` of a package whose `modules` define these names (separated by blanks)."""
    homes = {name: f"{package}.{module}" for module, names in modules.items() for name in names.split()}

    def import_name(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return import_name, sorted(homes)


PACKAGES = ("pyomo", "scipy", "highspy")
INSTALL = "pip install " + " ".join(PACKAGES)


def check_solving() -> None:
    """Raise BackendUnavailableError if a package that solving needs is missing."""
    if words := _missing():
        raise BackendUnavailableError(words)


def told(error: ModuleNotFoundError) -> str | None:
    """Return the message for a failed import of such a package; None for another module."""
    return _missing() if (error.name or "").partition(".")[0] in PACKAGES else None


def _missing() -> str | None:
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if not missing:
        return None
    verb = "is" if len(missing) == 1 else "are"
    return (
        f"{', '.join(missing)} {verb} not installed, and making plans needs it (executing plans and training don't). "
        f"Install it with: {INSTALL}"
    )


_loaded: dict[EntryPoint, None] = {}
"""Entry points loaded by this process, the latest last."""

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
    """Describe an entry point: `package poetopt-wakeups 0.1.0, entry point poetopt.blocks: wakeups = module:option`."""
    package = f"package {point.dist.name} {point.dist.version}, " if point.dist is not None else ""
    return f"{package}entry point {point.group}: {point.name} = {point.value}"


def load(point: EntryPoint, what: str, kind: type[PoetError]) -> object:
    """Return the object of an entry point.

    Parameters
    ----------
    what, kind
        Its name in messages (`block`), and the error to raise if loading fails, whatever its module raises.
    """
    try:
        return loaded(point)
    except Exception as error:
        text = str(error) if isinstance(error, (ImportError, AttributeError)) else failure(error)
        raise kind(
            f"{what} '{point.name}' ({origin(point)}) can't be loaded: {text}. Reinstall its "
            "package, or tell its authors"
        ) from error


def loaded(point: EntryPoint) -> object:
    """Return the object of an entry point; later failures of its package are attributed to it. Any error passes."""
    target: object = point.load()
    _loaded.pop(point, None)
    _loaded[point] = None
    return target


def failure(error: BaseException) -> str:
    """Describe an error, with the innermost line of a registered package: `ValueError: message (options.py:12)`."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append((str(trace.tb_frame.f_globals.get("__name__", "")), trace))
        trace = trace.tb_next
    theirs = {_package_of(point.value) for group in GROUPS for point in entry_points(group=group)}
    lines = [at for module, at in frames if _package_of(module) in theirs - {"poetopt"}] or [at for _, at in frames]
    place = f" ({Path(lines[-1].tb_frame.f_code.co_filename).name}:{lines[-1].tb_lineno})" if lines else ""
    return f"{type(error).__name__}: {error}{place}"


def culprit(trace: TracebackType | None) -> EntryPoint | None:
    """Return the entry point whose package has the innermost frame of a trace; None if no package has one."""
    modules = []
    while trace is not None:
        modules.append(str(trace.tb_frame.f_globals.get("__name__", "")))
        trace = trace.tb_next
    return registered(modules)


def registered(modules: Sequence[str]) -> EntryPoint | None:
    """Return the entry point of the last module that belongs to a registered package; None if none does.

    If the package has several entry points, it is the one loaded last, else that of the module.
    """
    if all(_package_of(module) == "poetopt" for module in modules):
        return None
    points = [point for group in GROUPS for point in entry_points(group=group)]
    for module in reversed(modules):
        matching = [point for point in points if _package_of(point.value) == _package_of(module) != "poetopt"]
        if matching:
            recent = [point for point in reversed(_loaded) if point in matching]
            exact = [point for point in matching if point.value.partition(":")[0] == module]
            return (recent or exact or matching)[0]
    return None


def _package_of(module: str) -> str:
    return module.partition(":")[0].partition(".")[0]
