"""Page Engines: one ladder's job on two engines, and where each of them cuts a step."""

from __future__ import annotations

import streamlit as st

from tpu_perf.analysis.engine_comparison import pairs
from tpu_perf.export.report import engine_tables

from . import charts, text
from .choosing import choose
from .directory import Directory
from .ladder import plain_table
from .loading import ladder_of


def show(directory: Directory) -> None:
    st.title("Engines")
    ladders = [found.path for found in directory.found() if found.kind == "ladder"]
    if not ladders:
        text.message("info", f"There is no ladder under {directory.root} yet.")
        return
    path = choose(st.container(), "Ladder", ladders, "ladder", str, first=True)
    found = pairs(ladder_of(directory, str(path)).rungs)
    table = engine_tables.comparison(found)
    if table is None:
        text.message("info", "No mode of this ladder was measured on two engines. Run one that is:")
        st.code("tpu-perf ladder ladders/torch_tpu_vs_ours.yaml", language="bash")
        return
    if any(one.stand_in for pair in found for one in pair):
        text.message(
            "warning",
            "TorchTPU ran over a PJRT plugin for the CPU, not on a TPU: its times are XLA:CPU's. "
            "Its programs, batches and cache requests are those that it makes.",
        )
    plain_table(table)
    charts.show(engine_tables.step_cuts(found), "The ops of no program are known.")
    for one in engine_tables.cut_tables(found):
        plain_table(one)
