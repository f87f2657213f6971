"""Builds detailed run directories by hand: three steps with places, programs, device and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.stored_ladders import ENVIRONMENT, FACTS, plan
from tpu_perf.record.details import DETAIL_TABLES
from tpu_perf.record.events import EVENT_KINDS, PROGRAM_COLUMNS, STEP_COLUMNS, Tier
from tpu_perf.record.run import Run
from tpu_perf.record.store import RunWriter, StoredRun, load_run, table_of_rows

US = 1_000  # one microsecond in ns
ORIGIN = 5_000_000 * US
STEP_US = 1_000
HOSTILE = "=<script>alert(1)</script>|[x](y)"

#: site: file, line, function, module, module_class, phase, stack
SITES: tuple[tuple[Any, ...], ...] = (
    (0, "model.py", 11, "forward", "model.layers.3.mlp", "Mlp", "forward", "model.py:11 forward"),
    (1, "model.py", 12, "forward", "model.layers.3.attn", "Attn", "forward", ""),
    (2, "model.py", 11, "forward", "model.layers.3.mlp", "Mlp", "backward", ""),
    (3, "train.py", 30, "step", "", "", "optimizer", ""),
    (4, "model.py", 13, "forward", HOSTILE, "Odd", "forward", ""),
)
PROGRAMS: tuple[tuple[Any, ...], ...] = (
    (0, "key0", "mm", "op", 1, 1_000, 500, 4_000.0, 2e6, 0, 0),
    (1, "key1", "update", "segment", 2, 800, 800, None, 1e6, 0, 800),
)
#: One step: start in us after the step's, length, op, program, site. Op 4 lies inside op 3.
OPS: tuple[tuple[Any, ...], ...] = (
    (100, 50, "aten::mm", 0, 0),
    (150, 50, "aten::mm", 0, 0),
    (220, 30, "aten::softmax", -1, 1),
    (300, 100, "aten::mm", 0, 2),
    (310, 40, "aten::t", -1, 2),
    (500, 60, "aten::add_", 1, 3),
    (600, 10, "aten::relu", -1, 4),
)


def detailed_rows() -> dict[str, list[tuple[Any, ...]]]:
    """Rows by kind of event. Step 0 compiles, step 1 is timed, step 2 probed on the device."""
    rows: dict[str, list[tuple[Any, ...]]] = {kind: [] for kind in EVENT_KINDS}
    for step in range(3):
        begin = ORIGIN + step * STEP_US * US
        for start, length, op, program, site in OPS:
            at, end = begin + start * US, begin + (start + length) * US
            rows["dispatch"].append((at, end, op, program, step, site, 0))
            if program >= 0:
                tier = Tier.COMPILED if step == 0 and start in (100, 500) else Tier.MEMORY
                rows["execute"].append((at + 5 * US, at + 15 * US, program, int(tier), step))
                if tier is Tier.COMPILED:
                    compiled = (at + 5 * US, at + 12 * US, program, int(tier), 2 * US, 5 * US)
                    rows["compile"].append((*compiled, "shape", "model.py:11", step))
        rows["annotation"].append((begin + 90 * US, begin + 290 * US, "my block", "user", 0, step))
        rows["sync"].append((begin + 800 * US, begin + 850 * US, ".cpu()", step))
        rows["transfer"].append((begin + 10 * US, begin + 20 * US, "h2d", 64, step))
        rows["flush"].append((begin + 500 * US, begin + 520 * US, "item()", 2, 1, step))
        rows["memory"].append((begin + 100 * US, 700, 1_700, step, 1, 0))
        rows["memory"].append((begin + 150 * US, 300, 2_000, step, 2, 1))
        rows["memory"].append((begin + 700 * US, -300, 1_700, step, 2, -1))
        rows["memory"].append((begin + 710 * US, -700, 1_000, step, 1, -1))
    begin = ORIGIN + 2 * STEP_US * US
    for start, program in ((130, 0), (180, 0), (350, 0), (540, 1)):
        at = begin + start * US
        for number, name in enumerate(("fusion.1", "dot.2")):
            span = (at + number * 10 * US, at + (number + 1) * 10 * US)
            rows["device"].append((*span, program, name, "TPU core 0", 2))
    return rows


def write_detailed_run(
    directory: Path, rows: dict[str, list[tuple[Any, ...]]] | None = None, **changes: Any
) -> StoredRun:
    """A run directory of `detailed_rows`; `changes` go to the run."""
    writer = RunWriter(directory)
    rows = detailed_rows() if rows is None else rows
    writer.write_events(
        {kind: table_of_rows(EVENT_KINDS[kind].columns, found) for kind, found in rows.items()}
    )
    steps = []
    for step, phase in enumerate(("first", "timed", "probe")):
        begin = ORIGIN + step * STEP_US * US
        times = (begin, begin + 700 * US, begin + 900 * US)
        steps.append((step, phase, 0, *times, 2 if step == 0 else 0, 4.0 - step, 1.0))
    writer.write_steps(table_of_rows(STEP_COLUMNS, steps))
    writer.write_programs(table_of_rows(PROGRAM_COLUMNS, PROGRAMS))
    details: dict[str, list[tuple[Any, ...]]] = {
        "sites": list(SITES),
        "calls": [
            (
                0,
                "aten::mm",
                '["self", "mat2"]',
                '[{"dtype": "float32", "shape": [4, 8]}, {"dtype": "float32", "shape": [8, 2]}]',
                '[{"dtype": "float32", "shape": [4, 2]}]',
                1_000,
                500,
            )
        ],
        "program_ops": [(0, 0, "aten::mm", 0, 0), (1, 0, "aten::add_", -1, 3)],
        "buffer_labels": [(ORIGIN + 400 * US, 1, "parameter", "layers.3.weight", 700)],
    }
    for name, found in details.items():
        writer.write_detail(name, table_of_rows(DETAIL_TABLES[name], found))
    fields: dict[str, Any] = {
        "plan": plan(directory.name),
        "environment": ENVIRONMENT,
        "status": "ok",
        "facts": FACTS,
        **changes,
    }
    writer.finish(Run(**fields))
    return load_run(directory)
