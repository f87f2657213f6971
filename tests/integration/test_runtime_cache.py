"""The program cache: memory and directory tier, across processes, with damaged entries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tpu_perf.runtime.device  # noqa: F401 - loads device "tpu"
from tpu_perf.record.events import Tier
from tpu_perf.recorder import Recorder, record_into
from tpu_perf.runtime.program_cache import CACHE

PROGRAM = """
import json, sys, torch
import tpu_perf.runtime.device
from tpu_perf.runtime.program_cache import CACHE
CACHE.use_directory(sys.argv[1])
x = torch.arange(6.0).view(2, 3).to("tpu")
with torch.tpu.set_eager_mode(torch.tpu.EagerMode[sys.argv[2]]):
    y = (x @ x.t()).exp().softmax(-1)
    y.add_(float(sys.argv[3]))
    values = y.cpu().tolist()
print(json.dumps({"values": values, "compiled": CACHE.compiled, "loaded": CACHE.loaded}))
"""


def _run(directory: Path, mode: str = "DEFER_NEVER", addend: float = 1.0) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(directory), mode, str(addend)],
        capture_output=True, text=True, timeout=120, check=True, env=os.environ,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("mode", ["DEFER_NEVER", "DEFER_AND_FUSE"])
def test_a_second_process_compiles_nothing(tmp_path: Path, mode: str) -> None:
    first = _run(tmp_path, mode)
    second = _run(tmp_path, mode)
    assert first["compiled"] > 0
    assert first["loaded"] == 0
    assert second == {"values": first["values"], "compiled": 0, "loaded": first["compiled"]}


def test_numbers_are_arguments_not_part_of_the_program(tmp_path: Path) -> None:
    first, second = _run(tmp_path, addend=1.0), _run(tmp_path, addend=2.5)
    assert second["compiled"] == 0
    assert second["values"][0][0] == pytest.approx(first["values"][0][0] + 1.5)


def test_damaged_entries_are_set_aside_and_rebuilt(tmp_path: Path) -> None:
    first = _run(tmp_path)
    entries = sorted(tmp_path.glob("*.program"))
    entries[0].write_bytes(entries[0].read_bytes()[: entries[0].stat().st_size // 2])
    entries[1].write_bytes(b"something else entirely")
    damaged = bytearray(entries[2].read_bytes())
    damaged[-20] ^= 0xFF
    entries[2].write_bytes(bytes(damaged))
    second = _run(tmp_path)
    assert second["values"] == first["values"]
    assert second["compiled"] == 3
    assert len(list(tmp_path.glob("*.bad"))) == 3
    assert _run(tmp_path)["compiled"] == 0


def test_two_processes_writing_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), "DEFER_NEVER", "1"]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
        for _ in range(2)
    ]
    values = [json.loads(p.communicate(timeout=120)[0])["values"] for p in both]
    assert values[0] == values[1]
    assert _run(tmp_path)["compiled"] == 0


def test_an_unwritable_directory_does_not_stop_the_job(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert _run(blocked / "cache")["compiled"] > 0


def test_every_look_up_is_an_event_and_a_miss_says_what_differed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CACHE, "_seen", {})  # other tests of this process ran erfinv too
    recorder = Recorder()
    with record_into(recorder):
        for columns in (3, 3, 5):
            torch.erfinv(torch.zeros(2, columns, device="tpu"))
    tables = recorder.drain()
    dispatches = tables["dispatch"].to_pylist()
    programs = [d["program"] for d in dispatches if "erfinv" in d["op"]]
    executed = [e for e in tables["execute"].to_pylist() if e["program"] in programs]
    assert [e["tier"] for e in executed] == [Tier.COMPILED, Tier.MEMORY, Tier.COMPILED]
    compiles = [c for c in tables["compile"].to_pylist() if c["program"] in programs]
    assert compiles[0]["differed"] == "first use"
    assert "5" in compiles[1]["differed"]
    assert "test_runtime_cache.py" in compiles[0]["source"]


def test_statistics_have_torchtpus_form() -> None:
    x = torch.ones(3, device="tpu")
    _ = x + x
    before = torch.tpu._get_cache_stats()  # type: ignore[attr-defined]
    _ = x + x
    after = torch.tpu._get_cache_stats()  # type: ignore[attr-defined]
    assert after["num_cache_reqs"] == before["num_cache_reqs"] + 1
    assert after["num_cache_hits"] == before["num_cache_hits"] + 1
    entry = next(iter(after["per_entry_stats"].values()))
    assert {"compilation_duration", "last_read", "read_count"} <= set(entry)


def test_clearing_the_cache_looks_programs_up_again() -> None:
    x = torch.ones(7, device="tpu")
    _ = x.tanh()
    before = CACHE.misses
    _ = x.tanh()
    assert CACHE.misses == before
    torch.tpu._clear_cache()  # type: ignore[attr-defined]
    assert x.tanh().cpu()[0].item() == pytest.approx(0.76159, rel=1e-4)
    assert CACHE.misses > before
