"""The shipped ladder files and the schema that editors check them by."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tpu_perf.cli.schema import schema_text
from tpu_perf.ladder.plan import plan_ladder, read_ladder
from tpu_perf.record.plan import ShardingPlan
from tpu_perf.rungs.interface import RUNGS

LADDERS = Path(__file__).resolve().parents[2] / "ladders"
FILES = sorted(LADDERS.glob("*.yaml"))


def test_the_stored_schema_is_up_to_date() -> None:
    stored = (LADDERS / "schema.json").read_text(encoding="utf-8")
    assert stored == schema_text(), "run: tpu-perf schema > ladders/schema.json"


def test_the_schema_offers_what_is_registered() -> None:
    schema = json.loads(schema_text())
    entry = schema["$defs"]["RungEntry"]["properties"]
    assert set(entry["rung"]["enum"]) == set(RUNGS)
    assert {"cpu", "xla"} <= set(entry["engine"]["anyOf"][0]["enum"])
    kinds = schema["properties"]["workload"]["discriminator"]["mapping"]
    assert {"causal_lm", "masked_lm", "python"} <= set(kinds)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_shipped_ladders_are_valid(file: Path) -> None:
    config = read_ladder(file)
    assert config.file.name == file.stem
    assert plan_ladder(config)
    assert file.read_text().startswith("# yaml-language-server: $schema=./schema.json\n")


def test_reading_ladder_files_and_printing_the_schema_needs_neither_torch_nor_jax() -> None:
    code = f"""
import sys
from pathlib import Path
from tpu_perf.cli.schema import schema_text
from tpu_perf.ladder.plan import plan_ladder, read_ladder
schema_text()
plan_ladder(read_ladder(Path({str(FILES[0])!r})))
loaded = {{"torch", "jax", "transformers"}} & set(sys.modules)
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_rung_is_named_like_its_file_and_changes_the_plan(tmp_path: Path) -> None:
    mesh = ShardingPlan(strategy="ddp", mesh={"data": 2})
    plan = plan_ladder(read_ladder(FILES[0]))[0].with_changes(sharding=mesh)
    modes = {"cpu_eager": "eager", "cpu_inductor": "inductor", "shard": "whole_step"}
    for name, rung in RUNGS.items():
        changed = rung.change(plan)
        assert rung.name == name
        assert changed.mode == modes.get(name, name)
        assert changed.engine == ("cpu" if name.startswith("cpu_") else "xla")
        assert changed.with_changes(engine=plan.engine, mode=plan.mode) == plan
