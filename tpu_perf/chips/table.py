"""The chip table: one entry a chip, rounded figures of public documents, per chip."""

from __future__ import annotations

from dataclasses import dataclass

_GUIDE = "Google Cloud TPU system architecture pages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """Figures of one chip. A program sees `devices_per_chip` devices on it."""

    name: str
    device_kinds: tuple[str, ...]  # as PJRT names the device
    bf16_flops_per_s: float
    hbm_bytes: int
    hbm_bytes_per_s: float
    tensor_cores: int
    devices_per_chip: int
    source: str


_GB, _GIB = 10**9, 2**30

CHIPS: tuple[Chip, ...] = (
    Chip(
        name="TPU v4",
        device_kinds=("TPU v4",),
        bf16_flops_per_s=275e12,
        hbm_bytes=32 * _GB,
        hbm_bytes_per_s=1230e9,
        tensor_cores=2,
        devices_per_chip=1,  # megacore, the default
        source=_GUIDE,
    ),
    Chip(
        name="TPU v5e",
        device_kinds=("TPU v5 lite", "TPU v5e"),
        bf16_flops_per_s=197e12,
        hbm_bytes=16 * _GB,
        hbm_bytes_per_s=820e9,
        tensor_cores=1,
        devices_per_chip=1,
        source=_GUIDE,
    ),
    Chip(
        name="TPU v5p",
        device_kinds=("TPU v5", "TPU v5p"),
        bf16_flops_per_s=459e12,
        hbm_bytes=95 * _GIB,
        hbm_bytes_per_s=2765e9,  # sources say 2460 to 2800
        tensor_cores=2,
        devices_per_chip=1,
        source=_GUIDE,
    ),
    Chip(
        name="TPU v6e",
        device_kinds=("TPU v6 lite", "TPU v6e"),
        bf16_flops_per_s=918e12,
        hbm_bytes=32 * _GIB,
        hbm_bytes_per_s=1640e9,
        tensor_cores=1,
        devices_per_chip=1,
        source=_GUIDE,
    ),
    Chip(
        name="TPU7x",
        device_kinds=("TPU7x", "TPU v7x", "TPU v7"),
        bf16_flops_per_s=2307e12,
        hbm_bytes=192 * _GIB,
        hbm_bytes_per_s=7380e9,
        tensor_cores=2,
        devices_per_chip=2,
        source=_GUIDE,
    ),
)


def find_chip(device_kind: str) -> Chip | None:
    """The chip that PJRT calls `device_kind`, None if the table does not know it."""
    return next((chip for chip in CHIPS if device_kind in chip.device_kinds), None)
