"""Single operators: what was measured on real TPUs against what is predicted."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from ruamel.yaml import YAML

from tpu_perf.predict.compile_cache import CompileCache
from tpu_perf.predict.compiled import NotCompiled, Request
from tpu_perf.predict.libtpu import devices_of
from tpu_perf.predict.prediction import predict_program
from tpu_perf.predict.targets import Target, find_target

ROWS = Path(__file__).with_name("operators.yaml")
_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRow:
    """Rates in `unit`; `error` is predicted time over measured time, less one. `fitted` where a
    constant was read off this row, so that it proves nothing. None and a reason where libtpu did
    not compile it."""

    name: str
    measured: float
    predicted: float | None
    unit: str
    error: float | None
    fitted: bool
    sources: tuple[str, ...] = ()
    reason: str | None = None


def validate_operators(cache: CompileCache, rows: Path = ROWS) -> list[OperatorRow]:
    """Predict every row of the file."""
    document = YAML(typ="safe").load(rows.read_text(encoding="utf-8"))
    flags = document["flags"]
    listed = [(row, _program(row)) for row in document["rows"]]
    requests = [
        Request(
            name=_name(row),
            stablehlo=program,
            target=find_target(row["target"]),
            init_args=flags[row["flags"]],
        )
        for row, (program, _) in listed
    ]
    outcomes = cache.compile_all(requests)
    return [
        _compare(row, work, request, outcome)
        for (row, (_, work)), request, outcome in zip(listed, requests, outcomes, strict=True)
    ]


def _compare(row: dict[str, Any], work: float, request: Request, outcome: Any) -> OperatorRow:
    facts: dict[str, Any] = {
        "name": request.name,
        "measured": row["value"],
        "unit": row["unit"],
        "fitted": row.get("fitted", False),
    }
    if isinstance(outcome, NotCompiled):
        return OperatorRow(predicted=None, error=None, reason=outcome.reason, **facts)
    found = predict_program(outcome, init_args=request.init_args)
    scale = 1e12 if row["unit"] == "TFLOP/s" else 1e9
    # Benchmarks of collectives time the collective; the program may copy its result, too.
    queues = found.timeline.queue_s
    seconds = queues.get("ici") or queues.get("dcn") or found.seconds
    rate = work / seconds / scale
    return OperatorRow(
        predicted=rate,
        error=row["value"] / rate - 1,
        sources=tuple(found.timeline.work_s),
        **facts,
    )


def _name(row: dict[str, Any]) -> str:
    size = next(f"{row[key]:g} {unit}" for key, unit in
                (("size", "^3"), ("mib", "MiB"), ("gb", "GB")) if key in row)  # fmt: skip
    return f"{row['op']} {size.replace(' ^', '^')} {row['target']}"


def _program(row: dict[str, Any]) -> tuple[bytes, float]:
    """StableHLO, and the work its benchmark divides by the time: FLOPs or bytes."""
    target = find_target(row["target"])
    match row["op"]:
        case "gemm":
            n = row["size"]
            matrix = jax.ShapeDtypeStruct((n, n), jnp.bfloat16)
            return _lower(jnp.matmul, matrix, matrix), 2.0 * n**3
        case "copy":
            array = jax.ShapeDtypeStruct((row["mib"] * _MIB // 2,), jnp.bfloat16)
            return _lower(lambda a: a.copy(), array), 2.0 * row["mib"] * _MIB
        case "all-gather":
            return _all_gather(target, row["gb"] * 1e9), row["gb"] * 1e9
        case "all-reduce":
            return _all_reduce(target), row["gb"] * 1e9 * _all_reduce_factor(target)
    raise ValueError(f"unknown operator {row['op']!r}")


def _lower(function: Any, *arrays: Any) -> bytes:
    lowered = jax.jit(function).trace(*arrays).lower(lowering_platforms=("tpu",))
    return str(lowered.compiler_ir("stablehlo")).encode()


def _all_gather(target: Target, transferred_bytes: float) -> bytes:
    """Over the four chips, each core in a group of its own; 6 shards count as transferred."""
    devices = devices_of(target.topology_name, target.topology_options)
    mesh = Mesh(np.array(devices).reshape(4, 2), ("chip", "core"))
    rows = round(transferred_bytes / 6 / (8 * 128 * 4))
    gather = jax.shard_map(
        lambda x: lax.all_gather(x, "chip", tiled=True),
        mesh=mesh, in_specs=P("chip"), out_specs=P(None), check_vma=False,
    )  # fmt: skip
    sharding = NamedSharding(mesh, P("chip"))
    return _lower(gather, jax.ShapeDtypeStruct((4 * rows, 8, 128), jnp.float32, sharding=sharding))


def _all_reduce(target: Target) -> bytes:
    """A 17408x17408 matrix on each device, summed over a slice, or between slices."""
    devices = np.array(devices_of(target.topology_name, target.topology_options))
    mesh = Mesh(devices.reshape(target.slices, -1), ("dcn", "ici"))
    axis = "ici" if target.slices == 1 else "dcn"
    reduce = jax.shard_map(
        partial(lax.psum, axis_name=axis), mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False
    )
    matrix = jax.ShapeDtypeStruct(
        (17408, 17408), jnp.bfloat16, sharding=NamedSharding(mesh, P(None, None))
    )
    return _lower(reduce, matrix)


def _all_reduce_factor(target: Target) -> float:
    """Its benchmark counts 2 (n - 1) / n of the matrix, n devices reducing together."""
    n = target.devices if target.slices == 1 else target.slices
    return 2 * (n - 1) / n


def summary(rows: list[OperatorRow]) -> dict[str, Any]:
    """The JSON document: all rows, and median errors with and without those that were fitted."""

    def median(chosen: list[OperatorRow]) -> dict[str, Any]:
        errors = [abs(row.error) for row in chosen if row.error is not None]
        return {
            "rows": len(errors),
            "median_abs_error": statistics.median(errors) if errors else None,
            "worst_abs_error": max(errors, default=None),
        }

    return {
        "operators": [asdict(row) for row in rows],
        "all": median(rows),
        "not_fitted": median([row for row in rows if not row.fitted]),
        "not_compiled": sum(row.error is None for row in rows),
    }
