"""The list of models that are known to fail, each with its reason: `expected.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.models.cells import MODES, ModelCell

FILE = Path(__file__).with_name("expected.toml")


@dataclass(frozen=True, slots=True)
class Expectation:
    """An architecture that fails in some modes."""

    architecture: str
    modes: tuple[str, ...]
    reason: str


def load(path: Path = FILE) -> dict[ModelCell, str]:
    """The reason of every cell that must fail. Raises ValueError for an entry that is not whole."""
    reasons: dict[ModelCell, str] = {}
    for values in tomllib.loads(path.read_text(encoding="utf-8")).get("expected", []):
        if set(values) - {"architecture", "modes", "reason"} or not values.get("reason"):
            raise ValueError(f"{path.name}: entry {values} has unknown keys or no reason")
        for mode in values.get("modes", MODES):
            if mode not in MODES:
                raise ValueError(f"{path.name}: {values['architecture']}: no mode {mode!r}")
            reasons[ModelCell(values["architecture"], mode)] = values["reason"]
    return reasons
