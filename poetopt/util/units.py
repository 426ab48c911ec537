"""Parse sizes, times and shares as users write them, and format figures for users.

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
    """Parse a RAM budget: bytes, or a share of the store-all peak.

    A bare number is bytes, rounded down. Raise OptionError unless it is a size or percentage of at least 0, and for
    less than one byte, which is probably meant as a share.
    """
    if isinstance(value, Share):
        return value
    number, unit = _split_unit(value, option, RAM_EXAMPLES)
    if unit == "%":
        return Share(number / 100)
    if not unit and 0 < number < 1:
        raise OptionError(
            f"{_spelled(option, value)}: a bare number is bytes, and this is less than one. Did you mean "
            f"{100 * number:g}% (of the peak of ordinary training)?"
        )
    return parse_size(value, option=option, examples=RAM_EXAMPLES)


def parse_size(value: str | float, *, option: str, examples: str = SIZE_EXAMPLES) -> int:
    """Parse a size in bytes, rounded down. Raise OptionError, with `examples`, for any other text."""
    number, unit = _split_unit(value, option, examples)
    if unit in _BYTES:
        with suppress(ValueError):  # integers stay exact beyond 2^53
            return read_whole(value) * _BYTES[unit]
        return math.floor(_check_finite(number * _BYTES[unit], value, option, examples))
    if re.fullmatch(r"[kKmMgG]i?b?", unit):
        prefix = unit[0].upper().replace("K", "k")
        raise OptionError(
            f"{_spelled(option, value)}: '{unit}' is ambiguous. Write {number:g}{prefix}B (powers of 1000) "
            f"or {number:g}{unit[0].upper()}iB (powers of 1024)"
        )
    if not re.search(r"bits?$|bytes?$|octets?$|B$", unit):
        # Bytes have no dimension in pint: it would accept radians as a size.
        raise OptionError(f"{_spelled(option, value)}: not a size. Examples: {examples}")
    nbytes = _convert_by_pint(number, unit, "byte", f"{_spelled(option, value)}: not a size", examples)
    return math.floor(_check_finite(nbytes, value, option, examples))


def parse_deadline(value: str | float | Factor, *, option: str = "--deadline") -> float | Factor:
    """Parse a deadline: seconds, or a multiple of one pass. Raise OptionError unless it is positive."""
    if isinstance(value, Factor):
        return value
    number, unit = _split_unit(value, option, DEADLINE_EXAMPLES)
    if unit not in ("x", "X", "×"):
        return parse_time(value, option=option, examples=DEADLINE_EXAMPLES)
    if number <= 0:
        raise OptionError(f"{_spelled(option, value)}: must be more than 0x")
    return Factor(number)


def parse_time(value: str | float, *, option: str, examples: str = TIME_EXAMPLES) -> float:
    """Parse a time in seconds. Raise OptionError, with `examples`, unless it is positive."""
    number, unit = _split_unit(value, option, examples)
    if unit in _SECONDS:
        seconds = number * _SECONDS[unit]
    elif unit in ("m", "M"):
        raise OptionError(f"{_spelled(option, value)}: '{unit}' is ambiguous. Write {number:g}min or {number:g}ms")
    elif unit in ("x", "X", "×", "%"):
        raise OptionError(f"{_spelled(option, value)}: not a time. Examples: {examples}")
    else:
        seconds = _convert_by_pint(number, unit, "second", f"{_spelled(option, value)}: not a time", examples)
    if number <= 0:
        raise OptionError(f"{_spelled(option, value)}: must be more than 0, as in {examples}")
    return _check_finite(seconds, value, option, examples)


def parse_watts(value: str | float, *, option: str) -> float:
    """Parse a power in watts, such as `3`, `3W` or `90mW`. Raise OptionError unless it is positive."""
    examples = "3W or 90mW"
    number, unit = _split_unit(value, option, examples)
    factors = {"": 1.0, "W": 1.0, "mW": 1e-3, "uW": 1e-6, "µW": 1e-6, "kW": 1e3}
    if unit not in factors or number <= 0:
        raise OptionError(f"{_spelled(option, value)}: not a power. Examples: {examples}")
    return _check_finite(number * factors[unit], value, option, examples)


def parse_frequency(value: str | float, *, option: str) -> float:
    """Parse a frequency in hertz, such as `64MHz` or `1.2GHz`. Raise OptionError unless it is positive."""
    examples = "64MHz or 1.2GHz"
    number, unit = _split_unit(value, option, examples)
    factors = {"": 1.0, "Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9}
    if unit not in factors or number <= 0:
        raise OptionError(f"{_spelled(option, value)}: not a frequency. Examples: {examples}")
    return _check_finite(number * factors[unit], value, option, examples)


def parse_energy(value: str | float | Factor, *, option: str) -> float | Factor:
    """Parse an energy: joules (`250mJ`) or a multiple of one pass (`1.05x`, `105%`). Raise OptionError unless > 0."""
    if isinstance(value, Factor):
        return value
    examples = "3J, 250mJ, or 1.05x or 105% (times one compute of each operator)"
    number, unit = _split_unit(value, option, examples)
    factors = {"": 1.0, "J": 1.0, "kJ": 1e3, "mJ": 1e-3, "uJ": 1e-6, "µJ": 1e-6, "Wh": 3600.0, "mWh": 3.6}
    if unit in ("x", "X", "×", "%") and number > 0:
        return Factor(_check_finite(number / 100 if unit == "%" else number, value, option, examples))
    if unit not in factors or number <= 0:
        raise OptionError(f"{_spelled(option, value)}: not an energy. Examples: {examples}")
    return _check_finite(number * factors[unit], value, option, examples)


def parse_fraction(value: str | float, *, option: str) -> float:
    """Parse a tolerance between 0 and 1, such as `0.1%` or `0.001`. Raise OptionError for any other text."""
    examples = "0.1% or 0.001"
    number, unit = _split_unit(value, option, examples)
    if unit not in ("", "%"):
        raise OptionError(f"{_spelled(option, value)}: not a share, as in {examples}")
    fraction = _check_finite(number / 100 if unit else number, value, option, examples)
    if fraction > 1:
        remedy = f"for {number:g} percent write {number:g}%" if not unit and number <= 100 else f"as in {examples}"
        raise OptionError(f"{_spelled(option, value)}: is more than 100%, {remedy}")
    return fraction


def parse_float32(value: object, *, option: str) -> float:
    """Parse a number that becomes a float32. Raise OptionError for any other text."""
    try:
        return read_float32(value)
    except ValueError as error:
        raise OptionError(f"{_spelled(option, value)}: {error}{_decimal_hint(value)}") from None


def parse_whole(value: object, *, option: str, least: int | None = None, most: int | None = None) -> int:
    """Parse a whole number. Raise OptionError for any other text, and for a number outside of the bounds."""
    try:
        number = read_whole(value)
    except ValueError as error:
        raise OptionError(f"{_spelled(option, value)}: {error}") from None
    if least is not None and number < least:
        raise OptionError(f"{_spelled(option, number)}: must be at least {least}")
    if most is not None and number > most:
        raise OptionError(f"{_spelled(option, number)}: must be at most {most}")
    return number


def _decimal_hint(value: object) -> str:
    """Return the hint for a decimal comma, as in `0,1`; else an empty text."""
    point = str(value).strip().replace(",", ".")
    return f". Did you mean {point}?" if re.fullmatch(r"[0-9]+\.[0-9]+", point) and point != str(value).strip() else ""


def _spelled(option: str, value: object) -> str:
    """Return an option with its value: `--ram 3MB`, `--block battery=40kJ`."""
    return f"{option}{value}" if option.endswith("=") else f"{option} {value}"


def _split_unit(value: str | float, option: str, examples: str) -> tuple[float, str]:
    """Return number and unit. Raise OptionError for a text without number, a negative or an infinite one."""
    comma = re.fullmatch(r"\s*[+-]?\d[\d,. ]*,\d.*", str(value), re.DOTALL)
    if comma is not None:
        point = re.sub(r"(?<=\d),(?=\d)", ".", str(value).strip(), count=1)
        raise OptionError(
            f"{_spelled(option, value)}: decimals have a point, and thousands no separator. Did you mean {point}?"
        )
    match = _AMOUNT.match(str(value))
    try:
        number = read_number(match[1] if match and not re.search("[0-9_]", match[2]) else "")
    except ValueError as error:
        value = value if str(value).strip() else f"'{value}'"
        raise OptionError(f"{_spelled(option, value)}: {error}. Examples: {examples}") from None
    assert match is not None
    if number < 0:
        raise OptionError(f"{_spelled(option, value)}: must not be negative. Examples: {examples}")
    return number, match[2]


def _check_finite(result: float, value: str | float, option: str, examples: str) -> float:
    """Return `result`, the value of a text in base units. Raise OptionError if it overflows or underflows."""
    if not math.isfinite(result) or (result == 0 and re.search("[1-9]", re.split("[eE]", str(value))[0])):
        size = "small" if result == 0 else "large"
        raise OptionError(f"{_spelled(option, value)}: too {size}. Examples: {examples}")
    return result


def _convert_by_pint(number: float, unit: str, target: str, complaint: str, examples: str) -> float:
    """Return `number` `unit` in units of `target` by pint. Raise OptionError with the examples."""
    import pint

    try:
        return float(pint.UnitRegistry().Quantity(number, unit).to(target).magnitude)
    except (pint.PintError, ValueError, TypeError, AttributeError, AssertionError, OverflowError, TokenError) as error:
        raise OptionError(f"{complaint}. Examples: {examples}") from error


def finite(value: object) -> float | None:
    """Return a figure from a file if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # an integer beyond all floats
        return None


def show_bytes(count: int, digits: int = 3) -> str:
    """Return a size as `1.23 MB`, in powers of 1000; four digits tell two sizes apart."""
    if count < 1000:
        return f"{count} B"
    return _prefixed(count, "B", (("G", 1e9), ("M", 1e6), ("k", 1e3)), digits)


def show_joules(energy: float) -> str:
    """Return an energy as `11.7 mJ`: three digits."""
    return _prefixed(energy, "J", (("k", 1e3), ("", 1.0), ("m", 1e-3), ("µ", 1e-6), ("n", 1e-9)))


def show_watts(power: float) -> str:
    """Return a power as `500 mW`: three digits."""
    return _prefixed(power, "W", (("k", 1e3), ("", 1.0), ("m", 1e-3), ("µ", 1e-6)))


def show_seconds(time: float) -> str:
    """Return a time as `250 ms`, `3.10 s`, `2 min 5 s`, `3 h 20 min`."""
    if time >= 3600:
        hours, minutes = divmod(round(time / 60), 60)
        return f"{hours} h {minutes} min"
    if time >= 120:
        minutes, seconds = divmod(round(time), 60)
        return f"{minutes} min {seconds} s"
    return _prefixed(time, "s", (("", 1.0), ("m", 1e-3), ("µ", 1e-6), ("n", 1e-9)))


def show_share(fraction: float) -> str:
    """Return a share as `12.3 %`: three digits, and 0 only for 0."""
    percent = 100 * fraction
    if percent == 0 or abs(percent) >= 0.001:
        return f"{percent:.3g} %" if abs(percent) < 1000 else f"{percent:,.0f} %"
    return f"{percent:.0e} %"


def show_amount(value: float, unit: str) -> str:
    """Return joules, seconds and bytes in three digits, other units in six."""
    if unit == "B":
        return show_bytes(round(value))
    show = {"J": show_joules, "s": show_seconds}.get(unit)
    return f"{value:g} {unit}" if show is None else show(value)


def show_limit(value: float, unit: str, *, up: bool = True) -> str:
    """Return a figure that works as a limit: bytes, or six digits of `unit`, rounded up or down."""
    if unit == "B":
        return f"{math.ceil(value - 1e-6):,} bytes"
    step = 10.0 ** (math.floor(math.log10(value)) - 5) if value > 0 else 1.0
    # 0.8 / 1e-6 is slightly above 800,000; the checks of limits tolerate more than 1e-5 steps.
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
