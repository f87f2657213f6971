"""`tpu-perf export`: runs, whole ladders, and what it says to wrong requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.stored_captures import write_capture
from tests.stored_ladders import write_ladder_of
from tpu_perf.cli.main import main


def two_rungs(directory: Path) -> Path:
    write_ladder_of(directory, ["strict", "whole_step"])
    for name in ("strict", "whole_step"):
        write_capture(directory / "rungs" / name)
    return directory


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_capture(tmp_path / "strict")
    code, out, _ = run(capsys, "export", str(directory), "--format", "xprof", "--json")
    assert code == 0
    document = json.loads(out)
    (only,) = document["exports"]
    assert only["of"] == "strict"
    (file,) = map(Path, only["files"])
    assert file.is_file()
    assert file.is_relative_to(directory / "exports" / "xprof" / "plugins" / "profile")
    assert any("not a TPU" in note or "made on 'cpu'" in note for note in only["notes"])


def test_ladder_with_run_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ladder = two_rungs(tmp_path / "ladder")
    out_dir = tmp_path / "out"
    code, out, _ = run(
        capsys, "export", str(ladder), "--format", "xprof", "--out", str(out_dir), "--json"
    )
    assert code == 0
    exports = {entry["of"]: entry["files"] for entry in json.loads(out)["exports"]}
    assert set(exports) == {"strict", "whole_step"}
    runs = [path.name for path in (out_dir / "plugins" / "profile").iterdir()]
    assert len(runs) == 2  # one server shows both


def test_ladder_with_ladder_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ladder = two_rungs(tmp_path / "ladder")
    out_dir = tmp_path / "out"
    code, _, _ = run(capsys, "export", str(ladder), "--format", "csv", "--out", str(out_dir))
    assert code == 0
    assert (out_dir / "metrics.csv").read_text().startswith("rung,status,metric")
    assert not (ladder / "metrics.csv").exists()


def test_wrong_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_capture(tmp_path / "strict")
    code, _, err = run(capsys, "export", str(directory), "--format", "vhs")
    assert code == 2
    assert "unknown format 'vhs' for a run" in err
    assert "xprof" in err
    code, _, err = run(capsys, "export", str(tmp_path / "nowhere"), "--format", "xprof")
    assert code == 2
    assert "does not exist" in err
    assert not (tmp_path / "nowhere").exists()
