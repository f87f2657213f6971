"""The program table of a run, and the files of each program beside it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zstandard

from tpu_perf.errors import HloProblem
from tpu_perf.hlo.module import Module, read_module
from tpu_perf.hlo.schema import HloModuleProto, HloProto
from tpu_perf.record.details import HLO_FILE, KEY_DIGITS
from tpu_perf.record.events import PROGRAM_COLUMNS
from tpu_perf.record.store import table_of_rows, write_json
from tpu_perf.runtime import jax_private

if TYPE_CHECKING:
    import pyarrow as pa

    from tpu_perf.runtime.program_cache import Program

#: Programs of several ops are worth the second compile that gives their buffer assignment, as
#: long as all such compiles together take no more than this.
_KINDS_WITH_BUFFERS = ("step", "graph", "segment")
BUFFERS_BUDGET_S = 30.0


def program_table(programs: Sequence[Program]) -> pa.Table:
    """A row a program, in the columns of PROGRAM_COLUMNS; null where XLA does not say."""
    rows = []
    for program in programs:
        cost = program.executable.cost()
        rows.append(
            (
                *(program.index, program.key, program.name, program.kind, program.ops),
                *(program.bytes_in, program.bytes_out),
                *(cost.get("bytes accessed"), cost.get("flops")),
                *(program.executable.temp_bytes(), program.donated_bytes),
            )
        )
    return table_of_rows(PROGRAM_COLUMNS, rows)


def write_program_files(
    directory: Path, programs: Sequence[Program], options: Mapping[str, Any], buffers: bool
) -> None:
    """`<key>/stablehlo.mlir.zst`, `cost.json` and `hlo.pb.zst` for every program; with `buffers`
    the larger ones, while there is time, with their buffer assignment."""
    compressor = zstandard.ZstdCompressor(level=3)
    assigned = _with_buffers(programs, options) if buffers else {}
    for program in programs:
        place = directory / program.key[:KEY_DIGITS]
        place.mkdir(parents=True, exist_ok=True)
        (place / "stablehlo.mlir.zst").write_bytes(compressor.compress(program.stablehlo))
        hlo = assigned.get(program.index)
        module = program.executable.hlo() if hlo is None else None
        if module is not None:
            hlo = HloProto(hlo_module=HloModuleProto.FromString(module)).SerializeToString()
        if hlo is not None:
            (place / HLO_FILE).write_bytes(compressor.compress(hlo))
        cost = {
            "name": program.name,
            "kind": program.kind,
            "xla_cost_analysis": program.executable.cost(),
            "temp_bytes": program.executable.temp_bytes(),
            "compile_ns": program.compile_ns,
            "buffer_assignment": program.index in assigned,
        }
        write_json(place / "cost.json", cost)


def _with_buffers(programs: Sequence[Program], options: Mapping[str, Any]) -> dict[int, bytes]:
    """HloProtos with a buffer assignment by program number, the largest programs first."""
    chosen = [p for p in programs if p.kind in _KINDS_WITH_BUFFERS and p.ops > 1 and p.executions]
    chosen.sort(key=lambda program: -program.ops)
    found: dict[int, bytes] = {}
    end = time.monotonic() + BUFFERS_BUDGET_S
    for program in chosen:
        if time.monotonic() > end:
            break
        try:
            hlo = jax_private.hlo_with_buffers(program.stablehlo, options, program.placement)
        except Exception:  # a dump is optional in PJRT; the module without it is kept
            break
        if hlo is not None and _same(hlo, program.executable.hlo()):
            found[program.index] = hlo
    return found


def _same(dumped: bytes, ran: bytes | None) -> bool:
    """Whether the second compile made the module that ran."""
    if ran is None:
        return False
    try:
        return _names(read_module(dumped)) == _names(read_module(ran))
    except HloProblem:
        return False


def _names(module: Module) -> list[str]:
    return [one.name for computation in module.computations for one in computation.instructions]
