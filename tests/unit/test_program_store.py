"""Entries of the program cache on disk: found again, attacked, evicted, and told apart."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from tpu_perf.program_store.components import COMPONENTS, OF_PROGRAM, Components, inputs_text
from tpu_perf.program_store.entry import Entry, Header, make_entry
from tpu_perf.program_store.store import BAD, ENTRY, REASON, ProgramStore


def _texts(**changes: str) -> dict[str, str]:
    return {**{name: f"some {name}" for name in COMPONENTS}, "inputs": "float32[8,128]", **changes}


def _entry(name: str = "add", executable: bytes = b"code" * 100, **changes: str) -> Entry:
    header = Header(name, "op", Components.of_texts(_texts(**changes)), [((8, 128), "float32")], 5)
    return make_entry(header, b"stablehlo", executable)


@pytest.fixture(params=["directory", "url"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "directory":
        yield str(tmp_path / "programs")
        return
    yield f"memory://programs-{tmp_path.name}"
    fsspec.filesystem("memory").store.clear()


def test_what_was_written_is_read_by_another_store(place: str) -> None:
    entry = _entry()
    ProgramStore(place).write(entry)
    found = ProgramStore(place).read(entry.header.key)
    assert found is not None
    assert (found.executable, found.stablehlo) == (entry.executable, entry.stablehlo)
    assert found.header.outputs == [((8, 128), "float32")]
    assert ProgramStore(place).read("0" * 64) is None


def _truncated(blob: bytes) -> bytes:
    return blob[: len(blob) // 2]


def _zeroed(blob: bytes) -> bytes:
    return bytes(len(blob))


def _flipped(blob: bytes) -> bytes:
    return blob[:-20] + bytes([blob[-20] ^ 1]) + blob[-19:]


def _foreign(blob: bytes) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + blob


def _emptied(blob: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("attack", [_truncated, _zeroed, _flipped, _foreign, _emptied])
def test_a_bad_entry_is_set_aside_and_can_be_written_again(attack: object, tmp_path: Path) -> None:
    assert callable(attack)
    entry = _entry()
    store = ProgramStore(tmp_path)
    store.write(entry)
    file = tmp_path / (entry.header.key + ENTRY)
    file.write_bytes(attack(file.read_bytes()))
    assert store.read(entry.header.key) is None
    assert not file.exists()
    assert (tmp_path / (entry.header.key + BAD)).exists()
    assert (tmp_path / (entry.header.key + REASON)).read_text().strip()
    store.write(entry)
    assert store.read(entry.header.key) is not None


def test_an_entry_under_the_wrong_name_is_not_taken(tmp_path: Path) -> None:
    store, entry, other = ProgramStore(tmp_path), _entry(), _entry(jax="another")
    store.write(entry)
    os.rename(tmp_path / (entry.header.key + ENTRY), tmp_path / (other.header.key + ENTRY))
    assert store.read(other.header.key) is None


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_miss_names_the_component_that_differs(component: str, place: str) -> None:
    store = ProgramStore(place)
    store.write(_entry())
    changed = "float32[8,256]" if component == "inputs" else "another"
    wanted = Components.of_texts(_texts(**{component: changed}))
    assert store.read(wanted.key) is None
    known = ProgramStore(place).nearest("add", wanted)
    assert known is not None
    said = store.explain(known, wanted)
    assert COMPONENTS[component].split()[0].rstrip("s") in said
    if component == "inputs":
        assert "[8,128]" in said.replace(" ", "")
        assert "[8,256]" in said.replace(" ", "")


def test_every_component_of_a_program_makes_another_key() -> None:
    plain = Components.of_texts(_texts())
    keys = {Components.of_texts(_texts(**{name: "another"})).key for name in COMPONENTS}
    assert len(keys | {plain.key}) == len(COMPONENTS) + 1
    assert set(OF_PROGRAM) < set(COMPONENTS)
    assert inputs_text([((8, 128), "float32"), ((), "int64")]) == "float32[8,128]\nint64[]"


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    entries = [_entry(executable=os.urandom(20_000), jax=str(i)) for i in range(4)]
    store = ProgramStore(tmp_path, max_bytes=70_000)
    for age, entry in zip((400, 300, 200), entries, strict=False):
        store.write(entry)
        file = tmp_path / (entry.header.key + ENTRY)
        os.utime(file, (file.stat().st_mtime - age * 3600,) * 2)
    assert store.read(entries[0].header.key) is not None  # used again: no longer the oldest
    store.write(entries[3])
    left = [ProgramStore(tmp_path).read(e.header.key) is not None for e in entries]
    assert left == [True, False, True, True] or left == [True, False, False, True]
    assert store.evicted >= 1


def test_a_place_that_cannot_be_written_costs_only_the_caching(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    store = ProgramStore(blocked / "programs")
    assert store.disabled
    store.write(_entry())
    assert store.read(_entry().header.key) is None
