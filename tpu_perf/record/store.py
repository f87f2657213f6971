"""Run and ladder directories on disk: written whole or not at all, old schemas still load."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tpu_perf.errors import StoredRunError
from tpu_perf.record.details import DETAIL_TABLES
from tpu_perf.record.events import (
    EVENT_KINDS,
    PROGRAM_COLUMNS,
    STEP_COLUMNS,
    ColumnType,
)
from tpu_perf.record.ladder import LADDER_SCHEMA_VERSION, Ladder
from tpu_perf.record.run import RUN_SCHEMA_VERSION, Run

PARTIAL_SUFFIX = ".partial"
RUN_FILE = "run.json"
LADDER_FILE = "ladder.json"

#: From schema version N, a function that turns run.json of version N into N + 1.
RUN_MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
LADDER_MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}

_ARROW_TYPES: dict[ColumnType, pa.DataType] = {
    "int64": pa.int64(),
    "int32": pa.int32(),
    "int8": pa.int8(),
    "float64": pa.float64(),
    "string": pa.dictionary(pa.int32(), pa.string()),
}
_PANDAS_TYPES: dict[ColumnType, str] = {
    "int64": "int64",
    "int32": "int32",
    "int8": "int8",
    "float64": "float64",
    "string": "category",
}


def arrow_schema(columns: tuple[tuple[str, ColumnType], ...]) -> pa.Schema:
    """The Parquet schema of a table with these columns."""
    return pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in columns])


def table_of_rows(
    columns: tuple[tuple[str, ColumnType], ...], rows: Sequence[tuple[Any, ...]]
) -> pa.Table:
    """Rows in column order as a table; strings are dictionary-encoded."""
    schema = arrow_schema(columns)
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    arrays = [
        pa.array(column, type=pa.string()).dictionary_encode()
        if kind == "string"
        else pa.array(column, type=field.type)
        for column, (_, kind), field in zip(values, columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON document atomically: readers see the old file or the new one."""
    temporary = path.with_name(path.name + f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def write_table(path: Path, table: pa.Table) -> None:
    """Write a Parquet file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + f".{os.getpid()}.tmp")
    pq.write_table(table, temporary, compression="zstd")
    os.replace(temporary, path)


class RunWriter:
    """Fills a run directory under a temporary name, then renames it.

    The worker writes event parts while it pauses between rounds, so that a worker that dies
    loses at most the round in progress. `finish` (worker) or `seal` (parent, for a dead worker)
    gives the directory its final name.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.partial = directory.with_name(directory.name + PARTIAL_SUFFIX)
        self.partial.mkdir(parents=True, exist_ok=True)
        (self.partial / "events").mkdir(exist_ok=True)
        self._parts = 0

    def write_events(self, tables: Mapping[str, pa.Table]) -> None:
        """Append one part per event kind; empty tables are not written."""
        for name, table in tables.items():
            if table.num_rows:
                write_table(self.partial / "events" / f"{name}-{self._parts:05d}.parquet", table)
        self._parts += 1

    def write_steps(self, table: pa.Table) -> None:
        write_table(self.partial / "steps.parquet", table)

    def write_programs(self, table: pa.Table) -> None:
        write_table(self.partial / "programs.parquet", table)

    def write_detail(self, name: str, table: pa.Table) -> None:
        """Write one of the tables of `record.details`."""
        assert name in DETAIL_TABLES, name
        write_table(self.partial / f"{name}.parquet", table)

    def finish(self, run: Run) -> Path:
        """Write run.json and give the directory its final name, replacing an older run."""
        write_json(self.partial / RUN_FILE, run.to_json())
        if self.directory.exists():
            shutil.rmtree(self.directory)
        os.rename(self.partial, self.directory)
        return self.directory


def seal_run(directory: Path, run: Run, log_text: str | None = None) -> Path:
    """Turn whatever a dead worker left into a valid run with the given (failed) status."""
    writer = RunWriter(directory)
    if log_text is not None:
        (writer.partial / "log.txt").write_text(log_text, encoding="utf-8")
    return writer.finish(run)


def update_run(directory: Path, run: Run) -> None:
    """Replace run.json of a finished run (metrics are added after all rungs are in)."""
    write_json(directory / RUN_FILE, run.to_json())


def write_ladder(directory: Path, ladder: Ladder) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / LADDER_FILE, ladder.to_json())


def _load_document(
    path: Path,
    current: int,
    migrations: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]],
) -> dict[str, Any]:
    document: Any
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoredRunError(f"{path} does not exist", hint="is this a run directory?") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise StoredRunError(f"{path} cannot be read: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("schema_version"), int):
        raise StoredRunError(f"{path} is not one of our documents: it has no schema_version")
    while document["schema_version"] < current:
        version = document["schema_version"]
        if version not in migrations:
            raise StoredRunError(f"{path} has schema version {version}, which cannot be read")
        document = migrations[version](document)
    if document["schema_version"] > current:
        raise StoredRunError(
            f"{path} has schema version {document['schema_version']}, newer than {current}",
            hint="upgrade tpu-perf to read it",
        )
    found: dict[str, Any] = document
    return found


@dataclass(frozen=True, slots=True)
class StoredTables:
    """The tables of a run directory, finished or not; they load on demand as pandas frames."""

    directory: Path

    def events(self, kind: str) -> pd.DataFrame:
        """All events of one kind, sorted as written; an empty frame if there were none."""
        columns = EVENT_KINDS[kind].columns
        paths = sorted((self.directory / "events").glob(f"{kind}-*.parquet"))
        return _read_tables(paths, columns)

    def steps(self) -> pd.DataFrame:
        return _read_tables(_existing(self.directory / "steps.parquet"), STEP_COLUMNS)

    def programs(self) -> pd.DataFrame:
        return _read_tables(_existing(self.directory / "programs.parquet"), PROGRAM_COLUMNS)

    def detail(self, name: str) -> pd.DataFrame:
        """A table of `record.details`; empty if the run was recorded without."""
        path = self.directory / f"{name}.parquet"
        return _read_tables(_existing(path), DETAIL_TABLES[name])


@dataclass(frozen=True, slots=True)
class StoredRun(StoredTables):
    """A run directory opened for reading."""

    run: Run


def _existing(path: Path) -> list[Path]:
    return [path] if path.exists() else []


def _read_tables(paths: list[Path], columns: tuple[tuple[str, ColumnType], ...]) -> pd.DataFrame:
    if not paths:
        return pd.DataFrame({name: pd.Series(dtype=_PANDAS_TYPES[kind]) for name, kind in columns})
    try:
        tables = [pq.read_table(path) for path in paths]
    except (OSError, pa.ArrowException) as error:
        raise StoredRunError(f"{paths[0].parent} has a damaged table: {error}") from None
    tables = [_completed(table, columns) for table in tables]
    frame: pd.DataFrame = pa.concat_tables(tables).unify_dictionaries().to_pandas()
    return frame


def _completed(table: pa.Table, columns: tuple[tuple[str, ColumnType], ...]) -> pa.Table:
    """The table with columns that its schema version did not have yet, filled with "unknown"."""
    for name, kind in columns:
        if name not in table.column_names:
            unknown = pa.nulls(len(table), _ARROW_TYPES[kind])
            if kind in ("int64", "int32", "int8"):
                unknown = pa.array([-1] * len(table), _ARROW_TYPES[kind])
            table = table.append_column(pa.field(name, _ARROW_TYPES[kind]), unknown)
    return table.select([name for name, _ in columns])


def load_run(directory: Path) -> StoredRun:
    """Open a run directory. Raises StoredRunError if it is missing, damaged or too new."""
    document = _load_document(directory / RUN_FILE, RUN_SCHEMA_VERSION, RUN_MIGRATIONS)
    try:
        run = Run.from_json(document)
    except (KeyError, TypeError, ValueError) as error:
        raise StoredRunError(f"{directory / RUN_FILE} is damaged: {error!r}") from None
    return StoredRun(directory, run)


def load_ladder(directory: Path) -> Ladder:
    """Open a ladder directory's ladder.json. Raises StoredRunError as `load_run` does."""
    document = _load_document(directory / LADDER_FILE, LADDER_SCHEMA_VERSION, LADDER_MIGRATIONS)
    try:
        return Ladder.from_json(document)
    except (KeyError, TypeError, ValueError) as error:
        raise StoredRunError(f"{directory / LADDER_FILE} is damaged: {error!r}") from None
