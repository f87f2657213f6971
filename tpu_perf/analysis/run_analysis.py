"""Everything `tpu-perf analyze` says of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tpu_perf.analysis import quantities
from tpu_perf.analysis.counted_steps import tables_to_analyse
from tpu_perf.analysis.device_idle import Idle, idle
from tpu_perf.analysis.hbm_traffic import Traffic, traffic
from tpu_perf.analysis.host_syncs import HostSync, host_syncs
from tpu_perf.analysis.measured_ops import MeasuredOps, measured_ops
from tpu_perf.analysis.memory_peak import MemoryPeak, memory_peak
from tpu_perf.analysis.model_flops import mfu
from tpu_perf.analysis.op_flops.formulas import Attention
from tpu_perf.analysis.op_table import By, OpTable, op_table
from tpu_perf.analysis.recompiles import Recompile, recompiles
from tpu_perf.analysis.roofline import Machine, machine_of
from tpu_perf.analysis.run_details import RunDetails
from tpu_perf.analysis.step_time import step_time
from tpu_perf.analysis.step_variation import Variation, variation
from tpu_perf.errors import StoredRunError
from tpu_perf.record.metric import Metric
from tpu_perf.record.run import Facts
from tpu_perf.record.store import StoredRun


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAnalysis:
    """What steady steps did. `step` holds the figures of a whole step by name; `more` the same
    steps in the other groupings that were asked for; `counted` names FLOPs that another counter
    found for the run, for comparison. `unknown`: measure -> why ->
    executions a step. `notes`: conventions and assumptions. `warnings`: what to distrust."""

    stored: StoredRun
    attention: Attention
    step: Mapping[str, Metric]
    table: OpTable
    more: Mapping[By, OpTable]
    machine: Machine
    traffic: Traffic
    idle: Idle | None
    variation: Variation
    recompiles: tuple[Recompile, ...]
    syncs: tuple[HostSync, ...]
    memory: MemoryPeak
    unknown: Mapping[str, Mapping[str, float]]
    flops_sources: Mapping[str, float]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def analyse(
    stored: StoredRun, by: By, attention: Attention, more: Sequence[By] = ()
) -> RunAnalysis:
    """Analyse a run's steady steps, grouped `by` one thing and by `more`; of captures made under
    a profiler, the steps it saw. Raises StoredRunError for a run that has none."""
    tables, not_steady = tables_to_analyse(stored)
    details = RunDetails(stored)
    if tables.timed.empty:
        status = stored.run.reason or "it has no timed step that was free of compiles"
        raise StoredRunError(
            f"{stored.directory} has no steady steps to analyse: {status}",
            hint="`tpu-perf show` says what a ladder's rungs came to",
        )
    facts, sharding = stored.run.facts, stored.run.plan.sharding
    step = step_time(tables)
    measured = measured_ops(tables, details, attention)
    machine = machine_of(facts, stored.run.environment)

    def grouped(by: By) -> OpTable:
        return op_table(by, tables, details, measured, step.value, machine)

    table = grouped(by)
    return RunAnalysis(
        stored=stored,
        attention=attention,
        step=_of_step(table, facts, step, 1 if sharding is None else sharding.devices),
        table=table,
        more={other: grouped(other) for other in more},
        machine=machine,
        traffic=traffic(tables, details, measured),
        idle=idle(tables, details),
        variation=variation(tables),
        recompiles=recompiles(tables),
        syncs=host_syncs(tables, details),
        memory=memory_peak(tables, details),
        unknown=measured.unknown,
        flops_sources=measured.flops_sources,
        notes=measured.notes,
        warnings=(
            *([not_steady] if not_steady else []),
            *_warnings(facts, details, measured, table),
        ),
    )


def _of_step(table: OpTable, facts: Facts, step: Metric, devices: int) -> dict[str, Metric]:
    total = table.total.measures
    model = total["model_flops"]
    if model.value == 0 and not table.total.measures["runs"].value:
        model = Metric.missing("FLOP", "no programs were executed in steady steps")
    executed = total["hardware_flops"]
    if executed.value is not None:  # a program over a mesh tells what one of its devices computes
        executed = replace(executed, value=executed.value * devices)
    return {
        "step_time": step,
        "device_time": total["device_time"],
        "host_time": total["host_time"],
        "model_flops": model,
        "hardware_flops": executed,
        "mfu": _utilisation(model, facts, step),
        "hfu": _utilisation(executed, facts, step),
        "reference_model_flops": _reference(facts),
    }


def _utilisation(flops: Metric, facts: Facts, step: Metric) -> Metric:
    """FLOPs / (step time x peak) by the rules of `model_flops.mfu`: refused above 1."""
    if flops.value is None:
        return Metric.missing("fraction", flops.reason or "its FLOPs are not known")
    return mfu(
        Facts(
            model_flops_per_step=flops.value,
            peak_flops_per_s=facts.peak_flops_per_s,
            peak_provenance=facts.peak_provenance,
        ),
        step,
    )


def _reference(facts: Facts) -> Metric:
    if facts.model_flops_per_step is None:
        return Metric.missing("FLOP", "the run's reference counted none")
    return Metric(value=facts.model_flops_per_step, unit="FLOP", provenance="derived")


def _warnings(
    facts: Facts, details: RunDetails, measured: MeasuredOps, table: OpTable
) -> list[str]:
    out = []
    if facts.dropped_events:
        out.append(
            f"{facts.dropped_events:,} events were dropped: counts, times and bytes are too low"
        )
    if not details.program_ops and not measured.rows.empty:
        out.append(
            "this run was recorded without details: which ops its programs hold, their lines and "
            "modules are not known"
        )
    elsewhere, busy = measured.unattributed_device_ns, 0.0
    if measured.device is not None:
        busy = measured.device.busy_ns
    if busy and elsewhere > 0.01 * busy:
        out.append(
            f"{quantities.percent(elsewhere / busy)} of the device time of profiled steps belongs "
            "to programs that steady steps do not execute"
        )
    step, device = table.total.measures, table.total.measures["device_time"].value
    share = step["share"].value
    if device is not None and share is not None and share > 1:
        out.append(
            "device time of profiled steps is longer than a steady step: the profiler slowed it "
            "down, or steps overlap"
        )
    return out
