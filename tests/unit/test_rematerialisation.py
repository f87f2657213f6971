"""Work done twice: hardware FLOPs count it, model FLOPs do not; in runs and in scans by XLA."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.stored_ladders import ENVIRONMENT, FACTS, plan
from tpu_perf.analysis.run_analysis import RunAnalysis, analyse
from tpu_perf.hlo.cost import costs, totals
from tpu_perf.hlo.module import read_module
from tpu_perf.record.details import DETAIL_TABLES
from tpu_perf.record.events import EVENT_KINDS, PROGRAM_COLUMNS, STEP_COLUMNS
from tpu_perf.record.run import Run
from tpu_perf.record.store import RunWriter, load_run, table_of_rows

pytestmark = pytest.mark.usefixtures("narrow_numbers")


LAYERS, BATCH, WIDTH = 6, 8, 32
PRODUCT = 2 * BATCH * WIDTH * WIDTH
#: x (8, 32) by w (32, 32); its gradients are g by w^T, of the same shapes, and x^T by g.
SHAPES = {0: ((BATCH, WIDTH), (WIDTH, WIDTH)), 1: ((WIDTH, BATCH), (BATCH, WIDTH))}
FORWARD, AGAIN = "model.py:7 forward", "checkpoint.py:3 recompute\nmodel.py:7 forward"


def _site(number: int, phase: str, stack: str) -> tuple[Any, ...]:
    return (number, "model.py", 7, "forward", "mlp", "Mlp", phase, stack)


def analysed(
    directory: Path, sites: list[tuple[Any, ...]], ops: list[tuple[int, int]], *, graph: bool
) -> RunAnalysis:
    """A run of one timed step that executes these products, (call, site) each: as programs of one
    op each, dispatched one by one, or as one program of a graph."""
    writer = RunWriter(directory)
    rows: dict[str, list[tuple[Any, ...]]] = {kind: [] for kind in EVENT_KINDS}
    if graph:
        programs = [(0, "k", "graph", "graph", len(ops), 64, 64, None, PRODUCT * len(ops), 0, 0)]
        in_programs = [(0, at, "aten::mm.default", call, site)
                       for at, (call, site) in enumerate(ops)]  # fmt: skip
        rows["dispatch"].append((100, 900, "graph", 0, 0, -1, 0))
        rows["execute"].append((200, 800, 0, 0, 0))
    else:
        programs = [(call, f"k{call}", "mm", "op", 1, 64, 64, None, PRODUCT, 0, 0)
                    for call in SHAPES]  # fmt: skip
        in_programs = [(call, 0, "aten::mm.default", call, 0) for call in SHAPES]
        for at, (call, site) in enumerate(ops):
            begin = 100 + 50 * at
            rows["dispatch"].append((begin, begin + 40, "aten::mm.default", call, 0, site, 0))
            rows["execute"].append((begin + 10, begin + 20, call, 0, 0))
    writer.write_events(
        {kind: table_of_rows(EVENT_KINDS[kind].columns, found) for kind, found in rows.items()}
    )
    writer.write_steps(table_of_rows(STEP_COLUMNS, [(0, "timed", 0, 0, 1000, 2000, 0, 1.0, 1.0)]))
    writer.write_programs(table_of_rows(PROGRAM_COLUMNS, programs))
    calls = [
        (call, "aten::mm.default", '["self", "mat2"]',
         json.dumps([{"dtype": "float32", "shape": shape} for shape in shapes]), "[]", 64, 64)
        for call, shapes in SHAPES.items()
    ]  # fmt: skip
    for name, table in (("sites", sites), ("calls", calls), ("program_ops", in_programs)):
        writer.write_detail(name, table_of_rows(DETAIL_TABLES[name], table))
    writer.finish(Run(plan=plan("run"), environment=ENVIRONMENT, status="ok", facts=FACTS))
    return analyse(load_run(directory), "op", "causal")


@pytest.mark.parametrize("graph", [False, True], ids=["op by op", "in a graph"])
@pytest.mark.parametrize("recomputed", [False, True])
def test_a_checkpointed_layer(tmp_path: Path, graph: bool, recomputed: bool) -> None:
    """A forward product and two gradients; with checkpointing the forward once more.

    Op by op the recomputation has a stack of its own. In a graph it has the forward's, as its
    gradients have, and only the count of products tells it.
    """
    sites = [_site(0, "forward", FORWARD), _site(1, "backward", FORWARD),
             _site(2, "backward", FORWARD if graph else AGAIN)]  # fmt: skip
    ops = [(0, 0), *([(0, 2)] if recomputed else []), (0, 1), (1, 1)]
    found = analysed(tmp_path / "run", sites, ops, graph=graph)
    assert found.step["model_flops"].value == 3 * PRODUCT
    assert found.step["hardware_flops"].value == (4 if recomputed else 3) * PRODUCT
    total = found.table.total.measures
    assert total["recomputed"].value == pytest.approx(1 if recomputed else 0)
    assert any("recomputed:" in note for note in found.notes) == recomputed


def test_a_repeated_forward_is_no_recomputation(tmp_path: Path) -> None:
    """The same layer twice, as with shared weights: twice the model's FLOPs."""
    sites = [_site(0, "forward", FORWARD), _site(1, "backward", FORWARD)]
    ops = [(0, 0), (0, 0), (0, 1), (1, 1), (0, 1), (1, 1)]
    found = analysed(tmp_path / "run", sites, ops, graph=False)
    assert found.step["model_flops"].value == found.step["hardware_flops"].value == 6 * PRODUCT


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_scan_that_xla_runs(checkpointed: bool) -> None:
    """Products of a scan over layers: one forward, two back, and one again if checkpointed."""

    def loss(weights: jax.Array, x: jax.Array) -> Any:
        def layer(h: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(h @ w), None

        body = jax.checkpoint(layer) if checkpointed else layer
        return jnp.sum(lax.scan(body, x, weights)[0] ** 2)

    arguments = (jnp.ones((LAYERS, WIDTH, WIDTH)), jnp.ones((BATCH, WIDTH)))
    made = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*arguments).compile()
    module = made.runtime_executable().hlo_modules()[0]  # type: ignore[union-attr]
    rows = costs(read_module(module.as_serialized_hlo_module_proto()))
    products = [row for row in rows if row.category == "convolution fusion" or row.opcode == "dot"]
    executed = [(row.flops or 0) * (row.trip_count or 0) for row in products]
    assert executed == [LAYERS * PRODUCT] * (4 if checkpointed else 3)
    whole = totals(rows)
    assert whole.flops.value is not None
    elementwise = whole.flops.value - sum(executed)
    assert 0 < elementwise < LAYERS * PRODUCT / 10
