"""The ladder directory while it is being filled: ladder.json is readable at every moment."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tpu_perf.config.load import LadderConfig, default_baseline
from tpu_perf.errors import ConfigError, StoredRunError
from tpu_perf.record.ladder import Ladder, LadderRung
from tpu_perf.record.plan import Plan
from tpu_perf.record.run import Status
from tpu_perf.record.store import (
    LADDER_FILE,
    PARTIAL_SUFFIX,
    load_ladder,
    load_run,
    write_ladder,
)

RUNGS_FOLDER = "rungs"


class LadderDirectory:
    """Owns ladder.json; every change is written at once."""

    def __init__(self, path: Path, ladder: Ladder) -> None:
        self.path = path
        self.ladder = ladder

    def run_directory(self, rung: str) -> Path:
        return self.path / RUNGS_FOLDER / rung

    def update(self, **changes: Any) -> None:
        self.ladder = replace(self.ladder, **changes)
        write_ladder(self.path, self.ladder)

    def sampled(self, rung: str) -> None:
        """Note one round; written with the next change, not in the middle of sampling."""
        self.ladder = replace(self.ladder, sampling_order=(*self.ladder.sampling_order, rung))

    def warn(self, message: str) -> None:
        if message not in self.ladder.warnings:
            self.update(warnings=(*self.ladder.warnings, message))

    def forget(self, rung: str) -> None:
        """Remove what an earlier attempt at this rung left."""
        directory = self.run_directory(rung)
        for path in (directory, directory.with_name(directory.name + PARTIAL_SUFFIX)):
            shutil.rmtree(path, ignore_errors=True)

    def statuses(self) -> dict[str, Status | None]:
        """The status of every rung, None where there is no run (yet)."""
        found: dict[str, Status | None] = {}
        for rung in self.ladder.rungs:
            try:
                found[rung.name] = load_run(self.path / rung.run).run.status
            except StoredRunError:
                found[rung.name] = None
        return found


def default_directory(config: LadderConfig) -> Path:
    """`runs/<ladder>-<UTC time>` under the working directory."""
    return Path("runs") / f"{config.file.name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"


def create_directory(path: Path, config: LadderConfig, plans: Sequence[Plan]) -> LadderDirectory:
    """Begin a new ladder. Raises ConfigError if the directory already holds one."""
    if (path / LADDER_FILE).exists():
        raise ConfigError(
            f"{path} already holds a ladder",
            hint="give another --out, or --resume to run what is missing there",
        )
    if path.exists() and not path.is_dir():
        raise ConfigError(f"--out {path} is a file, not a directory")
    names = [plan.rung for plan in plans]
    baseline = config.baseline if config.baseline in names else default_baseline(names)
    now = datetime.now(UTC)
    ladder = Ladder(
        name=config.file.name,
        id=f"{config.file.name}-{now:%Y%m%dT%H%M%S%fZ}",
        baseline=baseline,
        rungs=tuple(LadderRung(name=name, run=f"{RUNGS_FOLDER}/{name}") for name in names),
        config=config.to_json(),
        config_path=str(config.path),
        started_at=now.isoformat(timespec="seconds"),
    )
    if baseline != config.baseline:
        note = f"the baseline {config.baseline} was left out; speed-ups refer to {baseline}"
        ladder = replace(ladder, warnings=(note,))
    try:
        write_ladder(path, ladder)
    except OSError as error:
        raise ConfigError(f"--out {path} cannot be written: {error}") from None
    return LadderDirectory(path, ladder)


def resume_directory(
    path: Path, config: LadderConfig, plans: Sequence[Plan]
) -> tuple[LadderDirectory, tuple[Plan, ...]]:
    """Open an earlier ladder; returns the plans whose rung has no ok run yet.

    Raises ConfigError if the ladder file or the overrides differ from those it was begun with.
    """
    ladder = load_ladder(path)
    differences = list(_differences(ladder.config, config.to_json()))
    if differences:
        raise ConfigError(
            f"{path} was begun with another configuration:\n  " + "\n  ".join(differences),
            hint="give the same ladder file and --set, or begin a new ladder without --resume",
        )
    directory = LadderDirectory(path, ladder)
    statuses = directory.statuses()
    missing = tuple(plan for plan in plans if plan.rung in statuses and statuses[plan.rung] != "ok")
    if missing and len(missing) < len(statuses):
        names = ", ".join(plan.rung for plan in missing)
        directory.warn(
            f"{names}: run later than the other rungs (--resume), so not interleaved with them"
        )
    if missing:
        directory.update(finished_at=None)
    return directory, missing


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    told = []
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if before == after:
            continue
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            told += _differences(before, after, f"{prefix}{key}.")
        else:
            told.append(f"{prefix}{key} was {before!r}, is {after!r}")
    return told
