"""Sizes, times and shares as people write them, and figures as people read them.

`KB`, `kB`, `MB`, `GB` are powers of 1000, `KiB`, `MiB`, `GiB` of 1024, a bare number is bytes or seconds.
Units beyond the usual ones (`minutes`, `Mbit`) are looked up in pint, which is imported only then.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass
from tokenize import TokenError

from poetopt.util.errors import OptionError
from poetopt.util.numbers import NUMBER, read_float32, read_number, read_whole

_AMOUNT = re.compile(rf"\s*({NUMBER})\s*(.*?)\s*\Z", re.DOTALL)
_BYTES = {
    "": 1, "B": 1,
    "kB": 1000, "KB": 1000, "MB": 1000**2, "GB": 1000**3,
    "KiB": 1024, "kiB": 1024, "MiB": 1024**2, "GiB": 1024**3,
}  # fmt: skip
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "min": 60.0, "h": 3600.0, "d": 86400.0}
SIZE_EXAMPLES = "3MB, 300KiB, 1e6 (bytes)"
RAM_EXAMPLES = f"{SIZE_EXAMPLES}, or 40% of the store-all peak"
TIME_EXAMPLES = "250ms, 1.5s, 10min, 3h"
DEADLINE_EXAMPLES = f"{TIME_EXAMPLES}, or 1.5x (times one compute of each operator)"


@dataclass(frozen=True, slots=True)
class Share:
    """A RAM budget as a fraction of the store-all peak (`40%` is 0.4)."""

    fraction: float


@dataclass(frozen=True, slots=True)
class Factor:
    """A deadline as a multiple of one compute of each operator (`1.5x` is 1.5)."""

    times: float


def parse_ram(value: str | float | Share, *, option: str = "--ram") -> int | Share:
    """A RAM budget: bytes, or a share of the store-all peak.

    Numbers are bytes, rounded down. Raises OptionError for anything else than a size or percentage >= 0, and for a part
    of one byte, which was meant as a share.
    """
    if isinstance(value, Share):
        return value
    number, unit = _split(value, option, RAM_EXAMPLES)
    if unit == "%":
        return Share(number / 100)
    if not unit and 0 < number < 1:
        raise OptionError(
            f"{_written(option, value)}: a bare number is bytes, and this is less than one; did you mean "
            f"{100 * number:g}% (of what ordinary training takes)?"
        )
    return parse_size(value, option=option, examples=RAM_EXAMPLES)


def parse_size(value: str | float, *, option: str, examples: str = SIZE_EXAMPLES) -> int:
    """Bytes, rounded down. Raises OptionError, with `examples` of what can be written."""
    number, unit = _split(value, option, examples)
    if unit in _BYTES:
        with suppress(ValueError):  # integers stay exact beyond 2^53
            return read_whole(value) * _BYTES[unit]
        return math.floor(_finite(number * _BYTES[unit], value, option, examples))
    if re.fullmatch(r"[kKmMgG]i?b?", unit):
        right = unit[0].upper().replace("K", "k")
        raise OptionError(
            f"{_written(option, value)}: '{unit}' may mean several things; write {number:g}{right}B (powers of 1000) "
            f"or {number:g}{unit[0].upper()}iB (powers of 1024)"
        )
    if not re.search(r"bits?$|bytes?$|octets?$|B$", unit):
        # Bytes have no dimension in pint: it would take radians for a size.
        raise OptionError(f"{_written(option, value)}: not a size; examples: {examples}")
    nbytes = _by_pint(number, unit, "byte", f"{_written(option, value)}: not a size", examples)
    return math.floor(_finite(nbytes, value, option, examples))


def parse_deadline(value: str | float | Factor, *, option: str = "--deadline") -> float | Factor:
    """A deadline: seconds, or a multiple of one pass. Raises OptionError unless it is positive."""
    if isinstance(value, Factor):
        return value
    number, unit = _split(value, option, DEADLINE_EXAMPLES)
    if unit not in ("x", "X", "×"):
        return parse_time(value, option=option, examples=DEADLINE_EXAMPLES)
    if number <= 0:
        raise OptionError(f"{_written(option, value)}: must be more than 0x")
    return Factor(number)


def parse_time(value: str | float, *, option: str, examples: str = TIME_EXAMPLES) -> float:
    """Seconds. Raises OptionError, with `examples` of what can be written, unless they are positive."""
    number, unit = _split(value, option, examples)
    if unit in _SECONDS:
        seconds = number * _SECONDS[unit]
    elif unit in ("m", "M"):
        raise OptionError(
            f"{_written(option, value)}: '{unit}' may mean several things; write {number:g}min or {number:g}ms"
        )
    elif unit in ("x", "X", "×", "%"):
        raise OptionError(f"{_written(option, value)}: not a time; examples: {examples}")
    else:
        seconds = _by_pint(number, unit, "second", f"{_written(option, value)}: not a time", examples)
    if number <= 0:
        raise OptionError(f"{_written(option, value)}: must be more than 0, as in {examples}")
    return _finite(seconds, value, option, examples)


def parse_watts(value: str | float, *, option: str) -> float:
    """Watts, from `3`, `3W` or `90mW`. Raises OptionError unless they are positive."""
    examples = "3W or 90mW"
    number, unit = _split(value, option, examples)
    factors = {"": 1.0, "W": 1.0, "mW": 1e-3, "uW": 1e-6, "µW": 1e-6, "kW": 1e3}
    if unit not in factors or number <= 0:
        raise OptionError(f"{_written(option, value)}: not a power; examples: {examples}")
    return _finite(number * factors[unit], value, option, examples)


def parse_frequency(value: str | float, *, option: str) -> float:
    """Hertz, from `64MHz` or `1.2GHz`. Raises OptionError unless they are positive."""
    examples = "64MHz or 1.2GHz"
    number, unit = _split(value, option, examples)
    factors = {"": 1.0, "Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9}
    if unit not in factors or number <= 0:
        raise OptionError(f"{_written(option, value)}: not a frequency; examples: {examples}")
    return _finite(number * factors[unit], value, option, examples)


def parse_energy(value: str | float | Factor, *, option: str) -> float | Factor:
    """Joules, from `3` or `250mJ`, or a multiple of one pass (`1.05x`, `105%`). Raises OptionError unless positive."""
    if isinstance(value, Factor):
        return value
    examples = "3J, 250mJ, or 1.05x or 105% (times one compute of each operator)"
    number, unit = _split(value, option, examples)
    factors = {"": 1.0, "J": 1.0, "kJ": 1e3, "mJ": 1e-3, "uJ": 1e-6, "µJ": 1e-6, "Wh": 3600.0, "mWh": 3.6}
    if unit in ("x", "X", "×", "%") and number > 0:
        return Factor(_finite(number / 100 if unit == "%" else number, value, option, examples))
    if unit not in factors or number <= 0:
        raise OptionError(f"{_written(option, value)}: not an energy; examples: {examples}")
    return _finite(number * factors[unit], value, option, examples)


def parse_fraction(value: str | float, *, option: str) -> float:
    """A tolerance between 0 and 1, from `0.1%` or `0.001`. Raises OptionError."""
    examples = "0.1% or 0.001"
    number, unit = _split(value, option, examples)
    if unit not in ("", "%"):
        raise OptionError(f"{_written(option, value)}: not a share, as in {examples}")
    fraction = _finite(number / 100 if unit else number, value, option, examples)
    if fraction > 1:
        remedy = f"for {number:g} percent write {number:g}%" if not unit and number <= 100 else f"as in {examples}"
        raise OptionError(f"{_written(option, value)}: is more than 100%; {remedy}")
    return fraction


def parse_float32(value: object, *, option: str) -> float:
    """Return the number that an option has, which becomes a float32. Raises OptionError."""
    try:
        return read_float32(value)
    except ValueError as error:
        raise OptionError(f"{_written(option, value)}: {error}{_meant(value)}") from None


def parse_whole(value: object, *, option: str, least: int | None = None, most: int | None = None) -> int:
    """Return the whole number that an option has. Raises OptionError, also for one that isn't within its bounds."""
    try:
        number = read_whole(value)
    except ValueError as error:
        raise OptionError(f"{_written(option, value)}: {error}") from None
    if least is not None and number < least:
        raise OptionError(f"{_written(option, number)}: must be at least {least}")
    if most is not None and number > most:
        raise OptionError(f"{_written(option, number)}: must be at most {most}")
    return number


def _meant(value: object) -> str:
    """A hint for `0,1`."""
    point = str(value).strip().replace(",", ".")
    return f"; did you mean {point}?" if re.fullmatch(r"[0-9]+\.[0-9]+", point) and point != str(value).strip() else ""


def _written(option: str, value: object) -> str:
    """An option and its value: `--ram 3MB`, `--with battery=40kJ`."""
    return f"{option}{value}" if option.endswith("=") else f"{option} {value}"


def _split(value: str | float, option: str, examples: str) -> tuple[float, str]:
    """Number and unit. Raises OptionError for no number, a negative one, or one that is not finite."""
    comma = re.fullmatch(r"\s*[+-]?\d[\d,. ]*,\d.*", str(value), re.DOTALL)
    if comma is not None:
        point = re.sub(r"(?<=\d),(?=\d)", ".", str(value).strip(), count=1)
        raise OptionError(
            f"{_written(option, value)}: decimals have a point, and thousands no mark; did you mean {point}?"
        )
    match = _AMOUNT.match(str(value))
    try:
        number = read_number(match[1] if match and not re.search("[0-9_]", match[2]) else "")
    except ValueError as error:
        value = value if str(value).strip() else f"'{value}'"
        raise OptionError(f"{_written(option, value)}: {error}; examples: {examples}") from None
    assert match is not None
    if number < 0:
        raise OptionError(f"{_written(option, value)}: must not be negative; examples: {examples}")
    return number, match[2]


def _finite(found: float, value: str | float, option: str, examples: str) -> float:
    """`found`, which a unit made of `value`. Raises OptionError where no number holds that."""
    if not math.isfinite(found) or (found == 0 and re.search("[1-9]", re.split("[eE]", str(value))[0])):
        size = "small" if found == 0 else "large"
        raise OptionError(f"{_written(option, value)}: too {size}; examples: {examples}")
    return found


def _by_pint(number: float, unit: str, target: str, complaint: str, examples: str) -> float:
    """`number` `unit` in units of `target`, as pint knows them. Raises OptionError with the examples."""
    import pint

    try:
        return float(pint.UnitRegistry().Quantity(number, unit).to(target).magnitude)
    except (pint.PintError, ValueError, TypeError, AttributeError, AssertionError, OverflowError, TokenError) as error:
        raise OptionError(f"{complaint}; examples: {examples}") from error


def finite(value: object) -> float | None:
    """A figure that was read from a file, or None where it is none that can be counted with."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # an integer beyond all floats
        return None


def show_bytes(count: int, digits: int = 3) -> str:
    """`1.23 MB`: three digits or, where two sizes are compared, four; powers of 1000."""
    if count < 1000:
        return f"{count} B"
    return _prefixed(count, "B", (("G", 1e9), ("M", 1e6), ("k", 1e3)), digits)


def show_joules(energy: float) -> str:
    """`11.7 mJ`: three digits."""
    return _prefixed(energy, "J", (("k", 1e3), ("", 1.0), ("m", 1e-3), ("µ", 1e-6), ("n", 1e-9)))


def show_watts(power: float) -> str:
    """`500 mW`: three digits."""
    return _prefixed(power, "W", (("k", 1e3), ("", 1.0), ("m", 1e-3), ("µ", 1e-6)))


def show_seconds(time: float) -> str:
    """`250 ms`, `3.10 s`, `2 min 5 s`, `3 h 20 min`."""
    if time >= 3600:
        hours, minutes = divmod(round(time / 60), 60)
        return f"{hours} h {minutes} min"
    if time >= 120:
        minutes, seconds = divmod(round(time), 60)
        return f"{minutes} min {seconds} s"
    return _prefixed(time, "s", (("", 1.0), ("m", 1e-3), ("µ", 1e-6), ("n", 1e-9)))


def show_share(fraction: float) -> str:
    """`12.3 %`: three digits, and never 0 for what isn't."""
    percent = 100 * fraction
    if percent == 0 or abs(percent) >= 0.001:
        return f"{percent:.3g} %" if abs(percent) < 1000 else f"{percent:,.0f} %"
    return f"{percent:.0e} %"


def show_amount(value: float, unit: str) -> str:
    """Joules, seconds and bytes as above; six digits of any other unit."""
    if unit == "B":
        return show_bytes(round(value))
    show = {"J": show_joules, "s": show_seconds}.get(unit)
    return f"{value:g} {unit}" if show is None else show(value)


def show_limit(value: float, unit: str, *, up: bool = True) -> str:
    """A figure that can be asked for: bytes, or six digits of `unit`, rounded to the side where it stays true."""
    if unit == "B":
        return f"{math.ceil(value - 1e-6):,} bytes"
    step = 10.0 ** (math.floor(math.log10(value)) - 5) if value > 0 else 1.0
    # 0.8 / 1e-6 is a hair above 800,000. What is checked against limits is allowed more than this.
    digits = math.ceil(value / step - 1e-5) if up else math.floor(value / step)
    return f"{digits * step:.6g} {unit}"


def _prefixed(value: float, unit: str, prefixes: tuple[tuple[str, float], ...], digits: int = 3) -> str:
    if value == 0:
        return f"0 {unit}"
    for prefix, scale in prefixes:
        # 999.6 would round to 1e+03: it belongs to the next prefix up.
        if abs(value) >= scale * (1 - 0.5 * 10.0**-digits):
            return f"{_rounded(value / scale, digits)} {prefix}{unit}"
    prefix, scale = prefixes[-1]
    if abs(value) < 1e-3 * scale:
        return f"under 0.001 {prefix}{unit}"
    return f"{value / scale:.2g} {prefix}{unit}"


def _rounded(value: float, digits: int) -> str:
    # 9.996 rounds to 10.0, which has a digit more before its point
    whole = sum(abs(value) >= power - 0.5 * 10.0 ** -(digits - 1 - k) for k, power in enumerate((10, 100)))
    return f"{value:,.{digits - 1 - whole}f}"
