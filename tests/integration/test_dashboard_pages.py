"""Every page of the dashboard in Streamlit's harness: what it says, and what its address says."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.integration.dashboard_pages import page, words
from tests.large_runs import EVENTS_PER_STEP, OPS, write_large_run
from tests.stored_captures import write_capture
from tests.stored_ladders import (
    ENVIRONMENT,
    FACTS,
    Timeline,
    partial_ladder,
    plan,
    two_rungs,
    warm_timeline,
    write_ladder_of,
    write_run,
)
from tpu_perf.analysis.history_index import INDEX_FILE
from tpu_perf.analysis.ladder_metrics import complete
from tpu_perf.record.run import Run

NASTY = "<script>alert(1)</script>[bold]"
RUNG_SECTIONS = (
    "Steps", "Timeline", "Modules and ops", "Roofline", "Memory", "Programs and cache",
)  # fmt: skip


@pytest.fixture(autouse=True)
def the_main_module_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streamlit's harness makes the page's script `__main__`, which processes that later tests
    spawn would then run."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


def value(shown: AppTest, parameter: str) -> str:
    """A query parameter, which the harness holds as text or as a list of one."""
    found = shown.query_params[parameter]
    return found if isinstance(found, str) else found[0]


def test_an_empty_directory_says_what_to_do(tmp_path: Path) -> None:
    assert "tpu-perf ladder" in words(page("ladders", tmp_path))
    assert "fewer than two" in words(page("compare", tmp_path))
    assert "no finished run" in words(page("history", tmp_path))
    for name in ("ladder", "rung"):
        assert "Choose a ladder" in words(page(name, tmp_path))


def test_the_list_is_filtered_by_name_target_and_status(tmp_path: Path) -> None:
    two_rungs(tmp_path / "good")
    partial_ladder(tmp_path / "half")
    tpu = replace(ENVIRONMENT, device_kind="TPU v6 lite")
    run = Run(plan=plan("strict"), environment=tpu, status="ok", facts=FACTS)
    write_run(tmp_path / "capture", warm_timeline(10.0), run=run)

    def listed(**chosen: str) -> set[str]:
        said = words(page("ladders", tmp_path, **chosen))
        return {name for name in ("good", "half", "capture") if f" {name} " in said}

    assert listed() == {"good", "half", "capture"}
    assert listed(name="GOO") == {"good"}
    assert listed(target="TPU v6 lite x 1") == {"capture"}
    assert listed(status="not finished") == {"half"}
    assert listed(status="finished") == {"good", "capture"}
    assert "None of the 3" in words(page("ladders", tmp_path, name="nothing like it"))


def test_a_ladder_in_numbers(tmp_path: Path) -> None:
    two_rungs(tmp_path / "ladder")
    said = words(page("ladder", tmp_path, ladder="ladder"))
    assert "100.0 ms" in said
    assert "40.00 ms" in said
    assert "2.50x" in said  # the speed-up of whole_step
    assert "10.0 %" in said  # MFU: 1e9 FLOP / (0.1 s x 100e9 FLOP/s)
    assert "host-bound" in said
    metrics = words(page("ladder", tmp_path, ladder="ladder", section="All metrics"))
    assert "hbm_boundary_bytes_per_step" in metrics
    numerics = words(page("ladder", tmp_path, ladder="ladder", section="Numerics"))
    assert "4.001" in numerics


def test_a_ladder_of_every_fate_explains_each(tmp_path: Path) -> None:
    partial_ladder(tmp_path / "ladder")
    shown = page("ladder", tmp_path, ladder="ladder")
    said = words(shown)
    for reason in (
        *("interrupted while it was being measured", "no lowering for <b>aten::foo</b>"),
        *("no result after 300 s", "needs 34.0 GiB of 16.0 GiB", "no C++ compiler"),
        *("the ladder ended before this rung", "run.json cannot be read", NASTY),
    ):
        assert reason in said
    assert "interrupted, or is still running" in said
    for section in ("All metrics", "Numerics", "Programs", "Conditions"):
        page("ladder", tmp_path, ladder="ladder", section=section)


@pytest.mark.parametrize(
    ("name", "parameter", "path"),
    [
        ("ladder", "ladder", "../outside"),
        ("rung", "run", "../outside/rungs/strict"),
        ("rung", "run", "/etc"),
        ("rung", "run", "link"),
        ("run", "ladder", "../outside"),
    ],
)
def test_outside_is_refused_on_every_page(
    tmp_path: Path, name: str, parameter: str, path: str
) -> None:
    two_rungs(tmp_path / "outside")
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown/link").symlink_to(tmp_path / "outside/rungs/strict")
    said = words(page(name, tmp_path / "shown", **{parameter: path}))
    assert "outside the directory" in said
    assert "100.0 ms" not in said


@pytest.mark.parametrize("section", RUNG_SECTIONS)
@pytest.mark.parametrize("kind", ["capture", "no details", "no device", "empty", "failed"])
def test_every_section_of_every_kind_of_run(tmp_path: Path, kind: str, section: str) -> None:
    path = tmp_path / "run"
    if kind in ("empty", "failed"):
        status = {"status": "ok"} if kind == "empty" else {"status": "failed", "reason": "it broke"}
        run = Run(plan=plan("run"), environment=None, **status)  # type: ignore[arg-type]
        write_run(path, Timeline(), programs=(), run=run)
    else:
        write_capture(path, details=kind != "no details", device_events=kind != "no device")
    said = words(page("rung", tmp_path, run="run", section=section))
    if kind == "failed":
        assert "it broke" in said


def test_steps_and_roofline_in_numbers(tmp_path: Path) -> None:
    write_capture(tmp_path / "run")
    steps = words(page("rung", tmp_path, run="run"))
    assert "100.0 ms" in steps
    roofline = words(page("rung", tmp_path, run="run", section="Roofline"))
    # dot.1: 1 GFLOP in 20 ms, 4 GB: 50 GFLOP/s at 0.25 FLOP/byte, half of the peak.
    assert "mm 0.250 50.0 GFLOP/s 50.0 %" in " ".join(roofline.split())
    assert "memory bandwidth of device 'cpu' is not known" in roofline


def test_one_op_down_to_its_line(tmp_path: Path) -> None:
    write_capture(tmp_path / "run")
    shown = page("rung", tmp_path, run="run", section="Modules and ops", op="mm")
    said = " ".join(words(shown).split())
    assert "model.py:10 forward blocks.0.linear (Linear) forward 20.0 ms" in said
    assert "train.py:20 step" in said  # the user's frames


def test_memory_says_what_was_alive(tmp_path: Path) -> None:
    write_capture(tmp_path / "run")
    said = " ".join(words(page("rung", tmp_path, run="run", section="Memory")).split())
    # Parameter w of 2,000,000 bytes and one activation-sized buffer of 1,000,000.
    assert "2.86 MiB" in said
    assert "parameter (unknown) 1.91 MiB 1 w" in said


def test_the_cache_says_what_was_compiled_where(tmp_path: Path) -> None:
    write_capture(tmp_path / "run")
    said = " ".join(words(page("rung", tmp_path, run="run", section="Programs and cache")).split())
    assert "model.py:12 shape 1 750 us" in said
    assert "memory 14 12 0 0" in said  # two executions in each of seven steps, the first compiled


def test_the_timeline_moves_with_its_buttons_and_says_so_in_the_address(tmp_path: Path) -> None:
    write_large_run(tmp_path / "run", 10 * EVENTS_PER_STEP)
    shown = page("rung", tmp_path, run="run", section="Timeline")
    assert f"Longest of {OPS} in this stretch" in words(shown)
    buttons = {button.label: button for button in shown.button}
    buttons["Whole run"].click().run()
    assert float(value(shown, "from")) == 0.0
    assert "Too many to draw one by one: 4,800 ops" in words(shown)
    whole = float(value(shown, "to"))
    {button.label: button for button in shown.button}["Zoom in"].click().run()
    begin, end = (float(value(shown, name)) for name in ("from", "to"))
    assert end - begin == pytest.approx(whole / 3, rel=1e-3)
    assert (begin + end) / 2 == pytest.approx(whole / 2, rel=1e-3)
    again = page("rung", tmp_path, run="run", section="Timeline", **{"from": f"{begin}",
                 "to": f"{end}"})  # fmt: skip
    assert words(again) == words(shown)


@pytest.mark.parametrize(
    ("begin", "end"), [("x", "1"), ("nan", "2"), ("inf", "inf"), ("5", "1"), ("-1e300", "1e300")]
)
def test_nonsense_in_the_address_shows_something(tmp_path: Path, begin: str, end: str) -> None:
    write_capture(tmp_path / "run")
    parameters = {"from": begin, "to": end, "section": "Timeline", "op": "none", "by": "what"}
    assert "since the first event" in words(page("rung", tmp_path, run="run", **parameters))


def test_a_half_written_run_is_explained_with_the_steps_it_has(tmp_path: Path) -> None:
    write_ladder_of(tmp_path / "ladder", ["strict"], finished_at=None)
    done = write_run(tmp_path / "ladder/rungs/strict", warm_timeline(10.0))
    (done / "run.json").unlink()
    done.rename(done.with_name("strict.partial"))
    shown = page("rung", tmp_path, run="ladder/rungs/strict")
    assert "interrupted, or is still being measured" in words(shown)
    assert "Step time by step" in words(shown)
    assert "interrupted" in words(page("ladder", tmp_path, ladder="ladder"))


@pytest.mark.parametrize("damaged", ["steps.parquet", "events/dispatch-00000.parquet"])
def test_damaged_tables_are_said(tmp_path: Path, damaged: str) -> None:
    run = write_capture(tmp_path / "run")
    (run / damaged).write_bytes(b"PAR1 but not really")
    for section in RUNG_SECTIONS:
        shown = page("rung", tmp_path, run="run", section=section)
        if section == "Timeline":
            assert "damaged table" in words(shown)


def test_two_runs_compared(tmp_path: Path) -> None:
    for name, step_ms in (("before", 100.0), ("after", 120.0)):
        timeline = Timeline()
        timeline.warm_up()
        for index in range(8):
            timeline.sample(step_ms + 0.1 * index, rounds=index + 1)
        write_run(tmp_path / name, timeline)
    shown = page("compare", tmp_path, base="before", new="after")
    said = " ".join(words(shown).split())
    assert "step time 100." in said
    assert "worse (p" in said
    assert value(shown, "base") == "before"
    shown.selectbox[1].select("before").run()
    assert value(shown, "new") == "before"


def test_unlike_runs_are_not_compared_unless_asked(tmp_path: Path) -> None:
    write_run(tmp_path / "a", warm_timeline(100.0))
    write_run(tmp_path / "b", warm_timeline(100.0), precision="bf16_autocast")
    shown = page("compare", tmp_path, base="a", new="b")
    assert "precision: float32 against bf16_autocast" in words(shown)
    assert "Metrics, new against base" not in words(shown)
    shown.checkbox[0].check().run()
    assert not shown.exception
    assert "Metrics, new against base" in words(shown)


def test_history_by_rung_with_commit_and_environment(tmp_path: Path) -> None:
    for number, (step_ms, jax) in enumerate([(100.0, "0.10.2"), (110.0, "0.10.3")]):
        machine = replace(
            ENVIRONMENT, git_commit=f"{number}abc", versions={"torch": "2.13.0", "jax": jax}
        )
        run = Run(
            plan=plan("strict", ladder="nightly"), environment=machine, status="ok", facts=FACTS,
            started_at=f"2026-01-0{number + 1}T00:00:00Z",
        )  # fmt: skip
        directory = tmp_path / f"{number}"
        write_ladder_of(directory, ["strict"])
        write_run(directory / "rungs/strict", warm_timeline(step_ms), run=run)
        complete(directory)
    said = " ".join(words(page("history", tmp_path)).split())
    assert "110.0 ms" in said
    assert "+10.0 % 1abc" in said
    assert "changed: jax 0.10.2 -> 0.10.3" in said
    none = words(page("history", tmp_path, metric="mfu", of="nightly", rung="strict"))
    assert "10.0 %" in none


def test_an_index_that_is_a_symlink_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / INDEX_FILE).symlink_to(tmp_path / "elsewhere")
    assert "symlink" in words(page("history", tmp_path / "shown"))
    assert not (tmp_path / "elsewhere").exists()


def test_a_log_that_leads_outside_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("the secret")
    two_rungs(tmp_path / "shown/ladder")
    (tmp_path / "shown/ladder.log").symlink_to(tmp_path / "secret.txt")
    said = words(page("run", tmp_path / "shown", ladder="ladder"))
    assert "the secret" not in said
    assert "outside the directory" in said
    (tmp_path / "shown/ladder.log").unlink()
    (tmp_path / "shown/ladder.log").write_text("what it said")
    assert "what it said" in words(page("run", tmp_path / "shown", ladder="ladder"))


def test_text_of_runs_is_shown_as_text(tmp_path: Path) -> None:
    """What Streamlit is sent: nothing of a run may reach Markdown or HTML unescaped."""
    evil = "**b** ![i](http://evil.example/x.png) [l](javascript:alert(1)) <img src=x> :red[r] $x$"
    run = Run(
        plan=plan(evil), environment=ENVIRONMENT, status="failed", reason=evil, warnings=(evil,)
    )
    write_run(tmp_path / "run", warm_timeline(10.0), run=run)
    for name, parameters in (
        ("rung", {"run": "run"}),
        ("ladders", {}),
        ("rung", {"run": evil}),
        ("ladder", {"ladder": evil}),
    ):
        shown = page(name, tmp_path, **parameters)
        assert "<img src=x> :red[r] $x$" in words(shown), (name, parameters)
        for element in shown.main:
            body = str(getattr(getattr(element, "proto", None), "body", ""))
            assert "<img" not in body
            assert body.startswith("<") or "evil.example" not in body  # no Markdown at all
