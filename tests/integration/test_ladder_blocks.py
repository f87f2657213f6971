"""Where not all rungs can be alive at once, the ladder says so and goes in blocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.ladder_commands import changed, write_ladder
from tpu_perf.ladder.directory import create_directory
from tpu_perf.ladder.observer import Silent
from tpu_perf.ladder.plan import plan_ladder, read_ladder
from tpu_perf.ladder.runner import LadderRunner


@pytest.mark.parametrize(
    ("room_bytes", "blocks"),
    [
        (0, (("cpu_eager",), ("second",))),
        (2**50, (("cpu_eager", "second"),)),
    ],
)
def test_memory_decides_how_many_are_alive(
    tmp_path: Path, room_bytes: int, blocks: tuple[tuple[str, ...], ...]
) -> None:
    file = write_ladder(tmp_path, "cpu_eager", changed("second", hidden=16))
    config = read_ladder(file, ["sampling.rounds=2"])
    plans = plan_ladder(config)
    directory = create_directory(tmp_path / "out", config, plans)
    LadderRunner(directory, plans, Silent(), available=lambda: room_bytes).run()
    assert directory.statuses() == {"cpu_eager": "ok", "second": "ok"}
    assert directory.ladder.blocks == blocks
    told = [warning for warning in directory.ladder.warnings if "alive at once" in warning]
    assert len(told) == len(blocks) - 1
