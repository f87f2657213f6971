"""What is publicly known of each TPU chip, and whether one is present."""

from tpu_perf.chips.presence import tpu_devices
from tpu_perf.chips.table import CHIPS, Chip, find_chip

__all__ = ["CHIPS", "Chip", "find_chip", "tpu_devices"]
