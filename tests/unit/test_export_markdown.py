"""report.md: a table that survives whatever rungs are called."""

from __future__ import annotations

from pathlib import Path

from tests.stored_ladders import partial_ladder, two_rungs
from tpu_perf.analysis.ladder_metrics import complete
from tpu_perf.export import markdown


def test_the_table(tmp_path: Path) -> None:
    complete(two_rungs(tmp_path))
    lines = markdown.write(tmp_path).read_text(encoding="utf-8").splitlines()
    assert (
        r"| whole\_step | ok | 40.00 ms m [40.00-40.00] | 2.50x m [2.50-2.50] | 25,000 d "
        "| 25.0 % d | 1,000 B m | 300 ms m | 1 m | 92.9 % m | 1.0e-3 m |"
    ) in lines
    assert any(line.startswith("- **strict**: host-bound") for line in lines)


def test_every_row_has_as_many_cells_as_the_head(tmp_path: Path) -> None:
    complete(partial_ladder(tmp_path))
    lines = markdown.write(tmp_path).read_text(encoding="utf-8").splitlines()
    rows = [line.replace(r"\|", "") for line in lines if line.startswith("|")]
    assert len(rows) == 2 + 9
    assert {row.count("|") for row in rows} == {12}


def test_text_of_the_user_stays_text() -> None:
    assert markdown.escaped("a|b\n<script>*x*_y") == r"a\|b \<script\>\*x\*\_y"
