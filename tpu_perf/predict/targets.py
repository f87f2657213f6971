"""Names of TPU slices: `v6e-256`, `v5p-8`, `tpu7x:4x4x4`, `2xv6e-256` for two slices."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from tpu_perf.chips.torus import BLOCK, ring_closes
from tpu_perf.errors import TpuPerfError
from tpu_perf.predict.generations import GENERATIONS, Generation

_NAME = re.compile(r"(?:(\d+)x(?=[a-z]))?([a-z0-9]+?)(?:-(\d+)|:(\d+(?:x\d+)*))?")
#: Other people's names of a generation.
_ALIASES = {"v5litepod": "v5e", "v5lite": "v5e", "v7x": "tpu7x", "v7": "tpu7x", "trillium": "v6e",
            "ironwood": "tpu7x"}  # fmt: skip
_MOST_SLICES = 256


class UnknownTarget(TpuPerfError):
    """No TPU slice has this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A slice, or several equal ones joined by the data-centre network.

    `shape` are chips along each axis of a slice's torus.
    """

    name: str
    generation: Generation = field(repr=False)
    shape: tuple[int, ...]
    slices: int = 1

    @property
    def chips(self) -> int:
        return math.prod(self.shape) * self.slices

    @property
    def devices(self) -> int:
        """Devices that a program sees."""
        return self.chips * self.generation.chip.devices_per_chip

    @property
    def topology_name(self) -> str:
        """As libtpu wants it."""
        return f"{self.generation.name}:{'x'.join(map(str, self.shape))}"

    @property
    def topology_options(self) -> dict[str, Any]:
        """What `jax.experimental.topologies` needs beside the name."""
        options: dict[str, Any] = {}
        if math.prod(self.shape) == 1:
            options["chips_per_host_bounds"] = [1, 1, 1]
        if self.generation.name == "v4":
            options["chip_config_name"] = "megacore"
        if self.slices > 1:
            options["num_slices"] = self.slices
        return options

    def wraps(self, axis: int) -> bool:
        """Whether the links of an axis close to a ring."""
        return ring_closes(self.shape, axis)

    def coordinates(self, position: int) -> tuple[int, ...]:
        """(slice, core, x, y[, z]) of the device at this position of libtpu's list: slice by
        slice, host by host (2x2 chips each), chip by chip, the cores of a chip together."""
        per_slice = self.devices // self.slices
        number, rest = divmod(position, per_slice)
        rest, core = divmod(rest, self.generation.chip.devices_per_chip)
        within, hosts = [], []
        for axis, extent in enumerate(self.shape):
            side = min(2, extent) if axis < 2 else 1
            within.append(side)
            hosts.append(extent // side)
        found = []
        for extents in (within, hosts):
            for extent in extents:
                rest, place = divmod(rest, extent)
                found.append(place)
        rank = len(self.shape)
        places = (found[rank + axis] * within[axis] + found[axis] for axis in range(rank))
        return (number, core, *places)

    def __str__(self) -> str:
        """`v5p-8 (2x2x1: 4 chips, 4 devices)`."""
        several = f"{self.slices} slices of " if self.slices > 1 else ""
        torus = "x".join(map(str, self.shape))
        plural = "s" if self.chips > 1 else ""
        devices = f"{self.devices} device{'s' if self.devices > 1 else ''}"
        return f"{self.name} ({several}{torus}: {self.chips} chip{plural}, {devices})"


def find_target(name: str) -> Target:
    """The slice of this name. `-N` counts chips, on v4 and v5p TensorCores (two a chip), as
    Google Cloud does; `:AxB` and `:AxBxC` are chips along the axes; `Kx` in front is K slices.

    Raises UnknownTarget, which lists what there is.
    """
    matched = _NAME.fullmatch(name.strip().lower())
    if matched is None:
        raise UnknownTarget(f"no TPU slice is called {name!r}", hint=_forms())
    count, kind, number, extents = matched.groups()
    generation = GENERATIONS.get(_ALIASES.get(kind, kind))
    if generation is None:
        raise UnknownTarget(f"{name!r}: no TPU generation is called {kind!r}", hint=_forms())
    slices = int(count) if count else 1
    if not 1 <= slices <= _MOST_SLICES:
        raise UnknownTarget(f"{name!r}: {slices} slices; 1 to {_MOST_SLICES} can be joined")
    if extents:
        shape = tuple(int(one) for one in extents.split("x"))
        _check_shape(name, generation, shape)
    else:
        shape = _sold(name, generation, number)
    return Target(name=name.strip(), generation=generation, shape=shape, slices=slices)


def _sold(name: str, generation: Generation, number: str | None) -> tuple[int, ...]:
    per_chip = 2 if generation.numbers_are_cores else 1
    # The smallest v4 and v5p machine has 4 chips; one chip alone has no name of that form.
    known = {
        chips * per_chip: shape
        for chips, shape in generation.sizes.items()
        if not (generation.numbers_are_cores and chips == 1)
    }
    shape = known.get(int(number)) if number is not None else None
    if shape is None:
        numbers = ", ".join(f"{generation.name}-{one}" for one in known)
        axes = "x".join("ABC"[: len(generation.largest)])
        raise UnknownTarget(
            f"{name!r}: {generation.name} has no slice of that size",
            hint=f"there are {numbers}; or {generation.name}:{axes} with chips along each axis",
        )
    return shape


def _check_shape(name: str, generation: Generation, shape: tuple[int, ...]) -> None:
    rank = len(generation.largest)
    if len(shape) != rank:
        what = "x".join(map(str, generation.sizes[8]))
        raise UnknownTarget(
            f"{name!r}: {generation.name} slices have {rank} axes, not {len(shape)}",
            hint=f"for example {generation.name}:{what}",
        )
    if math.prod(shape) == 1:
        return
    largest = "x".join(map(str, generation.largest))
    good = all(one in (1, 2) or one % BLOCK == 0 for one in shape)
    whole_hosts = shape[0] % 2 == 0 and shape[1] % 2 == 0
    fits = all(
        one <= most for one, most in zip(sorted(shape), sorted(generation.largest), strict=True)
    )
    if not (good and whole_hosts and fits and min(shape) > 0):
        raise UnknownTarget(
            f"{name!r}: {generation.name} has no slice of {'x'.join(map(str, shape))} chips",
            hint=f"extents are 1 (the third axis only), 2 or multiples of {BLOCK}, in all at most "
            f"{largest}; or {'x'.join(['1'] * rank)}, one chip alone",
        )


def _forms() -> str:
    return (
        "generations: " + ", ".join(GENERATIONS) + "; for example v6e-1, v6e-256, v5p-8, "
        "tpu7x:4x4x4, or 2xv6e-256 for two slices"
    )
