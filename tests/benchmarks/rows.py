"""The rows of the table: who is compared with whom, and the limit the project set itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.benchmarks.contenders import Spec
from tests.benchmarks.hf_models import NAMES
from tests.benchmarks.op_calls import OPS


@dataclass(frozen=True, slots=True)
class Pair:
    """Two contenders; the ratio is time (or memory) of `first` over that of `second`."""

    label: str
    first: Spec
    second: Spec


@dataclass(frozen=True, slots=True)
class Row:
    """One limit. `combine` says which of several pairs counts: the worst, their median or their
    geometric mean. Rows of unit "ms" hold what the first takes longer, not a ratio."""

    name: str
    what: str
    pairs: tuple[Pair, ...]
    limit: float
    at_least: bool = False
    combine: str = "worst"
    unit: str = "ratio"


def _against_peer(kind: str, mode: str) -> Pair:
    ours = Spec(kind, mode=mode)
    return Pair(mode, ours, replace(ours, peer=True))


def _whole_step(size: str) -> Pair:
    return Pair(size, Spec("whole_step", size=size), Spec("jax", size=size))


def _recorder(off: Spec) -> Pair:
    return Pair(f"{off.kind} {off.mode} {off.size}", replace(off, variant="recorded"), off)


def _cache(mode: str) -> Pair:
    # Both name the same kind of process; the measurement gives the second an empty directory.
    return Pair(mode, Spec("compile", mode=mode), Spec("compile", mode=mode))


def _op_pairs(mode: str) -> tuple[Pair, ...]:
    ours = [Spec("ops", mode=mode, variant=op) for op in OPS]
    return tuple(Pair(s.variant, s, replace(s, peer=True)) for s in ours)


def _op_rows(mode: str, name: str) -> tuple[Row, Row]:
    """The median over thirty ops, and the worst of them."""
    pairs = _op_pairs(mode)
    what = f"a call of 30 common ops, {name} / TorchTPU {name}"
    return (
        Row(f"ops_{mode}", f"{what}: median", pairs, 0.7, combine="median"),
        Row(f"ops_{mode}_worst", f"{what}: worst", pairs, 1.2),
    )


def _model_pairs(mode: str) -> tuple[Pair, ...]:
    ours = [Spec("model", mode=mode, size=name) for name in NAMES]
    if mode == "compile":
        return tuple(Pair(s.size, s, replace(s, device="cpu")) for s in ours)
    return tuple(Pair(s.size, s, replace(s, peer=True)) for s in ours)


ROWS = (
    Row(
        "strict_add",
        "chained 8x8 add with execution, Strict / TorchTPU Strict",
        (_against_peer("add", "strict"),),
        0.7,
    ),
    Row(
        "strict_step",
        "training step, small LM, Strict / TorchTPU Strict",
        (_against_peer("step", "strict"),),
        0.9,
    ),
    Row(
        "defer_and_fuse_step",
        "training step, small LM, DeferAndFuse / TorchTPU DeferAndFuse",
        (_against_peer("step", "defer"),),
        0.9,
    ),
    Row(
        "whole_step_small_lm",
        "whole step, small LM / hand-written JAX, one jit",
        (_whole_step("small_lm"),),
        1.05,
    ),
    Row(
        "whole_step_overhead",
        "whole step, tiny LM / hand-written JAX, one jit",
        (_whole_step("overhead"),),
        1.05,
    ),
    Row(
        "defer_over_strict",
        "training step, tiny LM, Strict / DeferAndFuse",
        (
            Pair(
                "overhead",
                Spec("step", size="overhead"),
                Spec("step", size="overhead", mode="defer"),
            ),
        ),
        1.5,
        at_least=True,
    ),
    Row(
        "recorder_on_over_off",
        "training step, Strict, recorder on / off",
        tuple(_recorder(Spec("step", size=size)) for size in ("small_lm", "overhead")),
        1.05,
    ),
    Row(
        "recorder_on_over_off_fused",
        "training step, DeferAndFuse and whole step, recorder on / off",
        (
            _recorder(Spec("step", mode="defer", size="small_lm")),
            _recorder(Spec("whole_step", size="small_lm")),
        ),
        1.02,
    ),
    Row(
        "warm_directory_cache",
        "compile time of a process, warm directory cache / cold",
        (_cache("strict"), _cache("defer")),
        0.10,
    ),
    *_op_rows("strict", "Strict"),
    *_op_rows("defer", "DeferAndFuse"),
    *_op_rows("debug", "Debug"),
    Row(
        "models_strict",
        "training step of 5 tiny models of transformers, Strict / TorchTPU",
        _model_pairs("strict"),
        0.9,
    ),
    Row(
        "models_defer_and_fuse",
        "the same, DeferAndFuse / TorchTPU",
        _model_pairs("defer"),
        0.9,
    ),
    Row(
        "models_compile",
        "the same, torch.compile / inductor on the CPU: geometric mean",
        _model_pairs("compile"),
        1.0,
        combine="geometric_mean",
    ),
    Row(
        "import_torch",
        "import torch with the device's entry point, ms more than without",
        (Pair("import torch", Spec("import", variant="autoload"), Spec("import")),),
        50.0,
        unit="ms",
    ),
    Row(
        "memory_per_tensor",
        "host memory of a live tensor of one element, Strict / TorchTPU",
        (_against_peer("memory", "strict"),),
        1.0,
    ),
)
