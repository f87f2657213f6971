"""A whole ladder over torch's own CPU backend, checked against torch run by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import torch

from tests.integration.ladder_commands import changed, run, write_ladder
from tpu_perf.record.store import StoredRun, load_ladder, load_run


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    """One ladder with two rungs that work and four that do not."""
    folder = tmp_path_factory.mktemp("ladder")
    file = write_ladder(
        folder,
        "cpu_eager",
        changed("wide", hidden=32),
        changed("breaks", fail_at=6),
        changed("no_room", fail_at=2, how="memory"),
        changed("dies", fail_at=3, how="die"),
        changed("wrong", nonsense=1),
    )
    out = folder / "out"
    done = run("ladder", file, "--out", out, "--json")
    assert done.returncode == 3, done.stderr
    document = json.loads(done.stdout)
    return out, document


def rung(out: Path, name: str) -> StoredRun:
    return load_run(out / "rungs" / name)


def test_every_rung_is_a_row_with_its_reason(ladder: tuple[Path, dict[str, object]]) -> None:
    out, document = ladder
    rows = {row["name"]: row for row in document["rungs"]}  # type: ignore[attr-defined]
    assert {name: row["status"] for name, row in rows.items()} == {
        "cpu_eager": "ok",
        "wide": "ok",
        "breaks": "failed",
        "no_room": "does_not_fit",
        "dies": "failed",
        "wrong": "failed",
    }
    file = (out.parent / "job.py").resolve()
    line = (
        (out.parent / "job.py")
        .read_text()
        .splitlines()
        .index('            raise ValueError("my model broke half-way")')
    )
    assert rows["breaks"]["reason"] == (
        f"ValueError: my model broke half-way ({file}:{line + 1} in loss)"
    )
    assert "no room for the activations" in rows["no_room"]["reason"]
    assert "ended with exit code 7 during" in rows["dies"]["reason"]
    assert "user prints something in step 4" in rows["dies"]["reason"]
    assert "unexpected keyword argument 'nonsense'" in rows["wrong"]["reason"]
    assert document["dir"] == str(out.resolve())
    assert document["baseline"] == "cpu_eager"


def test_steps_are_numbered_fenced_and_in_their_phases(
    ladder: tuple[Path, dict[str, object]],
) -> None:
    steps = rung(ladder[0], "cpu_eager").steps()
    assert steps["step"].tolist() == list(range(len(steps)))
    assert (steps["t_start_ns"] <= steps["t_dispatched_ns"]).all()
    assert (steps["t_dispatched_ns"] <= steps["t_end_ns"]).all()
    assert (steps["t_end_ns"].to_numpy()[:-1] <= steps["t_start_ns"].to_numpy()[1:]).all()
    assert steps["phase"].iloc[0] == "first"
    timed = steps[steps["phase"] == "timed"]
    assert timed.groupby("round").size().tolist() == [4, 4, 4]
    assert steps[steps["phase"] == "bare"].groupby("round").size().tolist() == [2, 2, 2]
    first = steps[steps["round"] >= 0].groupby("round")["phase"].first().tolist()
    assert first == ["timed", "bare", "timed"]


def test_rungs_take_turns(ladder: tuple[Path, dict[str, object]]) -> None:
    stored = load_ladder(ladder[0])
    assert stored.finished_at is not None
    order = [name for name in stored.sampling_order if name in ("cpu_eager", "wide")]
    assert [sorted(order[i : i + 2]) for i in (0, 2, 4)] == [["cpu_eager", "wide"]] * 3
    # Rounds do not overlap in time: the two rungs were never measured at once.
    spans = pd.concat(
        rung(ladder[0], name).steps().query("phase == 'timed'").assign(rung=name)
        for name in ("cpu_eager", "wide")
    ).sort_values("t_start_ns")
    assert (spans["t_end_ns"].to_numpy()[:-1] <= spans["t_start_ns"].to_numpy()[1:]).all()
    assert spans["rung"].iloc[:4].nunique() == 1


def test_losses_are_those_of_torch_run_by_hand(ladder: tuple[Path, dict[str, object]]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    stored = rung(ladder[0], "cpu_eager")
    losses = []
    for index in range(len(stored.steps())):
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(16, 4, generator=generator)
        y = torch.randn(16, 1, generator=generator)
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    assert stored.steps()["loss"].tolist() == pytest.approx(losses, rel=1e-5)
    facts = stored.run.facts
    assert list(facts.losses) == pytest.approx(losses[:4], rel=1e-5)
    assert list(facts.reference_losses) == pytest.approx(losses[:4], rel=1e-5)
    assert len(facts.grad_norms) == len(facts.reference_grad_norms) == 4
    assert facts.parameters == 4 * 8 + 8 + 8 + 1
    # Forward: two products; backward: the weights' gradients, and the second layer's input.
    products = 16 * 4 * 8 + 16 * 8 * 1
    assert facts.model_flops_per_step == 2 * (2 * products + 16 * 8 * 1)


def test_what_the_user_prints_is_in_the_log(ladder: tuple[Path, dict[str, object]]) -> None:
    assert (
        "user prints something in step 1"
        in (ladder[0] / "rungs" / "cpu_eager" / "log.txt").read_text()
    )


def test_a_rung_that_broke_keeps_the_steps_before(
    ladder: tuple[Path, dict[str, object]],
) -> None:
    stored = rung(ladder[0], "breaks")
    assert stored.steps()["step"].tolist() == list(range(6))
    assert len(stored.run.facts.losses) == 4


def test_the_environment_is_noted(ladder: tuple[Path, dict[str, object]]) -> None:
    environment = rung(ladder[0], "cpu_eager").run.environment
    assert environment is not None
    assert environment.versions["torch"] == torch.__version__
    assert environment.device_kind == "cpu"
    assert (environment.memory_bytes or 0) > 0


def test_show_prints_it_again_without_torch_or_jax(
    ladder: tuple[Path, dict[str, object]],
) -> None:
    shown = run("show", ladder[0], "--json")
    assert json.loads(shown.stdout) == ladder[1]
    table = run("show", ladder[0])
    assert table.returncode == 0
    assert "my model broke half-way" in table.stdout
    assert max(len(line) for line in table.stdout.splitlines()) <= 100


def test_resume_runs_only_what_has_no_result(ladder: tuple[Path, dict[str, object]]) -> None:
    out, _ = ladder
    file = out.parent / "tiny.yaml"
    before = {
        name: rung(out, name).steps()["t_start_ns"].tolist() for name in ("cpu_eager", "wide")
    }
    (out.parent / "job.py").write_text(
        (out.parent / "job.py").read_text().replace("os._exit(7)", "pass")
    )
    done = run("ladder", file, "--out", out, "--resume", "--only", "cpu_eager,wide,dies")
    assert done.returncode == 3  # the other rungs are still failed
    assert "dies" in done.stderr
    assert "cpu_eager: ok" not in done.stderr
    assert rung(out, "breaks").run.status == "failed"
    for name, starts in before.items():
        assert rung(out, name).steps()["t_start_ns"].tolist() == starts
    assert any("--resume" in warning for warning in load_ladder(out).warnings)


def test_resume_with_another_configuration_is_refused(
    ladder: tuple[Path, dict[str, object]],
) -> None:
    out, _ = ladder
    arguments = ("ladder", out.parent / "tiny.yaml", "--out", out)
    done = run(*arguments, "--resume", "--set", "seed=5")
    assert done.returncode == 2
    assert "seed was 0, is 5" in done.stderr
    again = run(*arguments)
    assert again.returncode == 2
    assert "already holds a ladder" in again.stderr
