"""What is checked: one cell is an op, a dtype, a mode and a kind of check, over every sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

DTYPES = ("float32", "bfloat16", "float16", "int64", "int32", "uint8", "bool", "float64",
          "complex64")  # fmt: skip
MODES = ("strict", "defer_and_fuse", "compile")
#: forward: every sample; noncontiguous: the same with strided inputs; inplace, out: the variants;
#: gradient: backward of every sample; errors: inputs that torch refuses.
CHECKS = ("forward", "noncontiguous", "inplace", "out", "gradient", "errors")

#: Checks beyond forward and gradient look at how results are stored, which torch.compile decides
#: by itself, so they run in the two eager modes.
_EAGER_ONLY = frozenset({"noncontiguous", "inplace", "out", "errors"})
_GRADIENT_DTYPES = frozenset({"float32", "complex64"})


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One square of the matrix."""

    op: str
    dtype: str
    mode: str
    check: str


@dataclass(slots=True)
class Result:
    """How a cell went. `status` is passed, failed, or absent: torch on the CPU has no such case."""

    cell: Cell
    status: str
    samples: int = 0
    failed_samples: int = 0
    message: str = ""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Result:
        return cls(**{**values, "cell": Cell(**values["cell"])})


def cells_of(
    op: str,
    dtypes: Sequence[str] = DTYPES,
    modes: Sequence[str] = MODES,
    checks: Sequence[str] = CHECKS,
) -> Iterator[Cell]:
    """The cells of an op, whether or not torch supports them."""
    for dtype in dtypes:
        for check in checks:
            if check == "gradient" and dtype not in _GRADIENT_DTYPES:
                continue
            if check == "errors" and dtype != dtypes[0]:
                continue  # error inputs choose their dtypes themselves
            for mode in modes:
                if mode == "compile" and check in _EAGER_ONLY:
                    continue
                yield Cell(op, dtype, mode, check)
