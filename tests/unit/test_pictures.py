"""Charts as files: real images, drawn to scale, with text of the user's shown literally."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.stored_ladders import (
    partial_ladder,
    two_rungs,
    warm_timeline,
    write_ladder_of,
    write_run,
)
from tpu_perf.analysis.ladder_metrics import completed
from tpu_perf.cli.main import main
from tpu_perf.export.html import charts
from tpu_perf.export.report.figures import COLOURS
from tpu_perf.export.report.pictures import picture, plain, write_pictures


def pixels_of(png: bytes, colour: str) -> int:
    image = np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return int((np.abs(image - wanted).max(axis=2) <= 2).sum())


def test_bars_are_as_long_as_the_step_times_they_stand_for(tmp_path: Path) -> None:
    _, rungs = completed(two_rungs(tmp_path))  # 100 ms and 40 ms a step
    figure = next(figure for figure in charts(rungs) if figure.id == "step-time")
    png = picture(figure, "png")
    areas = [pixels_of(png, colour) for colour in COLOURS[:2]]
    assert areas[1] / areas[0] == pytest.approx(40 / 100, rel=0.03)


def test_every_chart_of_a_ladder_is_written_in_both_formats(tmp_path: Path) -> None:
    home = two_rungs(tmp_path / "ladder")
    _, rungs = completed(home)
    figures = charts(rungs)
    assert {figure.id for figure in figures} >= {"step-time", "mfu", "waterfall", "losses"}
    for figure, path in zip(figures, write_pictures(figures, tmp_path, "png"), strict=True):
        image = Image.open(path)
        assert path.stem == figure.id
        assert image.width == 1_800
        assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    for path in write_pictures(figures, tmp_path, "svg"):
        assert ET.parse(path).getroot().tag.endswith("svg")


def test_the_same_chart_gives_the_same_bytes(tmp_path: Path) -> None:
    _, rungs = completed(two_rungs(tmp_path))
    figure = charts(rungs)[0]
    assert picture(figure, "svg") == picture(figure, "svg")


def test_names_with_markup_and_formulas_are_drawn_as_they_are(tmp_path: Path) -> None:
    assert plain("<b>a &lt;b&gt; $x$</b><br>2x") == "a <b> $x$\n2x"
    name = r"<b>$\frac{1}{$ [bold]"
    write_ladder_of(tmp_path, [name], paths={name: "rungs/odd"})
    write_run(tmp_path / "rungs/odd", warm_timeline(50.0))
    _, rungs = completed(tmp_path)
    for figure in charts(rungs):
        assert picture(figure, "png").startswith(b"\x89PNG")


def test_the_command_writes_what_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = partial_ladder(tmp_path / "ladder")
    with pytest.raises(SystemExit) as exit_:
        main(["report", str(home), "--png", "--html"])
    assert exit_.value.code == 0
    written = [Path(line.removeprefix("wrote ")) for line in capsys.readouterr().out.splitlines()]
    assert home / "report.html" in written
    assert home / "pictures/step-time.png" in written
    assert all(path.stat().st_size for path in written)
    empty = tmp_path / "empty"
    write_ladder_of(empty, ["strict"])
    with pytest.raises(SystemExit) as exit_:
        main(["report", str(empty), "--png"])
    assert exit_.value.code == 2
    assert "no measured rung" in capsys.readouterr().err
