"""A ladder: the runs of its rungs, the baseline, and the order in which they were sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LADDER_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderRung:
    """One row: the rung's name and its run directory relative to the ladder directory."""

    name: str
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """ladder.json of a ladder directory.

    `sampling_order` lists rung names in the order their rounds were sampled (round robin), so a
    reader can check that rungs were interleaved. `blocks` groups rungs that were alive together.
    """

    name: str
    id: str
    baseline: str
    rungs: tuple[LadderRung, ...]
    config: Mapping[str, Any]  # the validated ladder file after overrides
    config_path: str | None
    started_at: str
    finished_at: str | None = None  # None: interrupted
    sampling_order: tuple[str, ...] = ()
    blocks: tuple[tuple[str, ...], ...] = ()
    warnings: tuple[str, ...] = ()
    schema_version: int = LADDER_SCHEMA_VERSION

    def to_json(self) -> dict[str, Any]:
        return {
            "schema_version": self.schema_version,
            "name": self.name,
            "id": self.id,
            "baseline": self.baseline,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "rungs": [{"name": rung.name, "run": rung.run} for rung in self.rungs],
            "sampling_order": list(self.sampling_order),
            "blocks": [list(block) for block in self.blocks],
            "warnings": list(self.warnings),
            "config_path": self.config_path,
            "config": dict(self.config),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Ladder:
        return cls(
            schema_version=data["schema_version"],
            name=data["name"],
            id=data["id"],
            baseline=data["baseline"],
            started_at=data["started_at"],
            finished_at=data.get("finished_at"),
            rungs=tuple(LadderRung(**rung) for rung in data["rungs"]),
            sampling_order=tuple(data.get("sampling_order", ())),
            blocks=tuple(tuple(block) for block in data.get("blocks", ())),
            warnings=tuple(data.get("warnings", ())),
            config_path=data.get("config_path"),
            config=data.get("config", {}),
        )
