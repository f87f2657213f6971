"""Published training steps: the rows of a YAML file, rebuilt, compiled and predicted."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tests.validation.dense_model import NAMES, DenseStep, lower
from tpu_perf.errors import ConfigError, TpuPerfError
from tpu_perf.predict.compile_cache import CompileCache
from tpu_perf.predict.compiled import NotCompiled, Request
from tpu_perf.predict.instruction_time import Constants
from tpu_perf.predict.libtpu import devices_of
from tpu_perf.predict.prediction import ProgramPrediction, predict_program
from tpu_perf.predict.targets import find_target

ROWS = Path(__file__).with_name("published.yaml")
#: Names that the attention kernels have in compiled programs.
_FORWARD, _BACKWARD = "splash_mha_fwd", "splash_mha_dkv"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(_Strict):
    """Dimensions of a dense decoder."""

    layers: int = Field(gt=0)
    width: int = Field(gt=0)
    heads: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    head_width: int = Field(gt=0)
    feed_forward: int = Field(gt=0)
    vocabulary: int = Field(gt=0)
    gated: bool = True


class Row(_Strict):
    """One published step: what was run where, and how long it took."""

    name: str
    model: str
    target: str
    sequence: int = Field(gt=0)
    batch: int = Field(gt=0)
    step_s: float = Field(gt=0)
    save: tuple[str, ...] = ()
    offload: tuple[str, ...] = ()
    one_hot_embedding: bool = True
    block_q: int = 2048
    block_kv: int = 2048
    flags: tuple[str, ...] = ()


class BlockCycles(_Strict):
    """Cycles of one attention block of one head."""

    forward: float = Field(gt=0)
    backward: float = Field(gt=0)


class Published(_Strict):
    """The whole file, recipes resolved."""

    models: dict[str, Model]
    flags: dict[str, str]
    attention_block_cycles: dict[str, dict[int, BlockCycles]] = {}
    rows: list[Row]

    def step(self, row: Row) -> DenseStep:
        return DenseStep(
            **self.models[row.model].model_dump(),
            **row.model_dump(include={"sequence", "batch", "save", "offload", "one_hot_embedding",
                                      "block_q", "block_kv"}),
        )  # fmt: skip

    def init_args(self, row: Row) -> str:
        """LIBTPU_INIT_ARGS of the row's recipe."""
        return " ".join(self.flags[group] for group in row.flags)

    def kernel_cycles(self, row: Row) -> dict[str, float]:
        """Cycles of one call of each attention kernel: those blocks that hold anything causal."""
        known = self.attention_block_cycles.get(find_target(row.target).generation.name, {})
        size = min(row.block_kv, row.sequence)
        cycles = known.get(size)
        if cycles is None or row.block_q != row.block_kv:
            return {}
        across = row.sequence // size
        blocks = self.models[row.model].heads * row.batch * across * (across + 1) / 2
        return {_FORWARD: cycles.forward * blocks, _BACKWARD: cycles.backward * blocks}


def load(path: Path = ROWS) -> Published:
    """Read a file of rows. Raises ConfigError, which names the row."""
    try:
        document = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except (OSError, YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: a mapping with models, flags and rows was expected")
    recipes = document.pop("recipes", None) or {}
    document["rows"] = [_resolved(row, recipes, path) for row in document.get("rows") or []]
    try:
        found = Published.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = [str(part) for part in first["loc"]]
        if where[0] == "rows" and len(where) > 1:
            where[1] = str(document["rows"][int(where[1])].get("name", where[1]))
        raise ConfigError(f"{path}: {' / '.join(where)}: {first['msg']}") from None
    for row in found.rows:
        _check(row, found, path)
    return found


def _resolved(row: Any, recipes: Mapping[str, Any], path: Path) -> Any:
    if not isinstance(row, dict):
        raise ConfigError(f"{path}: a row is a mapping, not {row!r}")
    merged = dict(row)
    recipe = merged.pop("recipe", None)
    if recipe is not None and recipe not in recipes:
        raise ConfigError(f"{path}: {row.get('name')}: no recipe is called {recipe!r}")
    more = merged.pop("more_flags", [])
    merged = {**recipes.get(recipe, {}), **merged}
    return {**merged, "flags": [*merged.get("flags", []), *more]}


def _check(row: Row, found: Published, path: Path) -> None:
    find_target(row.target)
    for kind, name, known in (
        ("model", [row.model], found.models),
        ("flags", row.flags, found.flags),
        ("kept value", (*row.save, *row.offload), NAMES),
    ):
        for one in name:
            if one not in known:
                there = ", ".join(known)
                raise ConfigError(f"{path}: {row.name}: no {kind} {one!r}; there are {there}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepComparison:
    """`error` is predicted over published, less one. `free_host_s` is the prediction with a host
    link that costs nothing: the other end of the range where it is unknown."""

    name: str
    published_s: float
    predicted_s: float | None
    free_host_s: float | None
    error: float | None
    prediction: ProgramPrediction | None = None
    reason: str | None = None


def validate_steps(
    cache: CompileCache, found: Published, only: Sequence[str] = ()
) -> list[StepComparison]:
    """Rebuild, compile and predict the rows, one after another."""
    return [_compare(cache, found, row) for row in found.rows if not only or row.name in only]


def _compare(cache: CompileCache, found: Published, row: Row) -> StepComparison:
    step, target = found.step(row), find_target(row.target)
    program = lower(step, devices_of(target.topology_name, target.topology_options))
    args = found.init_args(row)
    request = Request(name=row.name, stablehlo=program, target=target, init_args=args)
    (outcome,) = cache.compile_all([request])
    facts: dict[str, Any] = {"name": row.name, "published_s": row.step_s}
    nothing: dict[str, Any] = {"predicted_s": None, "free_host_s": None, "error": None}
    if isinstance(outcome, NotCompiled):
        return StepComparison(reason=outcome.reason, **facts, **nothing)
    cycles = found.kernel_cycles(row)
    try:
        predicted, free = (
            predict_program(
                outcome, analytic_flops=step.dot_flops(), kernel_cycles=cycles, init_args=args,
                constants=Constants(host_scale=scale),
            )
            for scale in (1.0, 0.0)
        )  # fmt: skip
    except TpuPerfError as error:
        return StepComparison(reason=str(error), **facts, **nothing)
    return StepComparison(
        predicted_s=predicted.seconds,
        free_host_s=free.seconds,
        error=predicted.seconds / row.step_s - 1,
        prediction=predicted,
        **facts,
    )


def steps_document(rows: Sequence[StepComparison]) -> dict[str, Any]:
    """The JSON document. No constant is fitted to a step yet, so nothing was held out."""
    errors = [abs(row.error) for row in rows if row.error is not None]
    return {
        "rows": [
            {"name": row.name, "published_s": row.published_s, "predicted_s": row.predicted_s,
             "free_host_s": row.free_host_s, "error": row.error, "reason": row.reason}
            for row in rows
        ],
        "held_out": {"rows": 0, "median_abs_error": None, "worst_abs_error": None},
        "uncalibrated": {
            "rows": len(errors),
            "median_abs_error": statistics.median(errors) if errors else None,
            "worst_abs_error": max(errors, default=None),
        },
        "programs": "plain JAX models of the recipes; not yet abstract execution of torch models",
    }  # fmt: skip
