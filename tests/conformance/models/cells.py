"""The table's cells: one architecture in one mode, and what came of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

#: "cpu" is the reference run; the others are compared with it.
MODES = ("strict", "defer_and_fuse", "compile")
Status = Literal["passed", "failed", "not_buildable", "not_on_cpu"]


@dataclass(frozen=True, slots=True)
class ModelCell:
    """One architecture in one mode ("cpu" or one of MODES)."""

    architecture: str
    mode: str


@dataclass(slots=True)
class ModelResult:
    """`inputs` names what the model was given; `parameters` is its size."""

    cell: ModelCell
    status: Status
    message: str = ""
    family: str = ""
    inputs: tuple[str, ...] = ()
    parameters: int = 0
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ModelResult:
        return cls(**{**values, "cell": ModelCell(**values["cell"]),
                      "inputs": tuple(values["inputs"])})  # fmt: skip
