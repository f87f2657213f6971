"""What came of compiling one program for one target, and the form in which it is kept on disk."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tpu_perf.predict.targets import Target

#: Counts up when the worker or this form changes, so that old extracts are not found.
EXTRACT_VERSION = 1
_LENGTHS = struct.Struct("<QQQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One program to compile.

    `stablehlo` is text, bytecode or a portable artifact, lowered for the platform tpu. `options`
    are XLA's compiler options; `init_args` is LIBTPU_INIT_ARGS as the user's job has it (flags
    belong to the program: the scoped VMEM limit alone changes a matmul by a quarter).
    `device_order` says which device of the slice each partition runs on; empty: in libtpu's order.
    `llo` asks for the static profile of the machine code too, which kernels need.
    """

    name: str
    stablehlo: bytes = field(repr=False)
    target: Target
    options: Mapping[str, Any] = field(default_factory=dict)
    init_args: str = ""
    device_order: tuple[int, ...] = ()
    llo: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A program as libtpu compiled it.

    `hlo` is an HloProto with schedule and, where libtpu wrote it, buffer assignment;
    `unoptimised` the HloModuleProto of what was asked for. `memory_bytes` are of one device, by
    XLA's names. `llo_cycles` are cycles by instruction, empty unless asked for.
    """

    name: str
    target: Target
    hlo: bytes = field(repr=False)
    unoptimised: bytes = field(repr=False)
    memory_bytes: Mapping[str, int]
    peak_memory_bytes: int | None
    partitions: int
    replicas: int
    llo_cycles: Mapping[str, int]
    compile_s: float
    compiler: str
    from_cache: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCompiled:
    """Why there is no program. `exhausted` is a limit of this machine, not of the target."""

    name: str
    target: Target
    status: Literal["does_not_fit", "failed", "timeout", "exhausted"]
    reason: str
    from_cache: bool = False


Outcome = Compiled | NotCompiled


def pack(outcome: Outcome) -> bytes:
    """The bytes to keep; `unpack` reads them."""
    if isinstance(outcome, NotCompiled):
        head: dict[str, Any] = {"status": outcome.status, "reason": outcome.reason}
        hlo = unoptimised = b""
    else:
        head = {
            "status": "ok",
            "memory_bytes": dict(outcome.memory_bytes),
            "peak_memory_bytes": outcome.peak_memory_bytes,
            "partitions": outcome.partitions,
            "replicas": outcome.replicas,
            "llo_cycles": dict(outcome.llo_cycles),
            "compile_s": outcome.compile_s,
            "compiler": outcome.compiler,
        }
        hlo, unoptimised = outcome.hlo, outcome.unoptimised
    text = json.dumps(head).encode()
    return _LENGTHS.pack(len(text), len(hlo), len(unoptimised)) + text + hlo + unoptimised


def unpack(data: bytes, name: str, target: Target) -> Outcome:
    """What `pack` wrote. Raises ValueError where the bytes are something else."""
    try:
        lengths = _LENGTHS.unpack_from(data)
    except struct.error as error:
        raise ValueError(f"not a compiled program: {error}") from None
    if _LENGTHS.size + sum(lengths) != len(data):
        raise ValueError("not a compiled program: its lengths do not add up")
    at = _LENGTHS.size
    parts = []
    for length in lengths:
        parts.append(data[at : at + length])
        at += length
    head = json.loads(parts[0])
    status = head.pop("status")
    if status != "ok":
        return NotCompiled(name=name, target=target, status=status, from_cache=True, **head)
    return Compiled(
        name=name, target=target, hlo=parts[1], unoptimised=parts[2], from_cache=True, **head
    )
