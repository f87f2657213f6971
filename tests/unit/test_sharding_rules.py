"""How strategies split parameters and batches, and what the ladder file may ask of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.test_config_mistakes import GOOD, mistakes
from tpu_perf.ladder.plan import plan_ladder, read_ladder
from tpu_perf.record.plan import Plan, ShardingPlan
from tpu_perf.sharding.assignment import ParameterFacts, ShardingError, assign
from tpu_perf.sharding.transformer_layers import Role, role_of


def split(mesh: dict[str, int], facts: ParameterFacts) -> tuple[tuple[str, ...], ...]:
    plan = ShardingPlan(strategy="fsdp_tp", mesh=mesh)
    return assign(plan, [facts]).parameters[facts.name].own


@pytest.mark.parametrize(
    ("path", "kind", "parameter", "dimensions", "role"),
    [
        ("model.layers.0.self_attn.q_proj", "Linear", "weight", 2, "column"),
        ("model.layers.0.self_attn.o_proj", "Linear", "weight", 2, "row"),
        ("model.layers.0.mlp.down_proj", "Linear", "weight", 2, "row"),
        ("bert.encoder.layer.3.attention.output.dense", "Linear", "weight", 2, "row"),
        ("bert.encoder.layer.3.intermediate.dense", "Linear", "bias", 1, "column"),
        ("transformer.h.0.attn.c_attn", "Conv1D", "weight", 2, "fused"),
        ("transformer.wte", "Embedding", "weight", 2, "vocabulary"),
        ("transformer.wpe", "Embedding", "weight", 2, "whole"),
        ("model.layers.0.mlp.experts", "Qwen3MoeExperts", "down_proj", 3, "experts"),
        ("model.norm", "RMSNorm", "weight", 1, "whole"),
    ],
)
def test_roles_follow_the_names_of_transformers(
    path: str, kind: str, parameter: str, dimensions: int, role: Role
) -> None:
    assert role_of(path, kind, parameter, dimensions) == role


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (ParameterFacts(name="w", shape=(64, 32), role="column"), (("tensor",), ("fsdp",))),
        (ParameterFacts(name="w", shape=(64, 32), role="row"), (("fsdp",), ("tensor",))),
        (ParameterFacts(name="w", shape=(64, 32), role="column", inputs_first=True),
         (("fsdp",), ("tensor",))),
        (ParameterFacts(name="w", shape=(32, 96)), ((), ("fsdp",))),  # the largest dimension
        (ParameterFacts(name="w", shape=(64, 64)), (("fsdp",), ())),
        (ParameterFacts(name="w", shape=(6, 32)), ((), ("fsdp",))),  # the one that divides
        (ParameterFacts(name="b", shape=(64,), role="column"), (("tensor", "fsdp"),)),
        (ParameterFacts(name="b", shape=(64,), role="row"), (("fsdp",),)),
        (ParameterFacts(name="n", shape=()), ()),
    ],
)  # fmt: skip
def test_what_lies_where(facts: ParameterFacts, expected: tuple[tuple[str, ...], ...]) -> None:
    assert split({"fsdp": 4, "tensor": 2}, facts) == expected


def test_a_parameter_is_used_without_its_fsdp_axis() -> None:
    plan = ShardingPlan(strategy="fsdp_tp", mesh={"fsdp": 4, "tensor": 2})
    facts = ParameterFacts(name="w", shape=(64, 32), role="column")
    assert assign(plan, [facts]).parameters["w"].use == (("tensor",), ())


def test_what_does_not_divide_is_copied_and_named_once() -> None:
    plan = ShardingPlan(strategy="fsdp", mesh={"fsdp": 4})
    odd = [ParameterFacts(name=f"layer.{i}.weight", shape=(7, 5)) for i in range(3)]
    found = assign(plan, odd)
    assert {one.own for one in found.parameters.values()} == {((), ())}
    assert found.warnings == (
        "layer.0.weight [7, 5] and 2 more like it: no dimension divides by fsdp=4, so every "
        "device has a copy",
    )
    told: list[str] = []
    assert found.batch("tokens", (6, 9), told) == ((), ())
    assert told == ["tokens: its dimension 0 of 6 does not divide into 4 (fsdp=4), so every device "
                    "computes all of it"]  # fmt: skip


@pytest.mark.parametrize(
    ("placements", "message"),
    [
        ({"layer.*.wieght": ["fsdp"]}, "no parameter is called 'layer.*.wieght'; did you mean"),
        ({"layer.0.weight": ["fsdp"]}, "dimension 0 of layer.0.weight [7, 8] does not divide by"),
        ({"layer.0.weight": [None, None, "fsdp"]}, "3 dimensions are placed, but layer.0.weight"),
    ],
)
def test_placements_that_do_not_fit_are_told(
    placements: dict[str, list[str | None]], message: str
) -> None:
    plan = ShardingPlan(strategy="fsdp", mesh={"fsdp": 4}, placements=placements)
    with pytest.raises(ShardingError) as caught:
        assign(plan, [ParameterFacts(name="layer.0.weight", shape=(7, 8))])
    assert message in caught.value.message


SHARD = "  - {rung: shard, name: s, strategy: fsdp_tp, mesh: {fsdp: 2, tensor: 2}}\n"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("fsdp_tp", "fsdp_pt", "ladder.yaml:16: rungs[2].strategy: 'fsdp_pt' is not one of the"),
        ("fsdp: 2, ", "", "rungs[2].mesh: the strategy fsdp_tp needs the axis fsdp"),
        ("tensor: 2", "tensr: 2", "rungs[2].mesh.tensr: the strategy fsdp_tp has no such axis;"),
        ("fsdp: 2", "fsdp: 0", "rungs[2].mesh.fsdp: should be at least 1, not 0"),
        ("fsdp: 2", "fsdp: two", "rungs[2].mesh.fsdp: should be a whole number"),
        ("strategy: fsdp_tp, ", "", "rungs[2]: the rung shard needs a strategy: one of ddp"),
        (", mesh: {fsdp: 2, tensor: 2}", "", "rungs[2]: the rung shard needs a mesh: such as"),
        ("rung: shard", "rung: strict", "rungs[2].strategy: only the rung shard takes it"),
        ("}}", "}, placements: {w: [data]}}", "placements.w: the mesh has no axis 'data'"),
        ("}}", "}, placements: {w: [fsdp, fsdp]}}", "the axis 'fsdp' splits two dimensions"),
        ("}}", "}, program: strict}", "rungs[2].program: 'strict' is not one of the choices"),
    ],
)  # fmt: skip
def test_mistakes_in_a_rung_that_shards(tmp_path: Path, old: str, new: str, expected: str) -> None:
    told = mistakes(tmp_path, GOOD + SHARD.replace(old, new))
    assert expected in told, told


def test_the_plan_keeps_what_the_file_says(tmp_path: Path) -> None:
    file = tmp_path / "ladder.yaml"
    file.write_text(GOOD + SHARD.replace("}}", "}, placements: {w: [[fsdp, tensor], null]}}"))
    plan = plan_ladder(read_ladder(file))[-1]
    assert plan.mode == "whole_step"
    assert plan.sharding is not None
    assert plan.sharding.devices == 4
    assert plan.sharding.placements == {"w": [["fsdp", "tensor"], None]}
    assert Plan.from_json(plan.to_json()) == plan
