"""DIR: what is found in it, and that nothing outside it is opened, whatever names it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dashboards.directory import Directory
from dashboards.loading import ladder_of, refused
from tests.stored_ladders import two_rungs, warm_timeline, write_ladder_of, write_run
from tpu_perf.errors import StoredRunError


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A run that lies beside DIR."""
    return write_run(tmp_path / "outside/run", warm_timeline(10.0))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "shown").mkdir()
    return tmp_path / "shown"


def test_everything_below_is_found_newest_first(root: Path) -> None:
    two_rungs(root / "a/b/ladder")
    write_run(root / "single", warm_timeline(10.0))
    (root / "half.partial").mkdir()
    for age, name in enumerate(("single/run.json", "half.partial", "a/b/ladder/ladder.json")):
        os.utime(root / name, ns=(0, 10**18 - age))
    found = [(one.path, one.kind) for one in Directory(root).found()]
    assert found == [("single", "run"), ("half.partial", "partial"), ("a/b/ladder", "ladder")]


@pytest.mark.parametrize("path", ["../outside/run", "/etc", "a/../../outside/run", "a\0b"])
def test_paths_outside_are_refused(root: Path, secret: Path, path: str) -> None:
    with pytest.raises(StoredRunError):
        Directory(root).run(path)


def test_an_absolute_path_inside_is_no_way_around(root: Path, secret: Path) -> None:
    with pytest.raises(StoredRunError, match="outside"):
        Directory(root).run(str(secret))


def test_symlinks_that_lead_out_are_refused(root: Path, secret: Path) -> None:
    (root / "link").symlink_to(secret)
    directory = Directory(root)
    with pytest.raises(StoredRunError, match="outside"):
        directory.run("link")
    assert directory.found() == []


@pytest.mark.parametrize("name", ["run.json", "steps.parquet", "events", "events/extra.parquet"])
def test_files_of_a_run_that_lead_out_are_refused(root: Path, secret: Path, name: str) -> None:
    run = write_run(root / "run", warm_timeline(10.0))
    target = secret / name if name != "events/extra.parquet" else secret / "steps.parquet"
    place = run / name
    if place.is_dir():
        place.rename(root / "moved")
    else:
        place.unlink(missing_ok=True)
    place.symlink_to(target)
    with pytest.raises(StoredRunError, match="outside"):
        Directory(root).run("run")


def test_a_link_that_stays_inside_is_read(root: Path) -> None:
    write_run(root / "run", warm_timeline(10.0))
    (root / "again").symlink_to(root / "run")
    assert Directory(root).run("again") == root / "run"


def test_loops_and_pipes_are_refused(root: Path) -> None:
    (root / "loop").symlink_to(root / "loop")
    with pytest.raises(StoredRunError):
        Directory(root).run("loop")
    (root / "pipe").mkdir()
    os.mkfifo(root / "pipe/run.json")  # reading it would last forever
    with pytest.raises(StoredRunError, match="plain file"):
        Directory(root).run("pipe")


def test_a_ladder_that_names_runs_outside_shows_them_as_refused(root: Path, secret: Path) -> None:
    two_rungs(root / "ladder")
    paths = {"strict": "rungs/strict", "up": "../../outside/run", "absolute": str(secret)}
    write_ladder_of(root / "ladder", list(paths), paths=paths)
    directory = Directory(root)
    assert refused(directory, "ladder", "rungs/strict") is None
    opened = ladder_of(directory, "ladder")
    assert [rung.status for rung in opened.rungs] == ["ok", "failed", "failed"]
    assert all("outside" in (rung.reason or "") for rung in opened.rungs[1:])
    assert opened.paths["up"] == opened.paths["absolute"] == ""
