"""TPUs on this machine's PCI bus, found without starting libtpu (which would take them)."""

from __future__ import annotations

from pathlib import Path

_GOOGLE = "0x1ae0"
#: PCI device ids, as JAX's hardware_utils lists them too.
_DEVICES = {
    "0x0027": "TPU v2 or v3",
    "0x005e": "TPU v4",
    "0x0062": "TPU v5p",
    "0x0063": "TPU v5e",
    "0x006f": "TPU v6e",
    "0x0076": "TPU7x",
}


def tpu_devices(bus: Path = Path("/sys/bus/pci/devices")) -> list[str]:
    """The kind of every TPU on the bus; empty on machines without one."""
    found = []
    for device in sorted(bus.glob("*")):
        try:
            vendor = (device / "vendor").read_text(encoding="ascii").strip()
            kind = (device / "device").read_text(encoding="ascii").strip()
        except OSError:
            continue
        if vendor == _GOOGLE and kind in _DEVICES:
            found.append(_DEVICES[kind])
    return found
