"""The kinds of event a run leaves behind, one columnar table each.

Times are integer nanoseconds of `time.perf_counter_ns` in the worker process. `step` is the index
of the step in progress, -1 outside steps. `program` is the index of a row of the program table,
-1 where no program took part. `site` is a row of the site table (`record.details`), -1 where the
recorder was not asked to look. Column order is the order in which the recorder appends.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

ColumnType = Literal["int64", "int32", "int8", "float64", "string"]


class Tier(IntEnum):
    """Which tier of the program cache answered a look-up."""

    MEMORY = 0
    HOST = 1
    DIRECTORY = 2
    COMPILED = 3


@dataclass(frozen=True, slots=True)
class EventKind:
    """Name of the table (and of its Parquet files) and its columns in order.

    String columns are interned: the recorder appends small integers and the file holds a
    dictionary-encoded column.
    """

    name: str
    columns: tuple[tuple[str, ColumnType], ...]
    doc: str

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns)


DISPATCH = EventKind(
    "dispatch",
    (
        ("t_start_ns", "int64"),
        ("t_end_ns", "int64"),
        ("op", "string"),
        ("program", "int32"),
        ("step", "int32"),
        ("site", "int32"),
        ("thread", "int32"),
    ),
    "One aten op reached the device: host time from entry to return. `program` is -1 when the op "
    "was only recorded (DeferAndFuse) or needs no program. `thread` numbers the threads of the "
    "process in the order in which they were seen, 0 first; -1 not looked at.",
)
EXECUTE = EventKind(
    "execute",
    (
        ("t_start_ns", "int64"),
        ("t_end_ns", "int64"),
        ("program", "int32"),
        ("tier", "int8"),
        ("step", "int32"),
    ),
    "One program was enqueued: host time of the call into PJRT. Exactly one program-cache "
    "look-up per event; `tier` says which tier answered it.",
)
COMPILE = EventKind(
    "compile",
    (
        ("t_start_ns", "int64"),
        ("t_end_ns", "int64"),
        ("program", "int32"),
        ("tier", "int8"),
        ("trace_ns", "int64"),
        ("backend_ns", "int64"),
        ("differed", "string"),
        ("source", "string"),
        ("step", "int32"),
    ),
    "The memory tier did not have a program: it was built by XLA (tier COMPILED) or loaded (tier "
    "DIRECTORY). `trace_ns` is tracing and lowering, `backend_ns` XLA compiling or loading; "
    "`differed` names the key component that differed from the nearest known program.",
)
FLUSH = EventKind(
    "flush",
    (
        ("t_start_ns", "int64"),
        ("t_end_ns", "int64"),
        ("reason", "string"),
        ("ops", "int32"),
        ("program", "int32"),
        ("step", "int32"),
    ),
    "A deferred segment was cut and run. Reasons have TorchTPU's names.",
)
MEMORY = EventKind(
    "memory",
    (
        ("t_ns", "int64"),
        ("delta_bytes", "int64"),
        ("live_bytes", "int64"),
        ("step", "int32"),
        ("buffer", "int64"),
        ("site", "int32"),
    ),
    "A device buffer was allocated (delta > 0) or released (delta < 0). `buffer` is unique among "
    "live buffers and used again after a release.",
)
TRANSFER = EventKind(
    "transfer",
    (
        ("t_start_ns", "int64"),
        ("t_end_ns", "int64"),
        ("direction", "string"),
        ("bytes", "int64"),
        ("step", "int32"),
    ),
    "Host to device (`h2d`) or device to host (`d2h`) copy.",
)
SYNC = EventKind(
    "sync",
    (
        ("t_start_ns", "int64"),
        ("t_end_ns", "int64"),
        ("reason", "string"),
        ("step", "int32"),
    ),
    "The host waited for the device.",
)
FALLBACK = EventKind(
    "fallback",
    (
        ("t_start_ns", "int64"),
        ("t_end_ns", "int64"),
        ("op", "string"),
        ("step", "int32"),
    ),
    "An op was computed by torch on the host because TORCH_TPU_CPU_FALLBACK=1.",
)

#: The lane of device events that stand for whole programs.
MODULE_LANE = "module"
#: What the lanes of virtual devices of a CPU are called, before their number.
DEVICE_LANE = "device "

DEVICE = EventKind(
    "device",
    (
        ("t_start_ns", "int64"),
        ("t_end_ns", "int64"),
        ("program", "int32"),
        ("instruction", "string"),
        ("lane", "string"),
        ("step", "int32"),
    ),
    "One HLO instruction ran on the device, as XLA's own profiler reports it. `lane` is its line "
    "there: a core of a TPU, a thread of a CPU, one of several virtual devices of a CPU; lane "
    "`module` holds whole programs, where XLA reports them.",
)
ANNOTATION = EventKind(
    "annotation",
    (
        ("t_start_ns", "int64"),
        ("t_end_ns", "int64"),
        ("name", "string"),
        ("kind", "string"),
        ("thread", "int32"),
        ("step", "int32"),
    ),
    "Something the program says of itself: `kind` is module (a forward of nn.Module, `name` its "
    "path), user (torch.profiler.record_function), optimizer, backward, data (a DataLoader's "
    "next).",
)
LOOKUP = EventKind(
    "lookup",
    (
        ("t_start_ns", "int64"),
        ("t_end_ns", "int64"),
        ("program", "int32"),
        ("key", "string"),
        ("tier", "int8"),
        ("hit", "int8"),
        ("differed", "string"),
        ("step", "int32"),
    ),
    "A tier of the program cache below the memory tier was asked (tier HOST or DIRECTORY), or the "
    "compiler was (tier COMPILED, hit 1). `differed` says on a miss which key component differed "
    "from the nearest entry. Look-ups that the memory tier answers are the execute events.",
)

EVENT_KINDS: dict[str, EventKind] = {
    kind.name: kind
    for kind in (
        *(DISPATCH, EXECUTE, COMPILE, FLUSH, MEMORY, TRANSFER, SYNC, FALLBACK),
        *(DEVICE, ANNOTATION, LOOKUP),
    )
}

#: steps.parquet: one row per step the worker ran. `phase` is first | warmup | timed | probe | bare
#: ("bare" steps run with the recorder off, paired with timed ones, to measure its overhead).
STEP_COLUMNS: tuple[tuple[str, ColumnType], ...] = (
    ("step", "int32"),
    ("phase", "string"),
    ("round", "int32"),
    ("t_start_ns", "int64"),
    ("t_dispatched_ns", "int64"),  # the step function returned, work may still be under way
    ("t_end_ns", "int64"),  # after the fence
    ("compiles", "int32"),
    ("loss", "float64"),
    ("grad_norm", "float64"),
)

#: programs.parquet: one row per distinct program. Bytes and FLOPs are per execution; null where
#: XLA did not say.
PROGRAM_COLUMNS: tuple[tuple[str, ColumnType], ...] = (
    ("program", "int32"),
    ("key", "string"),
    ("name", "string"),
    ("kind", "string"),  # op | segment | graph | step | transfer
    ("ops", "int32"),
    ("bytes_in", "int64"),
    ("bytes_out", "int64"),
    ("bytes_accessed", "float64"),
    ("flops", "float64"),
    ("temp_bytes", "int64"),
    ("donated_bytes", "int64"),
)
