"""`python -m tpu_perf`."""

from __future__ import annotations

from tpu_perf.cli.main import main

main()
