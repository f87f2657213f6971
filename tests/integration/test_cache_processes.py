"""The program cache between real processes: shared, killed, attacked, read-only, full, limited."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tpu_perf.program_store.entry import Header, make_entry, read_entry
from tpu_perf.program_store.locks import FileLock
from tpu_perf.program_store.store import BAD, ENTRY, REASON

#: argv: what to do before compiling. Says "ready" and waits for a line, so that several begin
#: together; with "hang" says "compiling" when it holds the lock, and never ends.
PROGRAM = """
import json, sys, time, torch
import tpu_perf.runtime.device
from tpu_perf.runtime import jax_private
from tpu_perf.runtime.program_cache import CACHE
if "hang" in sys.argv:
    def lower(*args):
        print("compiling", flush=True)
        time.sleep(600)
    jax_private.lower = lower
print("ready", flush=True)
sys.stdin.readline()
x = torch.arange(6.0).view(2, 3).to("tpu")
y = (x @ x.t()).exp().softmax(-1)
for _ in range(2):
    y = (y @ y).tanh() + y.sin()
values = y.cpu().tolist()
tiers = CACHE.tiers
print(json.dumps({"values": values, "compiled": CACHE.compiled, "loaded": CACHE.loaded,
                  "waited": tiers.waited, "notes": tiers.notes() or ""}))
"""
HOST, HOST_ROOT = "TORCH_TPU_TIER2_COMPILATION_CACHE", "TORCH_TPU_TIER2_COMPILATION_CACHE_ROOT"
DIRECTORY, LIMIT = "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT", "TPU_PERF_CACHE_MAX_BYTES"
WAIT = "TPU_PERF_HOST_CACHE_WAIT_S"


class Job:
    """A process that computes on the device."""

    def __init__(
        self, *arguments: str, environment: dict[str, str] | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        left_out = (HOST, HOST_ROOT, DIRECTORY, LIMIT, WAIT, "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        clean = {name: value for name, value in os.environ.items() if name not in left_out}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env=clean | (environment or {}),
            preexec_fn=prepare,
        )  # fmt: skip

    def expect(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == word

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def result(self) -> dict[str, Any]:
        """What it printed. Fails if it takes longer than any wait for a lock that ends."""
        out, _ = self.process.communicate(timeout=120)
        assert self.process.returncode == 0
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found


def run(
    environment: dict[str, str] | None = None, prepare: Callable[[], None] | None = None
) -> dict[str, Any]:
    job = Job(environment=environment, prepare=prepare)
    job.go()
    return job.result()


def host(root: Path) -> dict[str, str]:
    return {HOST: "1", HOST_ROOT: str(root)}


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """The job without any cache."""
    return run()


@pytest.fixture(scope="module")
def filled(alone: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory tier with all programs of the job. Tests work on copies."""
    directory = tmp_path_factory.mktemp("filled")
    assert run({DIRECTORY: str(directory)})["compiled"] == alone["compiled"]
    return directory


@pytest.mark.slow
def test_of_two_processes_one_compiles_each_program(tmp_path: Path, alone: dict[str, Any]) -> None:
    jobs = [Job(environment=host(tmp_path)) for _ in range(2)]
    for job in jobs:
        job.expect("ready")
    for job in jobs:
        job.go()
    found = [job.result() for job in jobs]
    assert [one["values"] for one in found] == [alone["values"]] * 2
    assert sum(one["compiled"] for one in found) == alone["compiled"]
    assert sum(one["loaded"] for one in found) == alone["compiled"]
    assert sum(one["waited"] for one in found) >= 1
    assert list((tmp_path / "locks").iterdir()) == []


@pytest.mark.slow
def test_a_process_killed_while_it_compiles_holds_nobody_up(
    tmp_path: Path, alone: dict[str, Any]
) -> None:
    holder, waiting = Job("hang", environment=host(tmp_path)), Job(environment=host(tmp_path))
    holder.go()
    holder.expect("ready")
    holder.expect("compiling")
    waiting.expect("ready")
    waiting.go()
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.process.wait(2.0)
    holder.kill()
    found = waiting.result()
    assert (found["values"], found["compiled"]) == (alone["values"], alone["compiled"])


def test_a_lock_whose_holder_was_killed_is_free(tmp_path: Path) -> None:
    path = tmp_path / "program.lock"
    hold = (
        "import sys, time; from pathlib import Path; "
        "from tpu_perf.program_store.locks import FileLock\n"
        "with FileLock(Path(sys.argv[1]), 1.0) as how: print(how, flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline().strip() == "free"
    with FileLock(path, 0.05) as how:
        assert how == "timeout"
    holder.kill()
    holder.wait()
    assert path.exists()  # its file stays, unlocked
    with FileLock(path, 0.05) as how:
        assert how == "free"
    assert not path.exists()


def test_a_process_that_hangs_is_waited_for_only_so_long(
    tmp_path: Path, alone: dict[str, Any]
) -> None:
    holder = Job("hang", environment=host(tmp_path))
    try:
        holder.go()
        holder.expect("ready")
        holder.expect("compiling")
        found = run(host(tmp_path) | {WAIT: "0.5"})
    finally:
        holder.kill()
    assert (found["values"], found["compiled"]) == (alone["values"], alone["compiled"])
    assert "waited 0.5 s for another process" in found["notes"]


def _truncated(blob: bytes) -> bytes:
    return blob[: len(blob) // 3]


def _zeroed(blob: bytes) -> bytes:
    return bytes(len(blob))


def _other_version(blob: bytes) -> bytes:
    return b"tpuperf9" + blob[8:]


def _foreign(blob: bytes) -> bytes:
    return b"PK\x03\x04 a program of another cache"


def _refused(blob: bytes) -> bytes:
    """Whole and checked, but nothing that PJRT can load."""
    entry = read_entry(blob)
    header: Header = entry.header
    return make_entry(header, entry.stablehlo, b"no executable").blob


@pytest.mark.slow
def test_attacked_entries_are_set_aside_and_rebuilt(
    tmp_path: Path, alone: dict[str, Any], filled: Path
) -> None:
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    attacks = (_truncated, _zeroed, _other_version, _foreign, _refused)
    entries = sorted(tmp_path.glob(f"*{ENTRY}"))[: len(attacks)]
    for attack, entry in zip(attacks, entries, strict=True):
        entry.write_bytes(attack(entry.read_bytes()))
    second = run({DIRECTORY: str(tmp_path)})
    assert second["values"] == alone["values"]
    assert second["compiled"] == len(attacks)
    reasons = [
        entry.with_name(entry.name.removesuffix(ENTRY) + REASON).read_text().partition(":")[0]
        for entry in entries
    ]
    assert reasons == ["truncated", "foreign", "other version", "foreign", "refused"]
    assert len(list(tmp_path.glob(f"*{BAD}"))) == len(attacks)
    whole = {entry.name for entry in filled.glob(f"*{ENTRY}")}
    assert {entry.name for entry in tmp_path.glob(f"*{ENTRY}")} == whole


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[None]:
    """A file system of its own at this folder. Skips the test where that is not allowed."""
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)],
        capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip("only root can mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.slow
def test_a_read_only_directory_is_read_and_stops_nothing(
    tmp_path: Path, alone: dict[str, Any], filled: Path
) -> None:
    place = tmp_path / "disk"
    with small_disk(place, "64m"):
        shutil.copytree(filled, place, dirs_exist_ok=True)
        lost, damaged, *_ = sorted(place.glob(f"*{ENTRY}"))
        lost.unlink()
        damaged.write_bytes(b"tpuperf2")
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        found = run({DIRECTORY: str(place)})
    assert found["values"] == alone["values"]
    assert (found["compiled"], found["loaded"]) == (2, alone["compiled"] - 2)
    assert "directory tier went off" in found["notes"]


@pytest.mark.slow
def test_a_full_disk_costs_only_the_caching(tmp_path: Path, alone: dict[str, Any]) -> None:
    place = tmp_path / "disk"
    with small_disk(place, "48k"):
        found = run({DIRECTORY: str(place)})
        assert "No space left" in found["notes"]
        assert (found["values"], found["compiled"]) == (alone["values"], alone["compiled"])
        again = run({DIRECTORY: str(place)})  # what did get there is whole
        assert again["values"] == alone["values"]
        assert list(place.glob(f"*{BAD}")) == []
        assert list(place.glob(".*.tmp")) == []
        stored = len(list(place.glob(f"*{ENTRY}")))
        assert again["loaded"] >= 1 or stored == 0


def test_files_that_may_not_grow_cost_only_the_caching(
    tmp_path: Path, alone: dict[str, Any]
) -> None:
    """A quota, as root meets none on a disk of its own."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))

    found = run({DIRECTORY: str(tmp_path)}, prepare=limit)
    assert (found["values"], found["compiled"]) == (alone["values"], alone["compiled"])
    assert "File too large" in found["notes"]
    assert list(tmp_path.glob(f"*{ENTRY}")) == []
    assert list(tmp_path.glob(".*.tmp")) == []


@pytest.mark.slow
def test_a_limit_is_kept_by_eviction(tmp_path: Path, alone: dict[str, Any], filled: Path) -> None:
    sizes = [entry.stat().st_size for entry in filled.glob(f"*{ENTRY}")]
    limit = sum(sizes) // 2
    found = run({DIRECTORY: str(tmp_path), LIMIT: str(limit)})
    assert (found["values"], found["compiled"]) == (alone["values"], alone["compiled"])
    left = [entry.stat().st_size for entry in tmp_path.glob(f"*{ENTRY}")]
    assert 0 < sum(left) <= limit
    assert len(left) < len(sizes)


@pytest.mark.slow
def test_a_url_is_shared_between_processes(tmp_path: Path, alone: dict[str, Any]) -> None:
    url = (tmp_path / "bucket").as_uri()
    first, second = (run({DIRECTORY: url}) for _ in range(2))
    assert (first["compiled"], first["loaded"]) == (alone["compiled"], 0)
    assert (second["compiled"], second["loaded"]) == (0, alone["compiled"])
    assert len(list((tmp_path / "bucket").glob(f"*{ENTRY}"))) == alone["compiled"]


def test_a_url_nobody_reaches_costs_only_the_caching(alone: dict[str, Any]) -> None:
    found = run({DIRECTORY: "nosuchprotocol://bucket/programs"})
    assert (found["values"], found["compiled"]) == (alone["values"], alone["compiled"])
    assert "nosuchprotocol" in found["notes"]
