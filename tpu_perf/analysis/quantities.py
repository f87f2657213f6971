"""How numbers are written for people: three or four significant digits and a unit."""

from __future__ import annotations

import math

from tpu_perf.record.metric import Metric

_TIME_SCALES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_BYTE_SCALES = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))
_DECIMAL_SCALES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def digits(value: float, significant: int = 3) -> str:
    """`value` with so many significant digits, never in exponent notation, with thousands commas.

    >>> digits(1234.5), digits(12.345), digits(0.0), digits(0.012345)
    ('1,234', '12.3', '0', '0.0123')
    """
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    # 9.999 rounds to 10.00: take the magnitude after rounding, so that digits stay the same.
    rounded = round(value, significant - 1 - magnitude)
    magnitude = math.floor(math.log10(abs(rounded)))
    return f"{value:,.{max(0, significant - 1 - magnitude)}f}"


def _time_scale(value: float) -> tuple[float, str]:
    for scale, unit in _TIME_SCALES:
        if abs(value) >= scale:
            return scale, unit
    return (1.0, "s") if value == 0 else _TIME_SCALES[-1]


def seconds(value: float, significant: int = 3) -> str:
    """A duration in the unit that suits it.

    >>> seconds(0.01234), seconds(75.0), seconds(4.5e-6)
    ('12.3 ms', '75.0 s', '4.50 us')
    """
    scale, unit = _time_scale(value)
    return f"{digits(value / scale, significant)} {unit}"


def byte_count(value: float, significant: int = 3) -> str:
    """Bytes in binary units.

    >>> byte_count(512), byte_count(3 * 2**20)
    ('512 B', '3.00 MiB')
    """
    for scale, unit in _BYTE_SCALES:
        if abs(value) >= scale:
            return f"{digits(value / scale, significant)} {unit}"
    return f"{value:,.0f} B"


def scaled(value: float, unit: str, significant: int = 3) -> str:
    """A large number with a decimal prefix: `1.23 GFLOP`."""
    for scale, prefix in _DECIMAL_SCALES:
        if abs(value) >= scale:
            return f"{digits(value / scale, significant)} {prefix}{unit}"
    return f"{digits(value, significant)} {unit}"


def count(value: float) -> str:
    """A count; a half remains visible where a median of counts gives one."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def counted(number: int, noun: str) -> str:
    """`1 program`, `1,200 programs`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def percent(value: float) -> str:
    """A fraction as a percentage that never rounds up to a full hundred or down to zero.

    >>> percent(0.5), percent(0.99996), percent(1.0), percent(0.00012)
    ('50.0 %', '99.99 %', '100 %', '0.012 %')
    """
    hundred = value * 100
    if abs(hundred) >= 100:
        return f"{digits(hundred, 3)} %"
    if abs(hundred) >= 99.95:
        return f"{math.floor(abs(hundred) * 100) / 100 * (1 if value > 0 else -1):.2f} %"
    if abs(hundred) >= 0.1 or hundred == 0:
        return f"{hundred:.1f} %"
    return f"{digits(hundred, 2)} %" if abs(hundred) >= 1e-4 else f"{hundred:.1e} %"


def small(value: float) -> str:
    """A difference that may be tiny: `0`, `1.2e-5`, `0.03`."""
    if value == 0:
        return "0"
    if 1e-2 <= abs(value) < 1e3:
        return digits(value, 2)
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def text(name: str, metric: Metric) -> str:
    """The value of the metric called `name` with its unit, `-` when missing."""
    value = metric.value
    if value is None:
        return "-"
    if name in ("loss_max_abs_diff", "grad_norm_max_rel_diff"):
        return small(value)
    match metric.unit:
        case "s":
            return seconds(value, 4 if name == "step_time" else 3)
        case "bytes":
            return byte_count(value)
        case "fraction":
            return percent(value)
        case "x":
            return f"{digits(value, 3)}x"
        case "count":
            return count(value)
        case "FLOP":
            return scaled(value, "FLOP")
        case "tokens/s":
            return digits(value, 4) if value < 1e6 else scaled(value, "").rstrip()
        case unit:
            return f"{digits(value, 3)} {unit}"


def interval(name: str, metric: Metric) -> str:
    """The 95 % interval in the unit that `text` chose, without repeating it; empty if none."""
    value, low, high = metric.value, metric.low, metric.high
    if value is None or low is None or high is None:
        return ""
    if metric.unit == "s":
        scale, _ = _time_scale(value)
        shown = [digits(bound / scale, 4 if name == "step_time" else 3) for bound in (low, high)]
    elif metric.unit == "fraction":
        shown = [percent(bound).removesuffix(" %") for bound in (low, high)]
    else:
        shown = [digits(bound, 4 if metric.unit == "tokens/s" else 3) for bound in (low, high)]
    joint = " to " if min(low, high) < 0 else "-"
    return joint.join(shown)
