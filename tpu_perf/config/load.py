"""Reading a ladder file into a validated configuration, or into the list of its mistakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from tpu_perf.config.catalogue import Catalogue
from tpu_perf.config.mesh_checks import check_sharding
from tpu_perf.config.messages import data_path, explain
from tpu_perf.config.models import LadderFile, Optimizer, RungEntry
from tpu_perf.config.overrides import apply_overrides
from tpu_perf.config.problems import Path, did_you_mean, raise_all
from tpu_perf.config.yaml_source import Document, read_document


@dataclass(frozen=True, slots=True, kw_only=True)
class RungConfig:
    """One rung with the ladder's settings and its own merged."""

    name: str
    entry: RungEntry
    workload: Mapping[str, Any]  # kind and parameters
    optimizer: Mapping[str, Any]  # name, implementation and parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderConfig:
    """A ladder file that is right."""

    path: FilePath
    file: LadderFile
    rungs: tuple[RungConfig, ...]
    baseline: str

    def to_json(self) -> dict[str, Any]:
        document = self.file.model_dump(mode="json", exclude_none=True)
        document["cache_dir"] = self.file.cache_dir
        document["baseline"] = self.baseline
        return document


def load_ladder(
    path: FilePath, catalogue: Catalogue, overrides: Sequence[str] = ()
) -> LadderConfig:
    """Read, override and validate. Raises ConfigError that tells all mistakes at once."""
    document = read_document(path)
    apply_overrides(document, overrides)
    return validate(document, catalogue)


def validate(document: Document, catalogue: Catalogue) -> LadderConfig:
    """Check a document as a whole; every mistake found is in the one ConfigError."""
    context = {"directory": document.file.resolve().parent}
    ladder = TypeAdapter(catalogue.ladder_model())
    file = _check(document, ladder, document.data, (), context)
    rungs = _check_rungs(document, catalogue, context)
    check_sharding(document, catalogue)
    baseline = _check_baseline(document, rungs)
    document.problems.sort(key=lambda problem: _order(document, problem.place))
    raise_all(document.problems)
    assert isinstance(file, LadderFile)
    return LadderConfig(
        path=document.file,
        file=file,
        baseline=baseline,
        rungs=tuple(
            RungConfig(name=entry.label, entry=entry, workload=workload, optimizer=optimizer)
            for entry, (workload, optimizer) in zip(file.rungs, rungs.values(), strict=True)
        ),
    )


def _check(
    document: Document,
    adapter: TypeAdapter[Any],
    data: Any,
    prefix: Path,
    context: Mapping[str, Any],
    seen: set[tuple[Path, str, str]] | None = None,
) -> Any:
    """Validate `data`, which stands at `prefix`; mistakes go to the document's list."""
    try:
        return adapter.validate_python(data, context=dict(context))
    except ValidationError as error:
        schema = adapter.json_schema()
        for detail in error.errors():
            path = data_path(detail, data)
            if seen is not None and _identity(detail, data) in seen:
                continue
            document.complain((*prefix, *path), explain(detail, schema))
        return None


def _check_rungs(
    document: Document, catalogue: Catalogue, context: Mapping[str, Any]
) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Each rung's workload and optimizer after its own changes, by the rung's name.

    Works on the raw document, so that mistakes here are told together with all others.
    """
    workloads = TypeAdapter(catalogue.workload_union())
    optimizers: TypeAdapter[Any] = TypeAdapter(Optimizer)
    base_workload = document.data.get("workload")
    base_optimizer = document.data.get("optimizer", {"name": "adamw"})
    out: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    entries = document.data.get("rungs")
    for index, raw in enumerate(entries if isinstance(entries, list) else []):
        entry = raw if isinstance(raw, dict) else {"rung": raw}
        name = str(entry.get("name") or entry.get("rung"))
        if name in out:
            document.complain(
                ("rungs", index), f"a second rung named {name}; give this one a name of its own"
            )
        parts = []
        for key, base, adapter in (
            ("workload", base_workload, workloads),
            ("optimizer", base_optimizer, optimizers),
        ):
            change = entry.get(key)
            merged = merge(base, change) if isinstance(change, dict) else base
            parts.append(
                _check_change(document, adapter, base, merged, ("rungs", index, key), context)
            )
        out[name] = (parts[0], parts[1])
    return out


def _check_change(
    document: Document,
    adapter: TypeAdapter[Any],
    base: Any,
    merged: Any,
    prefix: Path,
    context: Mapping[str, Any],
) -> dict[str, Any]:
    """Validate a rung's merged settings, telling only what its own change made wrong."""
    seen: set[tuple[Path, str, str]] = set()
    try:
        adapter.validate_python(base, context=dict(context))
    except ValidationError as error:
        seen = {_identity(detail, base) for detail in error.errors()}
    model = _check(document, adapter, merged, prefix, context, seen)
    return {} if model is None else dict(model.model_dump(mode="json"))


def _identity(error: ErrorDetails, data: Any) -> tuple[Path, str, str]:
    given = "" if error["type"] == "missing" else repr(error["input"])
    return data_path(error, data), error["type"], given


def merge(base: Any, change: Mapping[str, Any]) -> dict[str, Any]:
    """`change` over `base`, key by key; another optimizer or kind starts from nothing."""
    for tag in ("kind", "name"):
        if tag in change and isinstance(base, Mapping) and change[tag] != base.get(tag):
            return dict(change)
    out = dict(base) if isinstance(base, Mapping) else {}
    for key, value in change.items():
        below = out.get(key)
        out[key] = (
            merge(below, value) if isinstance(value, dict) and isinstance(below, dict) else value
        )
    return out


def _check_baseline(document: Document, rungs: Mapping[str, Any]) -> str:
    names = list(rungs)
    baseline = document.data.get("baseline")
    if isinstance(baseline, str):
        if names and baseline not in names:
            document.complain(
                ("baseline",),
                f"{baseline!r} is not among this ladder's rungs{did_you_mean(baseline, names)}",
            )
        return baseline
    return default_baseline(names)


def default_baseline(names: Sequence[str]) -> str:
    """`strict` where there is one, as the place where everyone starts; else the first."""
    return "strict" if "strict" in names or not names else names[0]


def _order(document: Document, place: str) -> tuple[int, int]:
    line = place.rsplit(":", 1)[-1]
    return (0, int(line)) if line.isdigit() and not place.startswith("--set") else (1, 0)
