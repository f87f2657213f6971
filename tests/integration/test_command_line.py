"""The command line: exit codes, what goes to stdout and stderr, and never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.ladder_commands import command, run, write_ladder


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["laddr"], "No such command"),
        (["ladder"], "Missing argument"),
        (["ladder", "absent.yaml"], "no such file"),
        (["ladder", "absent.yaml", "--nonsense"], "No such option"),
        (["show", "absent"], "does not exist"),
        (["ladder", "{file}", "--only", "nobody"], "this ladder has no such rung"),
        (["ladder", "{file}", "--resume"], "--resume needs --out"),
        (["ladder", "{file}", "--out", "{file}"], "is a file, not a directory"),
        (["ladder", "{file}", "--resume", "--out", "absent"], "does not exist"),
    ],
)
def test_wrong_use_is_told_with_code_2(tmp_path: Path, arguments: list[str], words: str) -> None:
    file = write_ladder(tmp_path, "cpu_eager")
    done = run(*(argument.format(file=file) for argument in arguments))
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_the_schema_is_the_only_thing_on_stdout() -> None:
    done = run("schema")
    assert done.returncode == 0
    assert json.loads(done.stdout)["title"] == "tpu_perf ladder"


def test_doctor_finds_what_is_wrong(tmp_path: Path) -> None:
    fine = run("doctor", "--json")
    verdicts = {row["name"]: row["verdict"] for row in json.loads(fine.stdout)["checks"]}
    assert fine.returncode == (4 if "fail" in verdicts.values() else 0)
    assert verdicts["python"] == verdicts["torch"] == "ok"
    (tmp_path / "cache").write_text("a file where a directory should be")
    environment = {
        **os.environ,
        "PATH": str(tmp_path),
        "CXX": "no-such-compiler",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        command("doctor", "--json"), capture_output=True, text=True, env=environment, check=False
    )
    rows = {row["name"]: row for row in json.loads(done.stdout)["checks"]}
    assert rows["C++ compiler"]["verdict"] == "warn"
    assert "cpu_inductor will be skipped" in rows["C++ compiler"]["finding"]
    assert rows["program cache"]["verdict"] == "warn"


def test_inductor_without_a_compiler_is_skipped_and_that_is_no_failure(tmp_path: Path) -> None:
    file = write_ladder(tmp_path, "cpu_eager", "cpu_inductor")
    done = subprocess.run(
        command("ladder", file, "--out", tmp_path / "out", "--json"),
        capture_output=True,
        text=True,
        env={**os.environ, "CXX": "no-such-compiler"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)["rungs"]}
    assert rows["cpu_inductor"]["status"] == "skipped"
    assert "needs a C++ compiler" in rows["cpu_inductor"]["reason"]


def test_show_loads_neither_torch_nor_jax(tmp_path: Path) -> None:
    code = """
import sys
from tpu_perf.cli.main import main
try:
    main(["show", sys.argv[1]])
except SystemExit as end:
    assert end.code == 2
loaded = {"torch", "jax", "jaxlib", "transformers", "libtpu"} & set(sys.modules)
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True)


def test_an_unexpected_error_is_a_short_message(tmp_path: Path) -> None:
    code = """
import sys
import tpu_perf.cli.main as cli
def broken():
    raise RuntimeError("something unforeseen")
cli.app.command("broken")(broken)
cli.main(["broken"])
"""
    arguments = [sys.executable, "-c", code]
    quiet = subprocess.run(
        arguments,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert quiet.returncode == 4
    assert "unexpected RuntimeError: something unforeseen" in quiet.stderr
    assert "Traceback" not in quiet.stderr
    assert "something unforeseen" in next(tmp_path.glob("tpu-perf-*.log")).read_text()
    loud = subprocess.run(
        arguments,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TPU_PERF_DEBUG": "1"},
    )
    assert "Traceback" in loud.stderr
