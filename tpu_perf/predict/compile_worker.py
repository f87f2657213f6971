"""The child process that compiles: one JSON request a line on stdin, one JSON reply a line back.

It ends with its parent: libtpu may be in the middle of a long compile, so a thread watches stdin.
"""

from __future__ import annotations

import json
import os
import queue
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tpu_perf.hlo.schema import HloProto
from tpu_perf.predict import libtpu

#: Files of a request's directory: what goes in, and what comes out.
STABLEHLO, HLO, UNOPTIMISED, DUMP = "module.stablehlo", "hlo.pb", "unoptimised.pb", "dump"
_CYCLES = re.compile(r'hlo_op_name: "([^"]+)"\s+estimated_cycles: (\d+)')
_MEMORY_FIELDS = (
    "argument_size_in_bytes",
    "output_size_in_bytes",
    "alias_size_in_bytes",
    "temp_size_in_bytes",
    "generated_code_size_in_bytes",
    "host_argument_size_in_bytes",
    "host_output_size_in_bytes",
    "host_temp_size_in_bytes",
)


def serve(llo_folder: Path | None) -> None:
    """Answer requests until stdin closes."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            requests.put(line)
        os._exit(0)

    threading.Thread(target=listen, name="requests", daemon=True).start()
    while True:
        answers.write(json.dumps(_answer(json.loads(requests.get()), llo_folder)) + "\n")


def _answer(request: dict[str, Any], llo_folder: Path | None) -> dict[str, Any]:
    """{"status": "ok", ...}, or {"status": "failed" | "exhausted", "message": ...}."""
    folder = Path(request["folder"])
    begin = time.monotonic()
    try:
        module = libtpu.Module((folder / STABLEHLO).read_bytes())
        (folder / UNOPTIMISED).write_bytes(module.unoptimised_hlo())
        devices = libtpu.devices_of(request["topology"], request["topology_options"])
        dump = folder / DUMP
        options = [
            *request["options"].items(),
            ("xla_dump_to", str(dump)),
            ("xla_dump_hlo_as_proto", True),
        ]
        if llo_folder is not None:
            for old in llo_folder.iterdir():
                old.unlink()
        executable = module.compile(devices, options, request["device_order"])
    except Exception as error:  # whatever libtpu raises is an answer, not a failure of ours
        text = str(error)
        dumped = _dumped(folder)
        if dumped is not None:  # what there is of it says what takes the memory
            (folder / HLO).write_bytes(dumped.read_bytes())
        status = "exhausted" if "RESOURCE_EXHAUSTED" in text else "failed"
        return {"status": status, "message": text[:20_000]}
    module_proto = executable.hlo_modules()[0].as_serialized_hlo_module_proto()
    (folder / HLO).write_bytes(_with_buffers(module_proto, _dumped(folder)))
    stats = executable.get_compiled_memory_stats()
    return {
        "status": "ok",
        "seconds": time.monotonic() - begin,
        "partitions": module.partitions,
        "replicas": module.replicas,
        "memory": {name: int(getattr(stats, name)) for name in _MEMORY_FIELDS},
        "peak_memory_bytes": int(getattr(stats, "peak_memory_in_bytes", 0)) or None,
        "llo_cycles": {} if llo_folder is None else _llo_cycles(llo_folder),
        "platform_version": devices[0].client.platform_version,
    }


def _dumped(folder: Path) -> Path | None:
    """The dump that has the buffer assignment."""
    return next(iter(sorted((folder / DUMP).glob("*.after_optimizations.hlo.pb"))), None)


def _with_buffers(module_proto: bytes, dumped: Path | None) -> bytes:
    """An HloProto of both: cycles are only in the module in memory, buffers only in the dump.

    The assignment is left out where it names instructions that code generation replaced.
    """
    whole = HloProto()
    whole.hlo_module.ParseFromString(module_proto)
    if dumped is not None:
        buffers = HloProto.FromString(dumped.read_bytes()).buffer_assignment
        known = {
            one.id
            for computation in whole.hlo_module.computations
            for one in computation.instructions
        }
        if all(one.defined_at.instruction_id in known for one in buffers.logical_buffers):
            whole.buffer_assignment.CopyFrom(buffers)
    return bytes(whole.SerializeToString())


def _llo_cycles(folder: Path) -> dict[str, int]:
    """Cycles of each instruction by libtpu's static profile of its code; zeros are left out."""
    found: dict[str, int] = {}
    for file in folder.glob("*_static_llo_profile.textproto"):
        matched = _CYCLES.search(file.read_text(encoding="utf-8", errors="replace")[:4096])
        if matched is not None and int(matched[2]):
            found[matched[1]] = int(matched[2])
    return found


if __name__ == "__main__":
    serve(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
