"""Numbers as people read them."""

from __future__ import annotations

import pytest

from tpu_perf.analysis.quantities import (
    byte_count,
    digits,
    interval,
    percent,
    scaled,
    seconds,
    small,
    text,
)
from tpu_perf.record.metric import Metric


def metric(value: float, unit: str, low: float | None = None, high: float | None = None) -> Metric:
    return Metric(value=value, unit=unit, provenance="measured", low=low, high=high)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (digits(9.999), "10.0"),
        (digits(1_234_567), "1,234,567"),
        (digits(-0.01234), "-0.0123"),
        (seconds(0), "0 s"),
        (seconds(0.000_012_34), "12.3 us"),
        (seconds(-0.5), "-500 ms"),
        (byte_count(1_536), "1.50 KiB"),
        (percent(0.99996), "99.99 %"),
        (percent(1.234), "123 %"),
        (percent(-0.021), "-2.1 %"),
        (small(3.2e-7), "3.2e-7"),
        (small(0.05), "0.050"),
        (scaled(2.5e12, "FLOP/s"), "2.50 TFLOP/s"),
        (text("step_time", metric(0.123456, "s")), "123.5 ms"),
        (text("tokens_per_second", metric(12_345.6, "tokens/s")), "12,346"),
        (text("mfu", Metric.missing("fraction", "no peak")), "-"),
        (interval("step_time", metric(0.5, "s", 0.499, 1.002)), "499.0-1,002"),
        (interval("recorder_overhead", metric(0.01, "fraction", -0.02, 0.03)), "-2.0 to 3.0"),
        (interval("mfu", metric(0.5, "fraction")), ""),
    ],
)
def test_written(written: str, expected: str) -> None:
    assert written == expected
