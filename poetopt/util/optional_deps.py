"""What solving needs, and executing and training don't: Pyomo, SciPy and HiGHS, which a board may go without."""

from __future__ import annotations

from importlib.util import find_spec

from poetopt.util.errors import BackendUnavailableError

PACKAGES = ("pyomo", "scipy", "highspy")
INSTALL = "pip install " + " ".join(PACKAGES)


def check_solving() -> None:
    """Raises BackendUnavailableError where a package is missing that solving needs."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise BackendUnavailableError(_words(missing))


def told(error: ModuleNotFoundError) -> str | None:
    """What to say of a failed import; None where it is none of these packages."""
    name = (error.name or "").partition(".")[0]
    return _words([name]) if name in PACKAGES else None


def _words(missing: list[str]) -> str:
    verb = "is" if len(missing) == 1 else "are"
    return (
        f"{', '.join(missing)} {verb} not installed, and making plans needs that (executing them and training don't); "
        f"install it with: {INSTALL}"
    )
