"""What two runs must share for a comparison to mean anything, and in what they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from tpu_perf.record.run import Run

#: Packages that decide how fast a step is; others are told, and do not stop a comparison.
DECISIVE_PACKAGES = ("torch", "jax", "jaxlib", "libtpu", "transformers")
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`what` is `base` in one run and `new` in the other. `blocking`: a ratio of the two would
    say more about this than about the code."""

    what: str
    base: str
    new: str
    blocking: bool

    def __str__(self) -> str:
        return f"{self.what}: {self.base} against {self.new}"


def differences(base: Run, new: Run) -> tuple[Difference, ...]:
    """In what two runs differ, what forbids a comparison first.

    Blocking are what was run and on what: workload, batch, precision, optimizer, measured or
    predicted, device, versions of the frameworks, and on a CPU its model and cores. How it was run
    (mode, engine, compiler options, flags) may differ: that is what people compare. What either
    run does not know is not held against it.
    """
    found = [*_of_plans(base, new), *_of_facts(base, new), *_of_machines(base, new)]
    return tuple(sorted(found, key=lambda difference: not difference.blocking))


def _differ(what: str, base: Any, new: Any, *, blocking: bool) -> Iterator[Difference]:
    if base != new and UNKNOWN not in (base, new) and None not in (base, new):
        yield Difference(what=what, base=str(base), new=str(new), blocking=blocking)


def _of_plans(base: Run, new: Run) -> Iterator[Difference]:
    here, there = base.plan, new.plan
    yield from _differ("workload", here.workload.kind, there.workload.kind, blocking=True)
    for names, blocking in (
        (("precision", "execution", "seed"), True),
        (("engine", "mode", "threads", "cpu_fallback"), False),
    ):
        for name in names:
            mine, other = getattr(here, name), getattr(there, name)
            yield from _differ(name, mine, other, blocking=blocking and name != "seed")
    if here.workload.kind == there.workload.kind:
        mine, other = flattened(here.workload.params), flattened(there.workload.params)
        yield from _of_mappings("workload ", mine, other, blocking=True)
    if UNKNOWN not in (here.optimizer.name, there.optimizer.name):
        mine = {"name": here.optimizer.name, **flattened(here.optimizer.params)}
        other = {"name": there.optimizer.name, **flattened(there.optimizer.params)}
        yield from _of_mappings("optimizer ", mine, other, blocking=True)
        yield from _differ(
            "optimizer implementation", here.optimizer.implementation,
            there.optimizer.implementation, blocking=False,
        )  # fmt: skip
    options = flattened(here.compiler_options), flattened(there.compiler_options)
    yield from _of_mappings("compiler option ", *options, blocking=False)


def _of_facts(base: Run, new: Run) -> Iterator[Difference]:
    for name in ("tokens_per_step", "samples_per_step"):
        what = name.replace("_", " ")
        mine, other = getattr(base.facts, name), getattr(new.facts, name)
        yield from _differ(what, mine, other, blocking=True)


def _of_machines(base: Run, new: Run) -> Iterator[Difference]:
    here, there = base.environment, new.environment
    if here is None or there is None:
        return
    on_cpu = "cpu" in (here.device_kind, there.device_kind)
    for name, blocking in (
        ("device_kind", True),
        ("device_count", True),
        ("cpu", on_cpu),
        ("cores", on_cpu),
        ("python", False),
        ("hostname", False),
        ("os", False),
        ("git_commit", False),
    ):
        what = name.replace("_", " ")
        yield from _differ(what, getattr(here, name), getattr(there, name), blocking=blocking)
    for package in sorted({*here.versions} & {*there.versions}):
        yield from _differ(
            package, here.versions[package], there.versions[package],
            blocking=package in DECISIVE_PACKAGES,
        )  # fmt: skip
    yield from _of_mappings("variable ", here.variables, there.variables, blocking=False)


def _of_mappings(
    prefix: str, base: Mapping[str, Any], new: Mapping[str, Any], *, blocking: bool
) -> Iterator[Difference]:
    for name in sorted({*base, *new}):
        mine, other = base.get(name), new.get(name)
        if mine != other:
            yield Difference(
                what=f"{prefix}{name}",
                base="not set" if mine is None else str(mine),
                new="not set" if other is None else str(other),
                blocking=blocking,
            )


def flattened(params: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested parameters by dotted name. A function of the user's is named by its file alone: two
    checkouts of one repository lie in different directories."""
    out: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            out |= flattened(value, f"{prefix}{name}.")
        elif name == "function" and isinstance(value, str):
            file, colon, function = value.rpartition(":")
            out[f"{prefix}{name}"] = f"{PurePath(file).name}{colon}{function}"
        else:
            out[f"{prefix}{name}"] = value
    return out
