"""A run recorded in detail, built by hand: every figure that a viewer shows is known on paper.

Each step is 100 ms. It runs program 0 (dot.1 20 ms, fusion.2 10 ms) and program 1 (fusion.7 15 ms,
whose FLOPs XLA did not say). Only probe steps have device events.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import zstandard

from tests.stored_ladders import ENVIRONMENT, FACTS, MS, plan
from tpu_perf.record.details import DETAIL_TABLES, HLO_FILE
from tpu_perf.record.events import EVENT_KINDS, PROGRAM_COLUMNS, STEP_COLUMNS, Tier
from tpu_perf.record.run import Facts, Run
from tpu_perf.record.store import RunWriter, table_of_rows

STEP_NS = 100 * MS
DOT_FLOPS, FUSION_FLOPS = 1_000_000_000, 2_000_000
DOT_READ, DOT_WRITTEN = 3_000_000_000, 1_000_000_000
PHASES = ("first", "warmup", "timed", "timed", "timed", "probe", "probe")
FIRST_START = 5_000 * MS
KEYS = ("a" * 40, "b" * 40)

PROGRAMS: tuple[tuple[Any, ...], ...] = (
    (0, KEYS[0], "forward_backward", "graph", 2, 1_000, 500, 6e9, 1.002e9, 4_096, 0),
    (1, KEYS[1], "adamw", "segment", 1, 9_000, 9_000, 1e9, None, 0, 9_000),
)
INSTRUCTIONS: tuple[tuple[Any, ...], ...] = (
    (0, "dot.1", "dot", "matmul", "main", "[0]", float(DOT_FLOPS), float(DOT_READ),
     float(DOT_WRITTEN), 1.0, "f32[64,64]{1,0}", "%dot.1 = f32[64,64]{1,0} dot(%x, %w)"),
    (0, "fusion.2", "fusion", "elementwise fusion", "main", "[1]", float(FUSION_FLOPS), 1.5e9,
     0.5e9, 1.0, "f32[64,64]{1,0}", "%fusion.2 = f32[64,64]{1,0} fusion(%dot.1)"),
    (1, "fusion.7", "fusion", "elementwise fusion", "main", "[0]", None, 0.5e9,
     0.5e9, 1.0, "f32[64]{0}", "%fusion.7 = f32[64]{0} fusion(%p, %g)"),
)  # fmt: skip
SITES: tuple[tuple[Any, ...], ...] = (
    (0, "model.py", 10, "forward", "blocks.0.linear", "Linear", "forward",
     "model.py:10 forward\ntrain.py:20 step"),
    (1, "model.py", 12, "forward", "blocks.0", "Block", "forward", "model.py:12 forward"),
    (2, "train.py", 30, "step", "", "", "optimizer", "train.py:30 step"),
)  # fmt: skip
PROGRAM_OPS: tuple[tuple[Any, ...], ...] = (
    (0, 0, "aten::mm", -1, 0),
    (0, 1, "aten::gelu", -1, 1),
    (1, 0, "aten::_foreach_add_", -1, 2),
)

#: Instruction -> (program, start within the step, duration) in ms.
DEVICE_TIMELINE = {"dot.1": (0, 10, 20), "fusion.2": (0, 30, 10), "fusion.7": (1, 60, 15)}
DEVICE_NS_PER_STEP = 45 * MS


def step_start(step: int) -> int:
    return FIRST_START + step * (STEP_NS + 10 * MS)


def _step_events(step: int, phase: str, lane: str) -> dict[str, list[tuple[Any, ...]]]:
    at = step_start(step)
    built = phase == "first"
    tier = int(Tier.COMPILED if built else Tier.MEMORY)
    events: dict[str, list[tuple[Any, ...]]] = {
        "annotation": [
            (at + 2 * MS, at + 40 * MS, "blocks.0", "module", 0, step),
            (at + 50 * MS, at + 58 * MS, "AdamW.step", "optimizer", 0, step),
        ],
        "dispatch": [
            (at + 3 * MS, at + 5 * MS, "aten::mm", -1, step, 0, 0),
            (at + 6 * MS, at + 9 * MS, "aten::gelu", 0, step, 1, 0),
            (at + 51 * MS, at + 57 * MS, "aten::_foreach_add_", 1, step, 2, 0),
        ],
        "flush": [(at + 7 * MS, at + 9 * MS, "item()", 2, 0, step)],
        "execute": [
            (at + 8 * MS, at + 9 * MS, 0, tier, step),
            (at + 55 * MS, at + 56 * MS, 1, tier, step),
        ],
        "transfer": [(at + 1 * MS, at + 2 * MS, "h2d", 4_096, step)],
        "sync": [(at + 70 * MS, at + 80 * MS, "item()", step)],
        "memory": [
            (at + 4 * MS, 1_000_000, 3_000_000, step, 5, 0),
            (at + 90 * MS, -1_000_000, 2_000_000, step, 5, 0),
        ],
        "device": [],
    }
    if built:
        events["compile"] = [
            (at + 7 * MS, at + 8 * MS, 0, tier, MS // 4, MS // 2, "shape", "model.py:12", step)
        ]
    if phase == "probe":
        events["device"] = [
            (at + start * MS, at + (start + length) * MS, program, name, lane, step)
            for name, (program, start, length) in DEVICE_TIMELINE.items()
        ]
    return events


def write_capture(
    directory: Path,
    *,
    device_events: bool = True,
    details: bool = True,
    hlo: bytes | None = None,
    device_kind: str = "cpu",
    phases: tuple[str, ...] = PHASES,
    extra: dict[str, list[tuple[Any, ...]]] | None = None,
    facts: Facts = FACTS,
) -> Path:
    """Write the run; `hlo` becomes program 0's stored module, `extra` adds events by kind."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    writer = RunWriter(directory)
    rows: dict[str, list[tuple[Any, ...]]] = {kind: [] for kind in EVENT_KINDS}
    rows["memory"].append((FIRST_START - MS, 2_000_000, 2_000_000, -1, 1, -1))
    for step, phase in enumerate(phases):
        for kind, added in _step_events(step, phase, "core 0").items():
            rows[kind] += added
    if not device_events:
        rows["device"] = []
    for kind, added in (extra or {}).items():
        rows[kind] += added
    writer.write_events(
        {kind: table_of_rows(EVENT_KINDS[kind].columns, rows[kind]) for kind in EVENT_KINDS}
    )
    writer.write_steps(
        table_of_rows(
            STEP_COLUMNS,
            [
                (step, phase, 0, at := step_start(step), at + 85 * MS, at + STEP_NS,
                 int(phase == "first"), 4.0, 1.0)
                for step, phase in enumerate(phases)
            ],
        )
    )  # fmt: skip
    writer.write_programs(table_of_rows(PROGRAM_COLUMNS, PROGRAMS))
    if details:
        labels = ((FIRST_START + 5 * MS, 1, "parameter", "w", 2_000_000),)
        tables = {
            "sites": SITES,
            "program_ops": PROGRAM_OPS,
            "instructions": INSTRUCTIONS,
            "buffer_labels": labels,
        }
        for name, table in tables.items():
            writer.write_detail(name, table_of_rows(DETAIL_TABLES[name], table))
    if hlo is not None:
        path = writer.partial / "programs" / KEYS[0][:32] / HLO_FILE
        path.parent.mkdir(parents=True)
        path.write_bytes(zstandard.ZstdCompressor().compress(hlo))
    run = Run(
        plan=plan(directory.name),
        environment=replace(ENVIRONMENT, device_kind=device_kind),
        status="ok",
        facts=facts,
    )
    return writer.finish(run)
