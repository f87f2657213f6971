"""Records and exports runs of millions of events, and prints time and peak memory of each.

`python -m tests.benchmarks.large_runs [--events N]`; each figure is of a fresh process. Ends with 1
if a limit is passed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.stored_ladders import ENVIRONMENT, FACTS, plan
from tpu_perf.record.details import PROGRAM_OP_COLUMNS, SITE_COLUMNS
from tpu_perf.record.events import PROGRAM_COLUMNS, STEP_COLUMNS, Tier
from tpu_perf.record.run import Run
from tpu_perf.record.store import RunWriter, load_run, table_of_rows

#: Of a million events; recording keeps to the bytes with ten million as well.
LONGEST_EXPORT_S = 30.0
MOST_BYTES = 2_000_000_000

OPS_PER_STEP = 1_000
#: An op is a dispatch, an execution, a device event and half an allocation and release each.
EVENTS_PER_OP = 4
_OP_NS, _GAP_NS = 20_000, 5_000_000


def record(directory: Path, events: int) -> dict[str, Any]:
    """Record so many events through the recorder, as a job of many steps does, in one round."""
    from tpu_perf.recorder import Recorder
    from tpu_perf.recorder.packing import (
        memory_event,
        name_number,
        op_event,
        site_and_thread,
        site_only,
    )

    recorder = Recorder()
    names = [name_number(f"aten::op{number}.default") for number in range(40)]
    steps = max(1, events // (EVENTS_PER_OP * OPS_PER_STEP))
    rows, live, at = [], 1 << 30, 10**12
    memory = int(Tier.MEMORY)
    for step in range(steps):
        begin = at
        recorder.begin_step(step)
        op, allocated, device = recorder.op, recorder.memory, recorder.device
        for number in range(OPS_PER_STEP):
            program = number % 40
            row = op_event(at, at + 2_000, at + 9_000, at + 12_000, names[program], program,
                           memory, step)  # fmt: skip
            op(row + site_and_thread(program, 0))  # as a recorder with details does
            size = 4096 if number % 2 == 0 else -4096
            live += size
            allocated(memory_event(at + 500, size, live, step, number // 2) + site_only(program))
            device((at + 3_000, at + 15_000, program, f"fusion.{program}", "core 0", step))
            at += _OP_NS
        rows.append((step, "probe", 0, begin, at, at + 1_000, 0, 1.0, 1.0))
        at += _GAP_NS
        recorder.end_step()
    tables = recorder.drain()
    writer = RunWriter(directory)
    writer.write_events(tables)
    kept = sum(table.num_rows for table in tables.values())
    del tables
    writer.write_steps(table_of_rows(STEP_COLUMNS, rows))
    _describe(writer)
    writer.finish(Run(plan=plan("large"), environment=ENVIRONMENT, status="ok", facts=FACTS))
    return {"events": kept, "dropped": recorder.dropped_events}


def _describe(writer: RunWriter) -> None:
    """Forty programs of one op each, from ten lines of four modules."""
    programs = [(n, f"{n:040x}", f"op{n}", "op", 1, 4096, 4096, 8192.0, 1e6, 0, 0)
                for n in range(40)]  # fmt: skip
    writer.write_programs(table_of_rows(PROGRAM_COLUMNS, programs))
    sites = [(n, "model.py", n // 4, "forward", f"model.layers.{n % 4}.mlp", "Mlp", "forward",
              f"model.py:{n // 4} forward") for n in range(40)]  # fmt: skip
    writer.write_detail("sites", table_of_rows(SITE_COLUMNS, sites))
    ops = [(n, 0, f"aten::op{n}.default", -1, n) for n in range(40)]
    writer.write_detail("program_ops", table_of_rows(PROGRAM_OP_COLUMNS, ops))


def export(directory: Path, format: str) -> dict[str, Any]:
    """Export the run, the exporter's own check of what it wrote included."""
    from tpu_perf.export.run_interface import RUN_EXPORTERS

    made = RUN_EXPORTERS.get(format).write(load_run(directory), directory.with_name(format))
    size = sum(file.stat().st_size for file in made.files)
    return {"files": len(made.files), "bytes": size, "notes": list(made.notes)}


def measured(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What the work says of itself, with `seconds` and `peak_bytes` of this process."""
    begin = time.perf_counter()
    found = work()
    seconds = time.perf_counter() - begin
    peak = _peak_rss_bytes()
    return {**found, "seconds": round(seconds, 2), "peak_bytes": int(peak)}


def _peak_rss_bytes() -> int:
    """Peak resident bytes of this program. Not getrusage's: Linux starts that from the process
    that forked this one."""
    with open("/proc/self/status", encoding="ascii") as status:
        peak = next(line for line in status if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024


def in_fresh_process(what: str, directory: Path, events: int = 0) -> dict[str, Any]:
    """`record`, or a format to export to, in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.large_runs", "--do", what]
    command += ["--directory", str(directory), "--events", str(events)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    """1 if a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--do", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.do == "record":
        print(json.dumps(measured(lambda: record(options.directory, options.events))))
        return 0
    if options.do:
        print(json.dumps(measured(lambda: export(options.directory, options.do))))
        return 0
    kept = True
    with tempfile.TemporaryDirectory() as temporary:
        run = Path(temporary) / "run"
        for what in ("record", "perfetto", "xprof"):
            found = in_fresh_process(what, run, options.events)
            slow = what != "record" and found["seconds"] > LONGEST_EXPORT_S
            passed = " passes its limit" if slow or found["peak_bytes"] > MOST_BYTES else ""
            kept = kept and not passed
            peak = found["peak_bytes"] / 2**20
            size = f"{found['files']} files" if "files" in found else f"{found['events']:,} events"
            print(f"{what:9} {found['seconds']:7.2f} s {peak:7,.0f} MiB  {size}{passed}")
            print("".join(f"          {note}\n" for note in found.get("notes", [])), end="")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
