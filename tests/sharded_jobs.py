"""Trains small models on eight virtual devices of XLA:CPU by every strategy.

Run as `python -m tests.sharded_jobs`: a process of its own, as JAX makes its devices once. Prints
one JSON document: for each job losses, the largest difference of parameters from one device, and
what moved.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from typing import Any

import torch

from tpu_perf.engines.spreading import Spread
from tpu_perf.record.plan import ShardingPlan
from tpu_perf.runtime import jax_private

jax_private.want_devices(8)

import tpu_perf.runtime.device  # noqa: E402, F401 - loads device "tpu"
from tpu_perf.hlo.collectives import collectives  # noqa: E402
from tpu_perf.hlo.device_groups import collective_kind, device_groups  # noqa: E402
from tpu_perf.hlo.module import Module, read_module  # noqa: E402
from tpu_perf.runtime.mesh import DeviceMesh  # noqa: E402
from tpu_perf.runtime.program_cache import CACHE  # noqa: E402
from tpu_perf.runtime.step_sharding import Arrangement, Placed, StepSharding  # noqa: E402
from tpu_perf.runtime.whole_step import WholeStep  # noqa: E402
from tpu_perf.sharding.assignment import assign  # noqa: E402
from tpu_perf.sharding.model_facts import parameter_facts  # noqa: E402

#: Half the time of these tests was LLVM's.
CACHE.compiler_options = {"xla_backend_optimization_level": 0}
STEPS = 10
WIDTH, HIDDEN, ROWS, LENGTH, VOCABULARY = 16, 48, 8, 16, 40


class Attention(torch.nn.Module):
    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        inner = heads * head_dim
        self.q_proj, self.k_proj, self.v_proj = (
            torch.nn.Linear(WIDTH, inner, bias=False) for _ in range(3)
        )
        self.o_proj = torch.nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            p(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: torch.Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return out


class Experts(torch.nn.Module):
    """Every expert sees every token, weighted: what is split is the experts' dimension."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.router = torch.nn.Linear(WIDTH, count)
        self.expert_up = torch.nn.Parameter(torch.randn(count, WIDTH, HIDDEN) / 8)
        self.expert_down = torch.nn.Parameter(torch.randn(count, HIDDEN, WIDTH) / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.einsum("bsd,edh->besh", x, self.expert_up).relu()
        out = torch.einsum("besh,ehd->besd", inner, self.expert_down)
        weights = self.router(x).softmax(-1)
        return torch.einsum("besd,bse->bsd", out, weights)


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up_proj = torch.nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down_proj = torch.nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(torch.nn.functional.gelu(self.up_proj(x)))
        return out


class Model(torch.nn.Module):
    def __init__(self, heads: int = 4, experts: int = 0) -> None:
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.self_attn = Attention(heads, 4)
        self.mlp = Experts(experts) if experts else Mlp()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.lm_head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(tokens)
        x = x + self.self_attn(self.norm(x))
        x = x + self.mlp(x)
        out: torch.Tensor = self.lm_head(self.norm(x))
        return out


class Stack(torch.nn.Module):
    """Linear layers alone: what they move has a closed formula."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(width, width, bias=False) for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def batch(model: torch.nn.Module, index: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(index)
    if isinstance(model, Stack):
        return torch.randn(64, 64, generator=generator)
    return torch.randint(0, VOCABULARY, (ROWS, LENGTH), generator=generator)


def groups_of(module: Module, text: str) -> list[tuple[str, list[tuple[int, ...]]]]:
    """What XLA prints of each collective's device groups, and what was read of its message."""
    printed = dict(re.findall(r"%(\S+) = .*?replica_groups=(.*?), (?:use|dim|to_app)", text))
    return [
        (printed[one.name], device_groups(one, 8))
        for computation in module.computations for one in computation.instructions
        if one.name in printed and collective_kind(one)
    ]  # fmt: skip


def train(model: torch.nn.Module, plan: ShardingPlan | None, device: str) -> dict[str, Any]:
    spread = None
    if plan is not None:
        spread = Spread(plan, model)
    else:
        model.to(device)
    # Unlike Adam's, its steps grow with the gradient: a gradient that is too small shows.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)

    def step(given: dict[str, torch.Tensor]) -> torch.Tensor:
        optimizer.zero_grad()
        x = given["tokens"]
        out = forward(x)
        loss = (
            out.square().mean() if isinstance(model, Stack)
            else torch.nn.functional.cross_entropy(out[:, :-1].flatten(0, 1), x[:, 1:].flatten())
        )  # fmt: skip
        loss.backward()
        optimizer.step()
        return loss.detach()

    forward: Any = model
    if plan is not None and plan.program == "compile":
        forward = compiled(model)
    run: Any = step
    if spread is not None:
        run = WholeStep(step, (optimizer,), spread.sharding)
    losses = [float(run({"tokens": batch(model, i).to(device)})) for i in range(STEPS)]
    found: dict[str, Any] = {
        "losses": losses,
        "parameters": {n: p.detach().cpu() for n, p in model.named_parameters()},
    }
    if spread is not None:
        program = max((p for p in CACHE.programs if p.placement), key=lambda p: p.index)
        placement = program.placement
        assert placement is not None
        data = program.executable.hlo()
        assert data is not None
        module = read_module(data)
        moved: Counter[str] = Counter()
        for one in collectives(module, placement.axes, placement.parameters, placement.batch_axes):
            moved[f"{one.role} {one.kind} {one.axes}"] += int(one.nbytes)
        text = program.executable.loaded.hlo_modules()[0].to_string()
        found |= {
            "replays": run.replays,
            "graphs": [part.op for part in program.parts() if part.op.startswith("graph::")],
            "moved": dict(moved),
            "notes": dict(spread.notes()),
            "groups": groups_of(module, text),
            "donated": program.donated_bytes,
            "memory": program.executable.memory_bytes(),
            "parts": {p.name: spread.mesh.parts(p.own) for p in spread.sharding.parameters},
        }
    return found


def compiled(model: torch.nn.Module) -> Any:
    return torch.compile(model, backend="tpu", dynamic=False)


def compare(name: str, make: Any, plan: ShardingPlan) -> dict[str, Any]:
    torch.manual_seed(0)
    model = make()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    alone = _REFERENCES.get(make)
    if alone is None:
        alone = _REFERENCES[make] = train(model, None, "cpu")
        model = make()
        model.load_state_dict(state)
    found = train(model, plan, "tpu")
    found["reference"] = alone["losses"]
    found["parameter_difference"] = max(
        float((found["parameters"][n] - p).abs().max()) for n, p in alone["parameters"].items()
    )
    found["parameter_bytes"] = sum(4 * p.numel() for p in alone["parameters"].values())
    del found["parameters"]
    return found


_REFERENCES: dict[Any, Any] = {}


def seven_heads() -> Model:
    return Model(heads=7)


def four_experts() -> Model:
    return Model(experts=4)


JOBS: dict[str, tuple[Any, ShardingPlan]] = {
    "ddp": (Model, ShardingPlan(strategy="ddp", mesh={"data": 8})),
    "fsdp": (Model, ShardingPlan(strategy="fsdp", mesh={"fsdp": 8})),
    "hsdp": (Model, ShardingPlan(strategy="hsdp", mesh={"data": 2, "fsdp": 4})),
    "tp": (Model, ShardingPlan(strategy="tp", mesh={"data": 2, "tensor": 4})),
    "fsdp_tp": (Model, ShardingPlan(strategy="fsdp_tp", mesh={"fsdp": 4, "tensor": 2})),
    "sequence": (Model, ShardingPlan(strategy="sequence", mesh={"data": 2, "sequence": 4})),
    "expert": (four_experts, ShardingPlan(strategy="expert", mesh={"data": 2, "expert": 4})),
    "seven_heads": (seven_heads, ShardingPlan(strategy="tp", mesh={"data": 2, "tensor": 4})),
    "compiled": (Model, ShardingPlan(
        strategy="fsdp_tp", mesh={"fsdp": 4, "tensor": 2}, program="compile")),
    "placed_by_hand": (Model, ShardingPlan(
        strategy="fsdp_tp", mesh={"fsdp": 2, "tensor": 4},
        placements={"mlp.*.weight": [None, ["fsdp", "tensor"]]})),
    "stack_ddp": (Stack, ShardingPlan(strategy="ddp", mesh={"data": 8})),
    "stack_fsdp": (Stack, ShardingPlan(strategy="fsdp", mesh={"fsdp": 8})),
    "stack_fsdp_gathered_again": (
        Stack, ShardingPlan(strategy="fsdp", mesh={"fsdp": 8}, gather_again=True)),
}  # fmt: skip


def with_a_wrong_rule() -> dict[str, Any]:
    """FSDP by a rule that takes the mean over devices of gradients that are to be summed, of one
    parameter: the loss of one device must not come out."""
    right = Arrangement.at_birth

    def wrong(self: Arrangement, value: int, array: Any) -> Any:
        made = right(self, value, array)
        return made / 8 if self.names.get(value) == "self_attn.v_proj.weight" else made

    Arrangement.at_birth = wrong  # type: ignore[method-assign]
    try:
        CACHE.clear()
        plan = ShardingPlan(strategy="fsdp", mesh={"fsdp": 8}, placements={"norm.bias": []})
        return compare("wrong", Model, plan)
    finally:
        Arrangement.at_birth = right  # type: ignore[method-assign]


def lowered_for_a_tpu() -> str:
    """The step of a wider stack, over a mesh whose devices are not here, as base64."""
    plan = ShardingPlan(strategy="fsdp", mesh={"fsdp": 8})
    model = Stack(512).to("tpu")
    found = assign(plan, parameter_facts(model)).parameters
    placed = [
        Placed(name=name, tensor=p, own=found[name].own, use=found[name].use)
        for name, p in model.named_parameters()
    ]
    mesh = DeviceMesh.without_devices(plan.mesh)
    sharding = StepSharding(mesh, placed, lambda *_: (("fsdp",), ()), batch_axes=("fsdp",))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    whole = WholeStep(step, (optimizer,))
    x = torch.ones(64, 512, device="tpu")
    whole(x)
    return base64.b64encode(whole.lowered_over(sharding, "tpu", x)).decode()


if __name__ == "__main__":
    results: dict[str, Any] = {
        name: compare(name, make, plan) for name, (make, plan) in JOBS.items()
    }
    results["wrong"] = with_a_wrong_rule()
    results["lowered"] = lowered_for_a_tpu()
    print(json.dumps(results))
