"""The sharding strategies: which axes of a mesh each needs, and what each axis splits."""

from __future__ import annotations

from dataclasses import dataclass

#: The axes that a mesh can have, and what is split along each.
AXES: dict[str, str] = {
    "data": "the batch; parameters are copied",
    "fsdp": "the batch, parameters and optimizer state",
    "tensor": "heads and hidden units inside a layer",
    "sequence": "the positions of a batch",
    "expert": "the batch, and the experts of a layer",
}
#: Axes along which a batch is split on its first and on its second dimension.
BATCH_AXES, SEQUENCE_AXES = ("data", "fsdp", "expert"), ("sequence",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """`required` axes must be in the mesh, `optional` ones may be; no others."""

    name: str
    summary: str
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()

    @property
    def axes(self) -> tuple[str, ...]:
        return self.required + self.optional


_ALL = (
    Strategy(name="ddp", summary="every device has all parameters, gradients are summed",
             required=("data",)),
    Strategy(name="fsdp", summary="parameters and optimizer state split, gathered where used",
             required=("fsdp",)),
    Strategy(name="hsdp", summary="fsdp inside groups of devices, ddp across them",
             required=("data", "fsdp")),
    Strategy(name="tp", summary="heads and hidden units split, activations summed per block",
             required=("tensor",), optional=("data",)),
    Strategy(name="fsdp_tp", summary="tp among neighbours, fsdp across them",
             required=("fsdp", "tensor"), optional=("data",)),
    Strategy(name="sequence", summary="the positions of a batch split, keys and values gathered",
             required=("sequence",), optional=("data", "fsdp")),
    Strategy(name="expert", summary="experts split, tokens sent to them",
             required=("expert",), optional=("data", "fsdp")),
)  # fmt: skip
STRATEGIES: dict[str, Strategy] = {strategy.name: strategy for strategy in _ALL}
