"""Why a program does not fit a device: what it needs, what there is, and its largest values."""

from __future__ import annotations

import re

from tpu_perf.errors import HloProblem
from tpu_perf.hlo.memory import memory_profile
from tpu_perf.hlo.module import Module, read_module
from tpu_perf.predict.targets import Target

_GIB = 2**30
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)B?"
#: The ways in which libtpu says it, each with what is needed and what there is.
_MESSAGES = (
    re.compile(rf"temporaries \({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm", re.IGNORECASE),
)
#: Values that are named at most.
_MOST_NAMED = 3
_HELD = frozenset({"bitcast", "tuple", "get-tuple-element", "while", "conditional"})


def reason_for_exhaustion(message: str, target: Target, hlo: bytes | None) -> str:
    """`does not fit: needs 41.2 GiB of 31.25, largest: ...` from libtpu's RESOURCE_EXHAUSTED.

    `hlo` is the module as far as libtpu got with it; libtpu's own words where its message has
    another form (it may be VMEM that is too small).
    """
    try:
        module = None if hlo is None else read_module(hlo)
    except HloProblem:
        module = None
    for form in _MESSAGES:
        matched = form.search(message)
        if matched is not None:
            needed, available = _bytes(*matched.groups()[:2]), _bytes(*matched.groups()[2:])
            needed = max(needed, 0.0 if module is None else _needed(module))
            text = f"does not fit: needs {needed / _GIB:.2f} GiB of {available / _GIB:.2f}"
            return text + ("" if module is None else _largest(module))
    return f"does not fit {target.name}: {message.removeprefix('RESOURCE_EXHAUSTED: ')[:500]}"


def _bytes(number: str, unit: str) -> float:
    return float(number) * _UNITS[unit]


def _needed(module: Module) -> float:
    """All main memory: libtpu's message may count temporaries alone."""
    profile = memory_profile(module)
    return 0.0 if profile is None else profile.reserved_bytes


def _largest(module: Module) -> str:
    profile = memory_profile(module)
    if profile is not None and profile.at_peak:
        named = [(one.size_bytes, f"{one.shape} of %{one.instruction}") for one in profile.at_peak]
    else:
        named = [
            (one.shape.nbytes, f"{one.shape} of %{one.name}")
            for computation in module.computations
            if not computation.is_fusion
            for one in computation.instructions
            if one.opcode not in _HELD and one.shape.memory_space == 0
        ]
    named.sort(key=lambda one: -one[0])
    told = "; ".join(f"{size / _GIB:.2f} GiB {what}" for size, what in named[:_MOST_NAMED])
    return f", largest: {told}" if told else ""
