"""Writes runs of any number of events, quickly: steps that are all alike, made with numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.stored_ladders import ENVIRONMENT, FACTS, plan
from tpu_perf.record.details import DETAIL_TABLES
from tpu_perf.record.events import EVENT_KINDS, PROGRAM_COLUMNS, STEP_COLUMNS, Tier
from tpu_perf.record.run import Run
from tpu_perf.record.store import RunWriter, arrow_schema, table_of_rows

OPS = 480
#: Of a step, for each op: a dispatch, an execute, an allocation and a release of a temporary, and
#: an allocation in the first half of the step that the second half releases, last one first.
EVENTS_PER_STEP = 5 * OPS
OP_NS, GAP_NS = 40_000, 10_000
STEP_NS = OPS * (OP_NS + GAP_NS) + 1_000_000
BUFFER_BYTES = 4_096
NAMES = ("aten::mm", "aten::add.Tensor", "aten::mul.Tensor", "aten::gelu", "aten::_softmax")
LAYERS = 24


def _table(kind: str, columns: dict[str, np.ndarray]) -> pa.Table:
    """A table of events; numbers of a string column index NAMES."""
    schema = arrow_schema(EVENT_KINDS[kind].columns)
    arrays = []
    for field in schema:
        values = columns[field.name]
        if pa.types.is_dictionary(field.type):
            indices = pa.array(values.astype(np.int32))
            arrays.append(pa.DictionaryArray.from_arrays(indices, pa.array(NAMES)))
        else:
            arrays.append(pa.array(values).cast(field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def write_large_run(directory: Path, events: int = 1_000_000) -> Path:
    """A Strict run of at least so many events: its own steps, sites of LAYERS layers, a program
    an op. Every step takes STEP_NS; op i of a step starts i * (OP_NS + GAP_NS) after it."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    writer = RunWriter(directory)
    steps = -(-events // EVENTS_PER_STEP)
    starts = 1_000_000_000 + np.arange(steps, dtype=np.int64) * (STEP_NS + 50_000)
    step = np.repeat(np.arange(steps), OPS)
    op = np.tile(np.arange(OPS), steps)
    begin = np.repeat(starts, OPS) + op * (OP_NS + GAP_NS)
    zero = np.zeros_like(begin)
    tier = np.where(step == 0, int(Tier.COMPILED), int(Tier.MEMORY))
    dispatch = {
        "t_start_ns": begin,
        "t_end_ns": begin + OP_NS,
        "op": op % len(NAMES),
        "program": op,
        "step": step,
        "site": op,
        "thread": zero,
    }
    execute = {
        "t_start_ns": begin + 5_000,
        "t_end_ns": begin + OP_NS - 5_000,
        "program": op,
        "tier": tier,
        "step": step,
    }
    forward = op < OPS // 2
    kept = np.where(forward, op + 1, OPS - 1 - op) * BUFFER_BYTES
    memory = {
        "t_ns": np.concatenate([begin + 6_000, begin + 7_000, begin + 38_000]),
        "delta_bytes": np.concatenate(
            [np.where(forward, BUFFER_BYTES, -BUFFER_BYTES), zero + BUFFER_BYTES,
             zero - BUFFER_BYTES]
        ),
        "live_bytes": np.concatenate([kept, kept + BUFFER_BYTES, kept]),
        "step": np.tile(step, 3),
        "buffer": np.concatenate([np.where(forward, op, OPS - 1 - op), OPS + op, OPS + op]),
        "site": np.concatenate([np.where(forward, op, -1), op, zero - 1]),
    }  # fmt: skip
    order = np.argsort(memory["t_ns"], kind="stable")
    memory = {name: values[order] for name, values in memory.items()}
    for chosen in np.array_split(np.arange(steps), 20):
        if not len(chosen):
            continue
        part = slice(chosen[0] * OPS, (chosen[-1] + 1) * OPS)
        both = np.isin(memory["step"], chosen)
        writer.write_events(
            {
                "dispatch": _table("dispatch", {k: v[part] for k, v in dispatch.items()}),
                "execute": _table("execute", {k: v[part] for k, v in execute.items()}),
                "memory": _table("memory", {k: v[both] for k, v in memory.items()}),
            }
        )
    writer.write_steps(
        table_of_rows(
            STEP_COLUMNS,
            [
                (n, "first" if n == 0 else "timed", n // 10, int(at), int(at + STEP_NS - 500_000),
                 int(at + STEP_NS - (n % 7) * 10_000), int(n == 0), 4.0 - n / steps, 1.0)
                for n, at in enumerate(starts)
            ],
        )
    )  # fmt: skip
    writer.write_programs(
        table_of_rows(
            PROGRAM_COLUMNS,
            [
                (n, f"key{n}", NAMES[n % len(NAMES)], "op", 1, 3_000, 1_096, 8_000.0, 1e6, 512, 0)
                for n in range(OPS)
            ],
        )
    )
    sites = [
        (n, "model.py", 10 + n % 40, "forward",
         f"layers.{n * LAYERS // OPS}.{'attn' if n % 2 else 'mlp'}",
         "Attention" if n % 2 else "Mlp",
         "forward" if n < OPS // 2 else "backward", "")
        for n in range(OPS)
    ]  # fmt: skip
    ops = [(n, 0, NAMES[n % len(NAMES)], -1, n) for n in range(OPS)]
    writer.write_detail("sites", table_of_rows(DETAIL_TABLES["sites"], sites))
    writer.write_detail("program_ops", table_of_rows(DETAIL_TABLES["program_ops"], ops))
    run = Run(plan=plan(directory.name), environment=ENVIRONMENT, status="ok", facts=FACTS)
    return writer.finish(run)
