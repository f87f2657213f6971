"""The models of a ladder file: every key, its type, its default and what it means."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, field_validator
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import ValidationInfo

Precision = Literal["float32", "bf16_autocast"]


class StrictModel(BaseModel):
    """Unknown keys and wrong types are errors; nothing is silently converted."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True
    )


def mistake(message: str) -> PydanticCustomError:
    """A validation error whose text is shown as it stands."""
    return PydanticCustomError("mistake", "{text}", {"text": message})


Fraction = Annotated[float, Field(ge=0, lt=1)]


class AdamW(StrictModel):
    """torch.optim.AdamW, unmodified."""

    name: Literal["adamw"]
    implementation: Literal["foreach", "fused", "for_loop"] = "foreach"
    """Which of torch's implementations runs."""
    lr: float = Field(default=1e-3, gt=0)
    """Learning rate."""
    betas: Annotated[tuple[Fraction, Fraction], Strict(False)] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    amsgrad: bool = False


class Sgd(StrictModel):
    """torch.optim.SGD, unmodified."""

    name: Literal["sgd"]
    implementation: Literal["foreach", "fused", "for_loop"] = "foreach"
    """Which of torch's implementations runs."""
    lr: float = Field(default=1e-2, gt=0)
    """Learning rate."""
    momentum: float = Field(default=0.0, ge=0)
    dampening: float = 0.0
    weight_decay: float = Field(default=0.0, ge=0)
    nesterov: bool = False

    @field_validator("nesterov")
    @classmethod
    def _nesterov_needs_momentum(cls, value: bool, info: ValidationInfo) -> bool:
        data = info.data
        if value and (not data.get("momentum", 1) or data.get("dampening", 0)):
            raise mistake("nesterov needs momentum above 0 and dampening 0")
        return value


Optimizer = Annotated[AdamW | Sgd, Field(discriminator="name")]


class Sampling(StrictModel):
    """How many steps are run, and when a rung counts as warm."""

    rounds: int = Field(default=10, ge=1)
    """Rounds of timed steps; rungs take turns, one round each."""
    steps_per_round: int = Field(default=5, ge=1)
    """Timed steps in a round."""
    quiet_steps: int = Field(default=3, ge=1)
    """Steps in a row without a compile before a rung can be warm."""
    max_warmup_steps: int = Field(default=40, ge=1)
    """A rung that has not settled by then is sampled anyway, with a warning."""
    settle_fraction: float = Field(default=0.1, gt=0, lt=1)
    """Relative change of the running median that counts as settled."""
    numerics_steps: int = Field(default=5, ge=0)
    """First steps whose loss and gradient norm are compared with torch on the CPU."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Wall clock that one rung may use, warm-up included."""

    @field_validator("max_warmup_steps")
    @classmethod
    def _room_to_settle(cls, value: int, info: ValidationInfo) -> int:
        quiet = info.data.get("quiet_steps")
        if quiet is not None and value < 2 * quiet:
            raise mistake(
                f"must be at least {2 * quiet}: two windows of quiet_steps ({quiet}) are compared"
            )
        return value


class TorchTpuSettings(StrictModel):
    """How Google's TorchTPU is run."""

    python: str | None = None
    """The interpreter that has it; by default the one `tpu-perf doctor --build torch_tpu` made."""
    device: Literal["tpu", "cpu-plugin"] | None = None
    """A real TPU, or its wheel over a PJRT plugin for the CPU; by default what there is."""


class EngineSettings(StrictModel):
    """Settings of engines, by their names."""

    torch_tpu: TorchTpuSettings = Field(default_factory=TorchTpuSettings)


class RungEntry(StrictModel):
    """One rung: a name, or a mapping that changes what the ladder sets for all."""

    rung: str = ""
    """Which rung this is."""
    name: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]*)?$")
    """What this row is called; by default the rung's name."""
    engine: str | None = None
    """Another engine than the rung's own."""
    precision: Precision | None = None
    compiler_options: dict[str, Any] | None = None
    """Options for the compiler, over the ladder's."""
    optimizer: dict[str, Any] | None = None
    """Changes to the ladder's optimizer."""
    workload: dict[str, Any] | None = None
    """Changes to the ladder's workload parameters."""
    strategy: str | None = None
    """Rung `shard`: how the job is spread over the devices of the mesh."""
    mesh: dict[str, Annotated[int, Field(ge=1)]] | None = None
    """Rung `shard`: devices along each axis, the outermost first."""
    placements: dict[str, list[str | list[str] | None]] = Field(default_factory=dict)
    """Rung `shard`: mesh axes of each dimension of parameters, by a pattern of their names, over
    the strategy's own rules."""
    gather_again: bool = False
    """Rung `shard`: gather parameters split along fsdp once more for the backward pass."""
    program: Literal["whole_step", "compile"] | None = None
    """Rung `shard`: what becomes a program over the mesh, the whole step unless said otherwise."""

    @property
    def label(self) -> str:
        return self.name or self.rung


def entry_from_name(value: Any) -> Any:
    """`strict` is short for `{rung: strict}`, and `{name: strict}` for both."""
    if isinstance(value, str):
        return {"rung": value}
    if isinstance(value, dict) and "rung" not in value and "name" in value:
        return {"rung": value["name"], **value}
    return value


class LadderFile(StrictModel):
    """A ladder: one job, and the ways of running it that are compared."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """Names the run directory and the report."""
    workload: Any
    """What is run."""
    optimizer: Optimizer = Field(default_factory=lambda: AdamW(name="adamw"))
    """The optimizer of every rung."""
    precision: Precision = "float32"
    """float32, or bfloat16 under autocast."""
    rungs: list[Annotated[RungEntry, BeforeValidator(entry_from_name)]] = Field(min_length=1)
    """The rungs, in the order in which they are shown."""
    engine: str | None = None
    """The engine of every rung that names none and is not one of torch's own on the CPU."""
    engines: EngineSettings = Field(default_factory=EngineSettings)
    """Settings of engines."""
    baseline: str | None = None
    """The rung that speed-ups refer to; by default the first `strict`, else the first."""
    compiler_options: dict[str, Any] = Field(default_factory=dict)
    """Options for the compiler."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seeds parameters, data order and dropout."""
    sampling: Sampling = Field(default_factory=lambda: Sampling())
    cache_dir: str | None = Field(default_factory=lambda: default_cache_dir())
    """Directory tier of the program cache; null switches it off."""
    cpu_fallback: bool = False
    """Let ops without a lowering run on the host instead of failing."""
    threads: int | None = Field(default=None, ge=1)
    """Host cores torch and XLA may use; null leaves it to them."""

    @field_validator("cache_dir")
    @classmethod
    def _expand_home(cls, value: str | None) -> str | None:
        return None if value is None else os.path.abspath(os.path.expanduser(value))


def default_cache_dir() -> str:
    """Where compiled programs are kept unless the ladder says otherwise."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return str(Path(base) / "tpu_perf" / "programs")
