"""The chip table and finding TPUs on the PCI bus."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpu_perf.chips import CHIPS, find_chip, tpu_devices
from tpu_perf.ladder.peak import chip_peak, measure_peak


def test_every_device_kind_names_one_chip() -> None:
    kinds = [kind for chip in CHIPS for kind in chip.device_kinds]
    assert len(kinds) == len(set(kinds))
    assert all(find_chip(kind) is not None for kind in kinds)
    assert find_chip("cpu") is None


def test_entries_are_plausible() -> None:
    for chip in CHIPS:
        intensity = chip.bf16_flops_per_s / chip.hbm_bytes_per_s
        assert 100 < intensity < 1000, chip.name
        assert chip.source


def test_the_peak_is_that_of_one_device() -> None:
    ironwood = chip_peak("TPU7x", "bf16_autocast")
    assert ironwood is not None
    assert ironwood.flops_per_s == pytest.approx(2307e12 / 2)
    assert ironwood.provenance == "assumed"
    assert chip_peak("TPU7x", "float32") is None
    assert chip_peak("some other device", "bf16_autocast") is None


def test_a_measured_peak_says_what_was_measured() -> None:
    peak = measure_peak("float32", size=128)
    assert peak.flops_per_s > 0
    assert peak.provenance == "measured"
    assert "128x128x128 float32 GEMM measured on this CPU" in peak.source


def test_devices_are_found_by_their_pci_ids(tmp_path: Path) -> None:
    for slot, (vendor, device) in enumerate(
        [("0x1ae0", "0x006f"), ("0x1ae0", "0x0042"), ("0x10de", "0x006f"), ("0x1ae0", "0x006f")]
    ):
        folder = tmp_path / f"0000:00:{slot:02x}.0"
        folder.mkdir()
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "device").write_text(device + "\n")
    assert tpu_devices(tmp_path) == ["TPU v6e", "TPU v6e"]
    assert tpu_devices(tmp_path / "absent") == []
