"""`tpu-perf analyze`: every grouping of a run whose figures are known on paper, and its JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.stored_ladders import two_rungs
from tests.stored_runs import HOSTILE, write_detailed_run
from tpu_perf.cli.main import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_detailed_run(tmp_path_factory.mktemp("runs") / "run").directory


def analyze(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["analyze", *arguments])
    out, err = capsys.readouterr()
    assert int(ended.value.code or 0) == code, err
    return out, err


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(analyze(capsys, *arguments, "--json")[0])
    return found


US = 1e-6
#: Grouping -> label -> (dispatches, seconds in them less those nested in them). The step has three
#: mm of 50, 50 and 100 us (a t of 40 us inside the last), a softmax of 30, an add_ of 60 and a
#: relu of 10; lines 11 (mm and its gradient), 12, 13, and 30 of the optimizer.
HOST: dict[str, dict[str, tuple[int, float]]] = {
    "op": {"mm": (3, 160), "add_": (1, 60), "t": (1, 40), "softmax": (1, 30), "relu": (1, 10)},
    "category": {
        "matmul": (3, 160), "elementwise": (2, 70), "view": (1, 40), "softmax and loss": (1, 30),
    },
    "phase": {"forward": (4, 140), "backward": (2, 100), "optimizer": (1, 60)},
    "line": {
        "model.py:11 forward": (4, 200), "train.py:30 step": (1, 60),
        "model.py:12 forward": (1, 30), "model.py:13 forward": (1, 10),
    },
    "module": {
        "model.layers.3.mlp (Mlp)": (4, 200), "(outside any module)": (1, 60),
        "model.layers.3.attn (Attn)": (1, 30), f"{HOSTILE} (Odd)": (1, 10),
    },
    "program": {"0 mm": (3, 160), "1 update": (1, 60), "(no program)": (3, 80)},
}  # fmt: skip


@pytest.mark.parametrize("by", HOST)
def test_groups_add_up_by_hand(run: Path, capsys: pytest.CaptureFixture[str], by: str) -> None:
    table = document(capsys, str(run), "--by", by)["table"]
    assert table["by"] == by
    found = {row["label"]: (row["calls"]["value"], row["host_time"]["value"])
             for row in table["rows"]}  # fmt: skip
    assert found == {
        label: (calls, pytest.approx(us * US)) for label, (calls, us) in HOST[by].items()
    }
    total = table["total"]
    assert (total["calls"]["value"], table["rows_left_out"]) == (7, 0)
    assert total["host_time"]["value"] == pytest.approx(300 * US)
    for measure in ("model_flops", "device_time", "boundary_bytes"):
        parts = [row[measure]["value"] for row in table["rows"]]
        assert sum(parts) == pytest.approx(total[measure]["value"]), measure


def test_flops_bytes_and_device_time(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """mm of 4 x 8 by 8 x 2 is 128 FLOPs by formula. Its program: 2 MFLOP and 1,500 bytes in XLA's
    words, run three times a step, and 20 us on the device each time."""
    found = document(capsys, str(run))
    (mm,) = (row for row in found["table"]["rows"] if row["label"] == "mm")
    call = 2 * 4 * 8 * 2
    assert mm["recomputed"]["value"] == 1  # in the backward pass, with a stack of its own
    assert mm["model_flops"]["value"] == 2 * call
    assert mm["hardware_flops"]["value"] == 3 * 2e6
    assert mm["boundary_bytes"]["value"] == 3 * 1_500
    assert mm["accessed_bytes"]["value"] == 3 * 4_000
    assert mm["device_time"]["value"] == pytest.approx(60 * US)
    assert mm["intensity"]["value"] == 3 * 2e6 / (3 * 4_000)
    (add,) = (row for row in found["table"]["rows"] if row["label"] == "add_")
    assert add["accessed_bytes"]["value"] is None
    assert add["accessed_bytes"]["reason"]
    assert found["table"]["total"]["accessed_bytes"]["value"] is None
    assert found["step"]["step_time"]["value"] == pytest.approx(900 * US)
    assert found["step"]["step_time"]["provenance"] == "measured"
    assert found["step"]["model_flops"]["provenance"] == "derived"


def test_idle_memory_recompiles_and_syncs(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, str(run))
    idle = found["idle"]
    causes = sum(cause["value"] for cause in idle["causes"].values())
    assert idle["busy"]["value"] == pytest.approx(80 * US)  # 4 spans of two instructions, 10 us
    assert causes + idle["busy"]["value"] == pytest.approx(idle["step_time"]["value"])
    assert found["memory"]["tensors"]["value"] == 2_000
    assert {group["group"]: group["nbytes"] for group in found["memory"]["groups"]} == {
        "temporary": 1_000,
        "before recording": 1_000,
    }
    assert [(row["line"], row["differed"], row["count"], row["late"])
            for row in found["recompiles"]] == [("model.py:11", "shape", 2, 0)]  # fmt: skip
    assert found["host_syncs"] == []  # the only wait is the fence's
    assert any("causal counted as half" in note for note in found["notes"])
    full = document(capsys, str(run), "--attention", "full")
    assert any("causal counted in full" in note for note in full["notes"])


def test_top_cuts_the_table_and_says_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = document(capsys, str(run), "--top", "2")["table"]
    assert [row["label"] for row in table["rows"]] == ["mm", "add_"]
    assert table["rows_left_out"] == 3
    out, _ = analyze(capsys, str(run), "--top", "2", "--memory")
    assert "3 rows more with a larger --top" in out
    assert "relu" not in out
    assert "before recording" in out


def test_the_terminal_says_what_is_not_known(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = analyze(capsys, str(run), "--by", "program")
    assert "900 us m" in out
    assert "not known (-)" in out
    assert "XLA" in out.partition("not known (-)")[2]
    assert all(len(line) <= 100 for line in out.splitlines())


def test_a_rung_of_a_ladder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ladder = two_rungs(tmp_path / "ladder")
    assert document(capsys, str(ladder), "--rung", "strict")["rung"] == "strict"
    _, err = analyze(capsys, str(ladder), code=2)
    assert "--rung" in err
    _, err = analyze(capsys, str(ladder), "--rung", "nosuch", code=2)
    assert "nosuch" in err


def test_wrong_requests(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    analyze(capsys, str(run), "--by", "colour", code=2)
    analyze(capsys, str(run), "--top", "0", code=2)
    _, err = analyze(capsys, str(tmp_path), code=2)
    assert "does not exist" in err
    empty = write_detailed_run(tmp_path / "empty", {}, status="failed", reason="it broke")
    (empty.directory / "steps.parquet").unlink()
    _, err = analyze(capsys, str(empty.directory), code=2)
    assert "it broke" in err
    assert "Traceback" not in err


def test_neither_torch_nor_jax_is_loaded(run: Path) -> None:
    script = (
        "import sys; from tpu_perf.cli.main import main\n"
        f"try: main(['analyze', {str(run)!r}, '--json'])\n"
        "except SystemExit: pass\n"
        "print({name for name in ('torch', 'jax') if name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr.strip() == "set()"
    json.loads(done.stdout)


def test_a_run_without_details_does_not_call_the_unknown_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which ops a program holds is not known, so an op's FLOPs are not; the step's bytes are."""
    directory = write_detailed_run(tmp_path / "run").directory
    for name in ("program_ops", "sites", "calls"):
        (directory / f"{name}.parquet").unlink()
    found = document(capsys, str(directory))
    (mm,) = (row for row in found["table"]["rows"] if row["label"] == "mm")
    assert mm["calls"]["value"] == 3
    for measure in ("runs", "model_flops", "hardware_flops", "boundary_bytes"):
        assert mm[measure]["value"] is None, measure
        assert "not recorded" in mm[measure]["reason"]
    assert found["table"]["total"]["boundary_bytes"]["value"] == 3 * 1_500 + 1_600
    assert found["table"]["total"]["model_flops"]["value"] is None
    by_program = document(capsys, str(directory), "--by", "program")["table"]["rows"]
    assert {row["label"]: row["boundary_bytes"]["value"] for row in by_program} == {
        "0 mm": 4_500, "1 update": 1_600, "(no program)": 0,
    }  # fmt: skip
