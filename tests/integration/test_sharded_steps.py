"""Every sharding strategy trains as one device does, and moves the bytes that theory says."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpu_perf.hlo.collectives import collectives, ring_bytes
from tpu_perf.hlo.module import read_module
from tpu_perf.predict.compiled import Compiled, Request
from tpu_perf.predict.compiler import Compiler
from tpu_perf.predict.libtpu import library_path
from tpu_perf.predict.targets import find_target

REPOSITORY = Path(__file__).parents[2]
STRATEGIES = ("ddp", "fsdp", "hsdp", "tp", "fsdp_tp", "sequence", "expert", "seven_heads",
              "compiled", "placed_by_hand", "stack_ddp", "stack_fsdp",
              "stack_fsdp_gathered_again")  # fmt: skip
TOLERANCE = 2e-6  # of float32 sums in another order, over ten steps


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.sharded_jobs"], cwd=REPOSITORY, capture_output=True,
        text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def difference(job: dict[str, Any]) -> float:
    pairs: list[tuple[float, float]] = list(zip(job["losses"], job["reference"], strict=True))
    return max(abs(a - b) for a, b in pairs)


@pytest.mark.parametrize("name", STRATEGIES)
def test_losses_and_parameters_are_those_of_torch_on_one_cpu(
    jobs: dict[str, Any], name: str
) -> None:
    job = jobs[name]
    assert job["losses"][-1] < job["losses"][0]
    assert difference(job) < TOLERANCE
    assert job["parameter_difference"] < TOLERANCE
    assert job["replays"] == 7  # the step was captured for good in its third


def test_a_wrong_rule_is_caught(jobs: dict[str, Any]) -> None:
    assert difference(jobs["wrong"]) > 100 * TOLERANCE
    assert jobs["wrong"]["parameter_difference"] > 1000 * TOLERANCE


def test_ddp_sums_each_gradient_once(jobs: dict[str, Any]) -> None:
    job = jobs["stack_ddp"]
    # The loss, four bytes, travels with the gradients.
    assert job["moved"] == {"gradients all-reduce data": job["parameter_bytes"] + 4}


def test_fsdp_gathers_each_weight_once_and_sums_each_gradient_once(jobs: dict[str, Any]) -> None:
    job = jobs["stack_fsdp"]
    assert job["moved"] == {
        "weights all-gather fsdp": job["parameter_bytes"],
        # XLA:CPU has no reduce-scatter: an all-reduce stands for it.
        "gradients all-reduce fsdp": job["parameter_bytes"] + 4,
    }


def test_gathering_again_gathers_what_backward_needs(jobs: dict[str, Any]) -> None:
    job = jobs["stack_fsdp_gathered_again"]
    one_layer = job["parameter_bytes"] // 3
    # The first layer's input needs no gradient, so backward does not need its weight.
    expected = 2 * job["parameter_bytes"] - one_layer
    assert job["moved"]["weights all-gather fsdp"] == expected


def test_fsdp_splits_state_and_ddp_copies_it(jobs: dict[str, Any]) -> None:
    ddp, fsdp = jobs["stack_ddp"], jobs["stack_fsdp"]
    state = 3 * ddp["parameter_bytes"]  # parameters, momentum, and the batch of 64 x 64 in 8 parts
    batch = 64 * 64 * 4 // 8
    numbers = ddp["memory"]["argument"] - 2 * ddp["parameter_bytes"] - batch
    assert 0 <= numbers < 1024 < state
    assert fsdp["memory"]["argument"] == fsdp["parameter_bytes"] // 4 + batch + numbers
    assert fsdp["donated"] == 2 * fsdp["parameter_bytes"]
    assert set(fsdp["parts"].values()) == {8}
    assert set(ddp["parts"].values()) == {1}


def test_tensor_parallel_sums_activations_and_gathers_nothing(jobs: dict[str, Any]) -> None:
    moved = jobs["tp"]["moved"]
    assert not [what for what in moved if "all-gather" in what or "all-to-all" in what]
    activation = 8 * 16 * 16 * 4 // 2  # of the four rows that a group of the data axis has
    # Forward: embedding, attention, MLP. Backward: q, k, v, the MLP, the head. What is left are
    # sums over the vocabulary, one or two numbers a token.
    rest = moved["activations all-reduce tensor"] - 8 * activation
    assert 0 < rest < activation / 2


def test_heads_that_do_not_divide_are_copied_and_named(jobs: dict[str, Any]) -> None:
    note = jobs["seven_heads"]["notes"]["sharding"]
    assert "self_attn.q_proj.weight [28, 16] and 2 more like it: 7 heads" in note
    assert "self_attn.o_proj.weight" in note
    parts = jobs["seven_heads"]["parts"]
    assert parts["self_attn.k_proj.weight"] == 1
    assert parts["mlp.up_proj.weight"] == 4


def test_placements_of_the_ladder_file_hold(jobs: dict[str, Any]) -> None:
    parts = jobs["placed_by_hand"]["parts"]
    assert parts["mlp.up_proj.weight"] == parts["mlp.down_proj.weight"] == 8


def test_compiled_graphs_become_part_of_the_step(jobs: dict[str, Any]) -> None:
    assert jobs["compiled"]["graphs"] == ["graph::compiled_forward", "graph::compiled_backward"]
    assert jobs["fsdp_tp"]["graphs"] == []


def test_experts_lie_apart(jobs: dict[str, Any]) -> None:
    parts = jobs["expert"]["parts"]
    assert parts["mlp.expert_up"] == parts["mlp.expert_down"] == 4
    assert parts["mlp.router.weight"] == 1


@pytest.mark.parametrize("name", STRATEGIES)
def test_device_groups_are_those_that_xla_prints(jobs: dict[str, Any], name: str) -> None:
    assert jobs[name]["groups"]
    for printed, read in jobs[name]["groups"]:
        assert sorted(map(tuple, read)) == sorted(_printed_groups(printed)), printed


def _printed_groups(text: str) -> list[tuple[int, ...]]:
    """Groups as XLA's text has them: {{0,1},{2,3}}, [2,4]<=[4,2]T(1,0), or axes of a mesh."""
    if text.startswith("{"):
        return [tuple(map(int, one.split(","))) for one in re.findall(r"\{([\d,]+)\}", text)]
    if text.startswith("["):
        shape, order = text.split("<=")
        rows = _ids(order).reshape([int(n) for n in re.findall(r"\d+", shape)])
        return [tuple(int(i) for i in row) for row in rows]
    axes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", text)}
    ordered = re.search(r"device_ids=\((.*?\)?)\)", text)
    total = int(np.prod(list(axes.values())))
    ids = np.arange(total) if ordered is None else _ids(ordered[1])
    ids = ids.reshape(list(axes.values()))
    varying = re.findall(r"'(\w+)'(?!=)", text.rpartition("{")[2])
    kept = [i for i, name in enumerate(axes) if name not in varying]
    moved = [i for i, name in enumerate(axes) if name in varying]
    rows = ids.transpose(kept + moved).reshape(-1, int(np.prod([ids.shape[i] for i in moved])))
    return [tuple(int(i) for i in row) for row in rows]


def _ids(text: str) -> Any:
    """[4,2]T(1,0) as an array of device numbers."""
    shape = [int(n) for n in re.findall(r"\d+", text.split("T")[0])]
    ids = np.arange(int(np.prod(shape))).reshape(shape)
    turned = re.search(r"T\(([\d,]+)\)", text)
    return ids if turned is None else ids.transpose([int(n) for n in turned[1].split(",")])


@pytest.mark.skipif(library_path() is None, reason="libtpu is not installed")
def test_the_step_compiles_for_a_tpu_slice_with_reduce_scatters(jobs: dict[str, Any]) -> None:
    program = base64.b64decode(jobs["lowered"])
    with Compiler() as compiler:
        made = compiler.compile(
            Request(name="step", stablehlo=program, target=find_target("v6e-8"))
        )
    assert isinstance(made, Compiled), made
    assert made.partitions == 8
    shapes = {f"layers.{i}.weight": (512, 512) for i in range(3)}
    moved: Counter[tuple[str, str, str]] = Counter()
    for one in collectives(read_module(made.hlo), {"fsdp": 8}, shapes, ("fsdp",)):
        moved[one.role, one.kind, one.axes] += int(one.nbytes)
    parameters = 3 * 512 * 512 * 4
    assert moved["gradients", "reduce-scatter", "fsdp"] == parameters
    assert moved["weights", "all-gather", "fsdp"] in (parameters, parameters // 2)  # or in bf16
    assert set(moved) <= {
        ("gradients", "reduce-scatter", "fsdp"), ("weights", "all-gather", "fsdp"),
        ("scalars", "all-reduce", "fsdp"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("all-gather", 700.0), ("reduce-scatter", 700.0), ("all-reduce", 1400.0),
     ("all-to-all", 87.5), ("collective-permute", 800.0)],
)  # fmt: skip
def test_ring_formula(kind: str, expected: float) -> None:
    assert ring_bytes(kind, 800.0, 8) == expected
    assert ring_bytes(kind, 800.0, 1) == 0.0
