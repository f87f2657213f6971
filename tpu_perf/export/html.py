"""Exporter `html`: report.html, one self-contained file that works offline."""

from __future__ import annotations

FILE_NAME = "report.html"
