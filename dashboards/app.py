"""What Streamlit runs, with DIR (and `--no-run`) as arguments; the pages are found from here."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

# The package is `dashboards` in a checkout and `tpu_perf_dashboards` where a wheel put it.
PACKAGE = Path(__file__).resolve().parent
if str(PACKAGE.parent) not in sys.path:
    sys.path.insert(0, str(PACKAGE.parent))

import_module(f"{PACKAGE.name}.navigation").main(sys.argv[1:])
