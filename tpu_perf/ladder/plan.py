"""From a ladder file to one plan per rung, in the order of the file."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from pathlib import Path

import tpu_perf.engines
from tpu_perf.config.catalogue import Catalogue
from tpu_perf.config.load import LadderConfig, RungConfig, load_ladder
from tpu_perf.config.models import RungEntry
from tpu_perf.config.problems import did_you_mean
from tpu_perf.engines.interface import ENGINES
from tpu_perf.errors import ConfigError
from tpu_perf.record.plan import OptimizerPlan, Plan, SamplingPlan, ShardingPlan, WorkloadPlan
from tpu_perf.rungs.interface import RUNGS
from tpu_perf.sharding.strategies import STRATEGIES
from tpu_perf.workloads.interface import WORKLOADS


def catalogue() -> Catalogue:
    """What this installation offers. Engines are named by their files: importing one loads
    torch or jax, which reading a ladder file must not."""
    return Catalogue(
        rungs={name: rung.summary for name, rung in RUNGS.items()},
        engines=tuple(
            module.name
            for module in pkgutil.iter_modules(tpu_perf.engines.__path__)
            if module.name != "interface"
        ),
        workloads={kind: entry.parameters for kind, entry in WORKLOADS.items()},
        strategies=STRATEGIES,
        placed_rungs=tuple(name for name, rung in RUNGS.items() if rung.over_mesh),
    )


def read_ladder(path: Path, overrides: Sequence[str] = ()) -> LadderConfig:
    """A validated ladder file. Raises ConfigError."""
    return load_ladder(path, catalogue(), overrides)


def plan_ladder(
    config: LadderConfig, only: Sequence[str] = (), skip: Sequence[str] = ()
) -> tuple[Plan, ...]:
    """The plans of the rungs that were asked for. Raises ConfigError for unknown names."""
    names = [rung.name for rung in config.rungs]
    for option, asked in (("--only", only), ("--skip", skip)):
        for name in asked:
            if name not in names:
                raise ConfigError(
                    f"{option} {name}: this ladder has no such rung{did_you_mean(name, names)}"
                )
    chosen = [
        rung for rung in config.rungs if (not only or rung.name in only) and rung.name not in skip
    ]
    if not chosen:
        raise ConfigError("--only and --skip leave no rung to run")
    return tuple(_plan(config, rung) for rung in chosen)


def _plan(config: LadderConfig, rung: RungConfig) -> Plan:
    file, entry = config.file, rung.entry
    workload, optimizer = dict(rung.workload), dict(rung.optimizer)
    common = Plan(
        ladder=file.name,
        rung=rung.name,
        workload=WorkloadPlan(kind=workload.pop("kind"), params=workload),
        optimizer=OptimizerPlan(
            name=optimizer.pop("name"),
            implementation=optimizer.pop("implementation"),
            params=optimizer,
        ),
        precision=entry.precision or file.precision,
        compiler_options={**file.compiler_options, **(entry.compiler_options or {})},
        sampling=SamplingPlan(**file.sampling.model_dump()),
        seed=file.seed,
        cache_dir=file.cache_dir,
        cpu_fallback=file.cpu_fallback,
        threads=file.threads,
        sharding=_sharding(entry),
    )
    plan = RUNGS.get(entry.rung).change(common)
    engine = entry.engine or (file.engine if plan.engine != "cpu" else None)
    if engine is not None:
        plan = _on_engine(plan, engine)
    settings = getattr(file.engines, plan.engine, None)
    if settings is not None:
        plan = plan.with_changes(engine_options=settings.model_dump(exclude_none=True))
    return plan


def _sharding(entry: RungEntry) -> ShardingPlan | None:
    if entry.strategy is None or entry.mesh is None:
        return None
    return ShardingPlan(
        strategy=entry.strategy,
        mesh=entry.mesh,
        placements=entry.placements,
        gather_again=entry.gather_again,
        program=entry.program or "whole_step",
    )


def _on_engine(plan: Plan, engine: str) -> Plan:
    """The plan on another engine than its rung's, where that engine knows the rung's mode."""
    modes = getattr(ENGINES.get(engine), "modes", (plan.mode,))
    if plan.mode not in modes:
        raise ConfigError(
            f"rung {plan.rung}: the engine {engine} has no mode {plan.mode!r}; "
            f"it has {', '.join(modes)}"
        )
    return plan.with_changes(engine=engine)
