"""Numbers as they are read: few digits, thin spaces, a dash for what is missing."""

import math
from typing import Final

DASH: Final = "–"
MINUS: Final = "−"
THIN: Final = "\u2009"
ROUNDING: Final = 1e-12  # p-values below it are rounding
_SUPERSCRIPT: Final = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def missing(value: float | None) -> bool:
    """Whether there is no number to show."""
    return value is None or math.isnan(value)


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with ``digits`` significant digits, times a power of ten where that is
    shorter."""
    if value is None or math.isnan(value):
        return DASH
    if math.isinf(value):
        return "∞" if value > 0.0 else f"{MINUS}∞"
    if value == 0.0:
        return "0"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    power = int(exponent)
    if -4 <= power < 6:
        return _signed(f"{value:,.{max(digits - 1 - power, 0)}f}")
    return _signed(mantissa) + f"{THIN}×{THIN}10" + str(power).translate(_SUPERSCRIPT)


def fixed(value: float | None, decimals: int) -> str:
    """Return a number with so many decimals."""
    if value is None or math.isnan(value):
        return DASH
    return number(value) if math.isinf(value) else _signed(f"{value:,.{decimals}f}")


def count(value: int | None) -> str:
    """Return an integer with its thousands apart."""
    return DASH if value is None else _signed(f"{value:,d}")


def percent(value: float | None, decimals: int = 1) -> str:
    """Return a share in per cent; one that is not quite all, or not quite nothing, says so."""
    if value is None or math.isnan(value):
        return DASH
    least = 10.0**-decimals
    shown = f"{100.0 * value:.{decimals}f}"
    if value < 1.0 and float(shown) == 100.0:
        return f">{THIN}{100.0 - least:.{decimals}f}%"
    if value > 0.0 and float(shown) == 0.0:
        return f"<{THIN}{least:.{decimals}f}%"
    return _signed(shown) + "%"


def p_value(value: float | None) -> str:
    """Return a probability with two digits; what is rounding is a bound."""
    if value is None or math.isnan(value):
        return DASH
    if value < ROUNDING:
        return f"<{THIN}10⁻¹²"
    return number(value, 2) if value < 0.995 else "1.0"


def decimals(low: float | None, high: float | None) -> int | None:
    """Return the decimals at which an interval's half width has two digits; None without one."""
    if low is None or high is None or not 0.0 < high - low < math.inf:
        return None
    return max(0, 1 - math.floor(math.log10(0.5 * (high - low))))


def interval(low: float | None, high: float | None) -> str:
    """Return an interval as ``[low, high]``, with the digits that its width leaves."""
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return DASH
    places = decimals(low, high)
    if places is None or places > 6:
        return f"[{number(low)}, {number(high)}]"
    return f"[{fixed(low, places)}, {fixed(high, places)}]"


def estimate(value: float | None, low: float | None, high: float | None) -> str:
    """Return a number with the digits that its interval leaves; three without an interval."""
    places = decimals(low, high)
    if value is None or places is None or places > 6:
        return number(value)
    return fixed(value, places)


def seconds(value: float | None) -> str:
    """Return a duration in the unit that suits it."""
    if value is None or math.isnan(value):
        return DASH
    if value < 1.0:
        return f"{number(1e3 * value, 2)} ms"
    if value < 120.0:
        return f"{number(value, 3)} s"
    minutes = value / 60.0
    return f"{minutes:.1f} min" if minutes < 120.0 else f"{minutes / 60.0:.1f} h"


def between(low: float | None, high: float | None, whole: bool = False) -> str:
    """Return the name of an interval that may be open: ``below 8``, ``8 to 20``, ``from 20``.

    Of ``whole`` numbers the last one that is in it stands for the end: ``2``, ``up to 1``.
    """
    return _interval_name(low, high, whole, ("from ", "below ", "up to ", " to "))


def briefly(low: float | None, high: float | None, whole: bool = False) -> str:
    """Return the same for the tick of an axis: ``<8``, ``8–20``, ``≥20``."""
    return _interval_name(low, high, whole, ("≥", "<", "≤", DASH))


def _interval_name(
    low: float | None, high: float | None, whole: bool, words: tuple[str, str, str, str]
) -> str:
    """Name an interval; ``words``: from, below, up to (and with), and what joins two ends."""
    least, below, most, to = words
    if high is None:
        return "all" if low is None else f"{least}{_plain(low)}"
    last = math.ceil(high) - 1 if whole else None
    end = _plain(high) if last is None else str(last)
    if low is None:
        return f"{most if whole else below}{end}"
    return _plain(low) if low == last else f"{_plain(low)}{to}{end}"


def _plain(value: float) -> str:
    """Edges as they were given, without the zeros of a fixed number of digits."""
    return f"{value:.6g}".replace("-", MINUS) if abs(value) >= 1e-3 or not value else number(value)


def _signed(text: str) -> str:
    if text.startswith("-") and not any(c in "123456789" for c in text):
        text = text[1:]
    return text.replace("-", MINUS).replace(",", THIN)
