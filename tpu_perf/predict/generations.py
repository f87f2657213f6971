"""What a prediction takes as given of each TPU generation, per device, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tpu_perf.chips import CHIPS, Chip

_GIB = 2**30
#: Slices of 2D generations as they are sold, by chips.
_FLAT = {
    1: (1, 1), 4: (2, 2), 8: (2, 4), 16: (4, 4), 32: (4, 8), 64: (8, 8), 128: (8, 16),
    256: (16, 16),
}  # fmt: skip
#: And of 3D generations.
_CUBIC = {
    1: (1, 1, 1), 4: (2, 2, 1), 8: (2, 2, 2), 16: (2, 2, 4), 32: (2, 4, 4), 64: (4, 4, 4),
    128: (4, 4, 8), 256: (4, 8, 8), 512: (8, 8, 8), 1024: (8, 8, 16), 2048: (8, 16, 16),
    4096: (16, 16, 16),
}  # fmt: skip
_V5P = {**_CUBIC, 3072: (12, 16, 16), 6144: (16, 16, 24)}
_TPU7X = {**_CUBIC, 8192: (16, 16, 32), 9216: (16, 24, 24)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One generation, as libtpu names it. Rates are those of one device of a program.

    `flops_per_cycle` are bf16 FLOPs of all MXUs of a device. `clock_hz` turns the compiler's
    cycles into seconds. `usable_hbm_bytes` is what the compiler lets a program have.
    `ici_bytes_per_s` is one link in one direction, `ici_efficiency` what collectives were seen to
    reach of all links they can use, `ici_latency_s` what one collective costs beside its bytes.
    `sources` says where each of them came from; a figure whose source begins with "assumed" was
    measured nowhere.
    """

    name: str
    chip: Chip
    sizes: Mapping[int, tuple[int, ...]]  # chips -> extents of the torus
    numbers_are_cores: bool  # whether "v5p-8" counts TensorCores, two a chip, not chips
    largest: tuple[int, ...]
    flops_per_cycle: int
    clock_hz: float
    usable_hbm_bytes: int
    ici_bytes_per_s: float
    ici_efficiency: float
    ici_latency_s: float
    host_bytes_per_s: float
    sources: Mapping[str, str]

    @property
    def peak_flops_per_s(self) -> float:
        """Published bf16 peak of one device."""
        return self.chip.bf16_flops_per_s / self.chip.devices_per_chip

    @property
    def hbm_bytes_per_s(self) -> float:
        """Published HBM bandwidth of one device."""
        return self.chip.hbm_bytes_per_s / self.chip.devices_per_chip


_CHIP = {chip.name: chip for chip in CHIPS}
_ICI_TABLE = "chip table: one-way GB/s of a link"
_ASSUMED_ICI = "assumed: what the v6e-256 all-reduce reached"
_ASSUMED_LATENCY = "assumed: that of the tpu7x all-gather"
_LIBTPU_CLOCK = "libtpu's peak constant over FLOPs a cycle"
_USABLE = "libtpu's RESOURCE_EXHAUSTED message"
_PCIE = "chip table: PCIe of a chip"

GENERATIONS: dict[str, Generation] = {
    one.name: one
    for one in (
        Generation(
            name="v4",
            chip=_CHIP["TPU v4"],
            sizes=_CUBIC,
            numbers_are_cores=True,
            largest=(16, 16, 16),
            flops_per_cycle=2**18,
            clock_hz=1.05e9,
            usable_hbm_bytes=32 * 10**9,
            ici_bytes_per_s=45e9,
            ici_efficiency=0.655,
            ici_latency_s=14e-6,
            host_bytes_per_s=15e9,
            sources={
                "clock_hz": _LIBTPU_CLOCK,
                "usable_hbm_bytes": "assumed: all of the HBM",
                "ici_bytes_per_s": _ICI_TABLE,
                "ici_efficiency": _ASSUMED_ICI,
                "ici_latency_s": _ASSUMED_LATENCY,
                "host_bytes_per_s": _PCIE,
            },
        ),
        Generation(
            name="v5e",
            chip=_CHIP["TPU v5e"],
            sizes=_FLAT,
            numbers_are_cores=False,
            largest=(16, 16),
            flops_per_cycle=2**17,
            clock_hz=1.5e9,
            usable_hbm_bytes=int(15.75 * _GIB),
            ici_bytes_per_s=45e9,
            ici_efficiency=0.655,
            ici_latency_s=14e-6,
            host_bytes_per_s=15e9,
            sources={
                "clock_hz": _LIBTPU_CLOCK,
                "usable_hbm_bytes": _USABLE,
                "ici_bytes_per_s": _ICI_TABLE,
                "ici_efficiency": _ASSUMED_ICI,
                "ici_latency_s": _ASSUMED_LATENCY,
                "host_bytes_per_s": _PCIE,
            },
        ),
        Generation(
            name="v5p",
            chip=_CHIP["TPU v5p"],
            sizes=_V5P,
            numbers_are_cores=True,
            largest=(16, 16, 24),
            flops_per_cycle=2**18,
            clock_hz=1.75e9,
            usable_hbm_bytes=int(95.74 * _GIB),
            ici_bytes_per_s=90e9,
            ici_efficiency=0.655,
            ici_latency_s=14e-6,
            host_bytes_per_s=15e9,
            sources={
                "clock_hz": "published peak over FLOPs a cycle; libtpu's own constant, 1.5 GHz, "
                "makes cycles 17 % longer",
                "usable_hbm_bytes": _USABLE,
                "ici_bytes_per_s": _ICI_TABLE,
                "ici_efficiency": _ASSUMED_ICI,
                "ici_latency_s": _ASSUMED_LATENCY,
                "host_bytes_per_s": _PCIE,
            },
        ),
        Generation(
            name="v6e",
            chip=_CHIP["TPU v6e"],
            sizes=_FLAT,
            numbers_are_cores=False,
            largest=(16, 16),
            flops_per_cycle=2**19,
            clock_hz=1.75e9,
            usable_hbm_bytes=int(31.25 * _GIB),
            ici_bytes_per_s=90e9,
            ici_efficiency=0.655,
            ici_latency_s=14e-6,
            host_bytes_per_s=32e9,
            sources={
                "clock_hz": _LIBTPU_CLOCK,
                "usable_hbm_bytes": _USABLE,
                "ici_bytes_per_s": _ICI_TABLE,
                "ici_efficiency": "measured: all-reduce of a v6e-256, 235.8 of 360 GB/s",
                "ici_latency_s": _ASSUMED_LATENCY,
                "host_bytes_per_s": _PCIE,
            },
        ),
        Generation(
            name="tpu7x",
            chip=_CHIP["TPU7x"],
            sizes=_TPU7X,
            numbers_are_cores=False,
            largest=(16, 24, 32),
            flops_per_cycle=2**19,
            clock_hz=1.9e9,
            usable_hbm_bytes=int(94.75 * _GIB),
            ici_bytes_per_s=90e9,
            ici_efficiency=1.0,
            ici_latency_s=14e-6,
            host_bytes_per_s=15e9,
            sources={
                "clock_hz": "libtpu's peak constant over FLOPs a cycle; the measured GEMMs agree, "
                "the published peak would need 2.2 GHz",
                "usable_hbm_bytes": _USABLE,
                "ici_bytes_per_s": "measured: all-gather of a 2x2x1",
                "ici_efficiency": "measured: all-gather of a 2x2x1, over its two links",
                "ici_latency_s": "measured: all-gather of a 2x2x1",
                "host_bytes_per_s": _PCIE,
            },
        ),
    )
}
