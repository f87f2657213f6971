"""The rows of the table: who is compared with whom, and the limit the project set itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.benchmarks.contenders import Spec


@dataclass(frozen=True, slots=True)
class Pair:
    """Two contenders; the ratio is time of `first` over time of `second`."""

    label: str
    first: Spec
    second: Spec


@dataclass(frozen=True, slots=True)
class Row:
    """One limit. Of several pairs the worst counts."""

    name: str
    what: str
    pairs: tuple[Pair, ...]
    limit: float
    at_least: bool = False


def _against_peer(kind: str, mode: str) -> Pair:
    ours = Spec(kind, mode=mode)
    return Pair(mode, ours, replace(ours, peer=True))


def _whole_step(size: str) -> Pair:
    return Pair(size, Spec("whole_step", size=size), Spec("jax", size=size))


def _recorder(size: str) -> Pair:
    off = Spec("step", size=size)
    return Pair(size, replace(off, variant="recorded"), off)


def _cache(mode: str) -> Pair:
    # Both name the same kind of process; the measurement gives the second an empty directory.
    return Pair(mode, Spec("compile", mode=mode), Spec("compile", mode=mode))


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
        (_recorder("small_lm"), _recorder("overhead")),
        1.05,
    ),
    Row(
        "warm_directory_cache",
        "compile time of a process, warm directory cache / cold",
        (_cache("strict"), _cache("defer")),
        0.10,
    ),
)
