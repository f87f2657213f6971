"""Peaks and utilisations that XProf is told: the run's own figures, never XProf's guesses."""

from __future__ import annotations

from dataclasses import dataclass

from tpu_perf.analysis import device_memory, model_flops, step_time
from tpu_perf.chips.table import find_chip
from tpu_perf.export.xplane.capture import Capture
from tpu_perf.record.metric import Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFigures:
    """What is known of one device, None where nothing is: rates per second and fractions."""

    name: str  # as XProf shows it; contains "TPU", or XProf would not take it for one
    peak_flops_per_s: float | None
    hbm_bytes_per_s: float | None
    hbm_bytes: int | None
    mxu_fraction: float | None  # the run's MFU
    hbm_fraction: float | None


def device_figures(capture: Capture) -> DeviceFigures:
    """The figures of the run's device, with a note for each that is missing.

    Peak: Facts.peak_flops_per_s, else the chip table's bf16 peak of one device. HBM bandwidth and
    capacity: the chip table, for one device of the chip.
    """
    environment, facts = capture.run.environment, capture.run.facts
    kind = "unknown device" if environment is None else environment.device_kind
    chip = find_chip(kind)
    share = 1 if chip is None else chip.devices_per_chip
    peak = facts.peak_flops_per_s
    if not peak and chip is not None:
        peak = chip.bf16_flops_per_s / share
        capture.note(f"peak FLOP/s from the chip table: {chip.name}, bf16 ({chip.source})")
    bandwidth = None if chip is None else chip.hbm_bytes_per_s / share
    if not peak:
        capture.note("the device's peak FLOP/s is not known: XProf shows 0 % of it")
    if bandwidth is None:
        capture.note(
            f"the memory bandwidth of {kind!r} is not known and not invented: XProf shows HBM "
            "utilisation 0 % and roofline ridge points 0, which mean unknown"
        )
    return DeviceFigures(
        name=_shown_name(capture, kind),
        peak_flops_per_s=peak or None,
        hbm_bytes_per_s=bandwidth,
        hbm_bytes=None if chip is None else chip.hbm_bytes // share,
        mxu_fraction=_mxu_fraction(capture),
        hbm_fraction=_hbm_fraction(capture, bandwidth),
    )


def _shown_name(capture: Capture, kind: str) -> str:
    if "TPU" in kind:
        return kind
    environment = capture.run.environment
    processor = "" if environment is None else f", {environment.cpu}"
    capture.note(
        f"the run was made on {kind!r}; XProf shows device figures of a TPU only, so the planes "
        "are named like one, and the device type says what it was"
    )
    return f"{kind} through XLA{processor} (not a TPU)"


def _metric(capture: Capture, name: str, computed: Metric) -> Metric:
    """The stored metric, which the ladder computed, or the one computed now."""
    return capture.run.metrics.get(name, computed)


def _mxu_fraction(capture: Capture) -> float | None:
    step = step_time.step_time(capture.tables)
    mfu = _metric(capture, "mfu", model_flops.mfu(capture.run.facts, step))
    if mfu.value is None:
        capture.note(f"MXU utilisation is not known ({mfu.reason}): XProf shows 0 %")
    else:
        capture.note("MXU utilisation on the overview page is the run's MFU, of its timed steps")
    return mfu.value


def _hbm_fraction(capture: Capture, bandwidth: float | None) -> float | None:
    """Bytes XLA's programs access per step / (step time x bandwidth)."""
    step = step_time.step_time(capture.tables)
    accessed = _metric(
        capture,
        "hbm_accessed_bytes_per_step",
        device_memory.hbm_accessed_bytes_per_step(capture.tables),
    )
    if bandwidth is None or not step.value:
        return None
    if accessed.value is None:
        capture.note(f"HBM utilisation is not known ({accessed.reason}): XProf shows 0 %")
        return None
    fraction = accessed.value / (step.value * bandwidth)
    if fraction > 1:
        capture.note(
            f"HBM utilisation refused: {fraction:.0%} is impossible; XLA counts bytes that never "
            "reach HBM. XProf shows 0 %"
        )
        return None
    return fraction
