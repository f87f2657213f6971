"""`tpu-perf cache` on a directory of entries, as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.unit.test_program_store import _entry
from tpu_perf.program_store.store import BAD, ENTRY, ProgramStore


def _cache(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tpu_perf", "cache", *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def _fill(directory: Path) -> list[str]:
    store = ProgramStore(directory)
    entries = [
        _entry("add"),
        _entry("mul", executable=os.urandom(5000), program="mul"),
        _entry("add", jax="another"),
    ]
    for entry in entries:
        store.write(entry)
    return [entry.header.key for entry in entries]


def test_stats_and_ls_agree_with_the_files(tmp_path: Path) -> None:
    keys = _fill(tmp_path)
    stats = json.loads(_cache("stats", "--dir", str(tmp_path), "--json").stdout)
    sizes = {k: (tmp_path / (k + ENTRY)).stat().st_size for k in keys}
    assert (stats["entries"], stats["bytes"]) == (3, sum(sizes.values()))
    assert stats["by_kind"]["op"]["entries"] == 3
    listed = json.loads(_cache("ls", "--dir", str(tmp_path), "--json").stdout)["entries"]
    assert {e["key"]: e["bytes"] for e in listed} == sizes
    assert [e["bytes"] for e in listed] == sorted(sizes.values(), reverse=True)
    assert "add" in _cache("ls", "--dir", str(tmp_path), "--top", "2").stdout


def test_verify_sets_aside_what_is_damaged(tmp_path: Path) -> None:
    keys = _fill(tmp_path)
    file = tmp_path / (keys[1] + ENTRY)
    file.write_bytes(file.read_bytes()[:-100])
    done = _cache("verify", "--dir", str(tmp_path), "--json")
    assert done.returncode == 4
    assert list(json.loads(done.stdout)["faults"]) == [keys[1]]
    assert not file.exists()
    assert (tmp_path / (keys[1] + BAD)).exists()
    again = _cache("verify", "--dir", str(tmp_path))
    assert again.returncode == 0
    assert "2 entries read, 0 bad" in again.stdout


def test_clear_deletes_what_it_was_told_to(tmp_path: Path) -> None:
    keys = _fill(tmp_path)
    foreign = tmp_path / ("f" * 64 + ENTRY)
    foreign.write_bytes(b"not ours")
    assert _cache("clear", "--dir", str(tmp_path), "--foreign", "--yes").returncode == 0
    assert not foreign.exists()
    assert all((tmp_path / (k + ENTRY)).exists() for k in keys)
    asked = _cache("clear", "--dir", str(tmp_path))
    assert asked.returncode != 0  # nobody answered
    assert all((tmp_path / (k + ENTRY)).exists() for k in keys)
    assert "deleted 3 entries" in _cache("clear", "--dir", str(tmp_path), "--yes").stdout
    assert not list(tmp_path.glob(f"*{ENTRY}"))


def test_a_place_that_cannot_be_reached_is_said_plainly() -> None:
    done = _cache("stats", "--dir", "nosuchprotocol://bucket/place")
    assert done.returncode == 4
    assert "Traceback" not in done.stderr
    assert "nosuchprotocol" in done.stderr
