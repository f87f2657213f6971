"""The watched run as events, steps and tables of the rung's run directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tpu_perf.engines.interface import StepRow
from tpu_perf.engines.torch_tpu.traced_run import Trace, TracedStep
from tpu_perf.record.eager_programs import Programs
from tpu_perf.record.events import Tier
from tpu_perf.recorder.packing import execute_event

if TYPE_CHECKING:
    import pyarrow as pa

    from tpu_perf.recorder import Recorder

_UNRESOLVED = -1


class Recording:
    """Numbers the programs of a trace and hands it over."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._programs = Programs()
        self._numbers: dict[str, int] = {}
        self._ops: dict[int, int] = {}
        for key, found in trace.programs.items():
            kind = None if found.kind == "batch" else found.kind
            program = self._programs.add(found.name, found.stablehlo, found.graph, kind)
            self._numbers[key] = program.number
            self._ops[program.number] = program.ops

    def deliver(self, first_index: int, recorder: Recorder) -> Sequence[StepRow]:
        """Give each batch to the recorder as a flush, an execution and, on a miss, nothing more:
        compile times are those of the measured process. Returns the rows of the steps."""
        rows = []
        for index, step in enumerate(self._trace.steps, first_index):
            for batch in step.batches:
                number = self._numbers.get(batch.program or "", _UNRESOLVED)
                tier = int(Tier.MEMORY if batch.hit else Tier.COMPILED)
                times = (batch.start_ns, batch.end_ns)
                recorder.execute(execute_event(*times, number, tier, index))
                if batch.reason is not None:
                    ops = self._ops.get(number) or -1
                    recorder.flush((*times, batch.reason, ops, number, index))
            rows.append(
                StepRow(
                    phase=step.phase,
                    start_ns=step.start_ns,
                    dispatched_ns=step.dispatched_ns,
                    end_ns=step.end_ns,
                    compiles=step.compiles,
                    loss=step.loss,
                    grad_norm=step.grad_norm,
                )
            )
        return rows

    def programs(self) -> pa.Table:
        return self._programs.table()

    def details(self) -> Mapping[str, pa.Table]:
        return self._programs.details()

    def write_programs(self, directory: Path) -> None:
        self._programs.write_files(directory)

    def notes(self) -> Mapping[str, str]:
        steady = [step for step in self._trace.steps if step.phase == "trace"]
        if not steady:
            return {"torch_tpu_trace": "no steady step was watched"}
        return {"torch_tpu_trace": _told(steady, self._trace.dropped)}


def _told(steps: Sequence[TracedStep], dropped: int) -> str:
    step = steps[-1]
    eager = [batch for batch in step.batches if batch.reason is not None]
    compiled = len(step.batches) - len(eager)
    unresolved = sum(batch.program is None for batch in step.batches)
    reasons = Counter(batch.reason for batch in eager)
    programs = len({batch.program for batch in step.batches if batch.program is not None})
    text = (
        f"events are of {len(steps)} steps in a process of its own with TORCH_TRACE, after the "
        f"timed ones' set-up; a step has {len(eager):,} batches "
        f"({', '.join(f'{reason} {count:,}' for reason, count in reasons.most_common())}) and "
        f"{compiled:,} compiled graphs, of {programs:,} programs; TorchTPU counts "
        f"{step.requests:,} cache requests; {unresolved:,} of {len(step.batches):,} executions "
        f"({unresolved / max(1, len(step.batches)):.0%}) could not be resolved to a program"
    )
    return text + (f"; {dropped:,} batches were dropped from its log" if dropped else "")
