"""`tpu-perf cache stats | ls | clear | verify`: programs kept on disk; needs no torch or jax."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from tpu_perf.errors import EnvironmentProblem, ExitCode
from tpu_perf.program_store.entry import EntryFault, Header, read_entry
from tpu_perf.program_store.places import default_directory, parse_bytes
from tpu_perf.program_store.storage import Storage, StoredFile, age_s, storage_at
from tpu_perf.program_store.store import BAD, ENTRY, REASON, ProgramStore, evict, header_of

app = typer.Typer(help="Look at and tidy the cache of compiled programs.", no_args_is_help=True)

Dir = Annotated[
    str | None, typer.Option("--dir", help="A directory or fsspec URL.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
_DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class _Found:
    """An entry's file, and its header or why it has none."""

    file: StoredFile
    header: Header | None
    fault: str | None

    @property
    def key(self) -> str:
        return self.file.name.removesuffix(ENTRY)

    def as_json(self) -> dict[str, Any]:
        header, age = self.header, age_s(self.file)
        texts = {} if header is None else header.components.texts
        return {
            "key": self.key,
            "name": None if header is None else header.name,
            "kind": None if header is None else header.kind,
            "bytes": self.file.size_bytes,
            "last_used_age_s": None if age is None else round(age),
            "compile_s": None if header is None else header.compile_ns / 1e9,
            "versions": {n: texts[n] for n in ("jax", "jaxlib", "torch") if n in texts},
            "fault": self.fault,
        }


def _storage(location: str | None) -> Storage:
    storage = storage_at(location or default_directory())
    try:
        storage.files()
    except OSError as error:
        raise EnvironmentProblem(
            f"the program cache in {storage.location} cannot be read: {error}",
            hint="name another with --dir",
        ) from None
    return storage


def _entries(storage: Storage) -> list[_Found]:
    found = []
    for file in storage.files():
        if file.name.endswith(ENTRY):
            try:
                found.append(_Found(file, header_of(storage, file.name, file.size_bytes), None))
            except (EntryFault, OSError) as error:
                found.append(_Found(file, None, str(error)))
    return found


@app.command()
def stats(location: Dir = None, as_json: Json = False) -> None:
    """Entries and bytes, by kind of program and by versions."""
    storage = _storage(location)
    entries = _entries(storage)
    files = storage.files()
    kinds: Counter[str] = Counter()
    kind_bytes: Counter[str] = Counter()
    versions: Counter[str] = Counter()
    for entry in entries:
        kind = entry.header.kind if entry.header else "unreadable"
        kinds[kind] += 1
        kind_bytes[kind] += entry.file.size_bytes
        if entry.header:
            texts = entry.header.components.texts
            versions[", ".join(texts.get(n, "unknown") for n in ("jaxlib", "torch"))] += 1
    ages = [a for e in entries if (a := age_s(e.file)) is not None]
    document = {
        "schema_version": 1,
        "location": storage.location,
        "entries": len(entries),
        "bytes": sum(e.file.size_bytes for e in entries),
        "set_aside": sum(f.name.endswith(BAD) for f in files),
        "by_kind": {k: {"entries": n, "bytes": kind_bytes[k]} for k, n in kinds.most_common()},
        "by_version": dict(versions.most_common()),
        "compile_s": sum(e.header.compile_ns for e in entries if e.header) / 1e9,
        "oldest_use_s": round(max(ages)) if ages else None,
    }
    if as_json:
        print(json.dumps(document, indent=1))
        return
    print(f"program cache in {storage.location}")
    print(f"  {len(entries)} entries, {_size(int(str(document['bytes'])))}; they took "
          f"{document['compile_s']:.1f} s to compile")  # fmt: skip
    for kind, count in kinds.most_common():
        print(f"  {kind:<12} {count:>6}  {_size(kind_bytes[kind]):>10}")
    for version, count in versions.most_common():
        print(f"  made with {version}: {count}")
    if document["set_aside"]:
        print(f"  {document['set_aside']} set aside as damaged (tpu-perf cache clear removes them)")


@app.command("ls")
def ls(
    location: Dir = None,
    top: Annotated[int | None, typer.Option("--top", min=1, help="Only so many.")] = None,
    sort: Annotated[str, typer.Option("--sort", help="size, age, name or kind.")] = "size",
    as_json: Json = False,
) -> None:
    """The entries, largest first."""
    orders: dict[str, Any] = {
        "size": lambda e: -e.file.size_bytes,
        "age": lambda e: -(age_s(e.file) or 0.0),
        "name": lambda e: e.header.name if e.header else "",
        "kind": lambda e: e.header.kind if e.header else "",
    }
    if sort not in orders:
        raise typer.BadParameter(f"{sort!r} is none of {', '.join(orders)}", param_hint="--sort")
    entries = sorted(_entries(_storage(location)), key=orders[sort])[:top]
    if as_json:
        print(
            json.dumps({"schema_version": 1, "entries": [e.as_json() for e in entries]}, indent=1)
        )
        return
    for entry in entries:
        said = entry.header.name if entry.header else entry.fault or "unreadable"
        kind = entry.header.kind if entry.header else "-"
        print(f"{entry.key[:12]}  {kind:<8} {_size(entry.file.size_bytes):>10} "
              f"{_age(entry.file):>8}  {said[:56]}")  # fmt: skip


@app.command()
def clear(
    location: Dir = None,
    older_than: Annotated[
        float | None, typer.Option("--older-than", min=0, help="Days since the last use.")
    ] = None,
    keep_bytes: Annotated[
        str | None, typer.Option("--keep-bytes", help="Keep the latest used, e.g. 2G.")
    ] = None,
    foreign: Annotated[
        bool, typer.Option("--foreign", help="Only what no job of this version can read.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete entries: all of them, or those that the options name."""
    storage = _storage(location)
    if keep_bytes is not None:
        limit = parse_bytes(keep_bytes)
        _ask(yes, f"delete all but the latest {_size(limit)} in {storage.location}")
        gone = evict(storage, limit).files
    else:
        bad = [f for f in storage.files() if f.name.endswith((BAD, REASON))]
        entries = _entries(storage)
        if foreign:
            chosen = [e.file for e in entries if e.header is None]
        elif older_than is not None:
            chosen = [e.file for e in entries if (age_s(e.file) or 0.0) > older_than * _DAY_S]
        else:
            chosen = [e.file for e in entries]
        gone = [*chosen, *bad]
        _ask(yes, f"delete {len(chosen)} entries in {storage.location}")
        for file in gone:
            storage.delete(file.name)
    count = sum(f.name.endswith(ENTRY) for f in gone)
    print(f"deleted {count} entries, {_size(sum(f.size_bytes for f in gone))}")


@app.command()
def verify(
    location: Dir = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Found faults do not fail the command.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Read every entry, and set bad ones aside. Exit code 4 if any was found."""
    storage = _storage(location)
    store = ProgramStore(storage.location)
    checked = 0
    faults: dict[str, str] = {}
    for file in storage.files():
        if not file.name.endswith(ENTRY):
            continue
        checked += 1
        key = file.name.removesuffix(ENTRY)
        try:
            read_entry(storage.read(file.name)[0], key)
        except EntryFault as error:
            faults[key] = str(error)
            store.set_aside(key, str(error))
        except OSError as error:
            faults[key] = str(error)
    if as_json:
        print(json.dumps({"schema_version": 1, "checked": checked, "faults": faults}, indent=1))
    else:
        print(f"{checked} entries read, {len(faults)} bad")
        for key, why in faults.items():
            print(f"  {key[:16]} set aside: {why}")
    return ExitCode.OK if repair or not faults else ExitCode.ENVIRONMENT


def _ask(yes: bool, what: str) -> None:
    if not yes:
        typer.confirm(f"{what}?", abort=True)


def _age(file: StoredFile) -> str:
    age = age_s(file)
    if age is None:
        return "unknown"
    return f"{age / _DAY_S:.1f} d" if age >= _DAY_S else f"{age / 3600:.1f} h"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")
