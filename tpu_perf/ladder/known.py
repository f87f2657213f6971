"""What is known before any rung runs: torch's own results, model FLOPs, the machine's peak."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpu_perf.ladder.failure import from_death, oom_kills
from tpu_perf.ladder.observer import Observer
from tpu_perf.ladder.peak import chip_peak
from tpu_perf.ladder.process import WorkerDied, WorkerProcess, WorkerTimeout
from tpu_perf.ladder.protocol import Message
from tpu_perf.ladder.reference import (
    FLOPS_CONVENTION,
    OWN_STREAMS,
    TOLERANCES,
    random_stream,
    reference_key,
)
from tpu_perf.record.plan import Plan

_NAME = "reference"


@dataclass(slots=True)
class Known:
    """Answers of the reference worker; `reasons` says why one is missing."""

    references: dict[str, Message] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    peaks: dict[str, Message] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    failed: str | None = None  # why the whole worker failed

    def facts_for(
        self, plan: Plan, device_kind: str
    ) -> tuple[dict[str, Any], dict[str, str], list[str]]:
        """(facts, notes by name, warnings) that go into this plan's run."""
        facts: dict[str, Any] = {"numerics_tolerance": TOLERANCES[plan.precision]}
        notes: dict[str, str] = {}
        key = reference_key(plan)
        reference = self.references.get(key)
        if reference is not None:
            facts |= {
                "reference_losses": tuple(reference["losses"]),
                "reference_grad_norms": tuple(reference["grad_norms"]),
                "model_flops_per_step": reference["model_flops_per_step"],
                "flops_convention": FLOPS_CONVENTION if reference["model_flops_per_step"] else None,
            }
            notes["reference"] = _describe(reference, plan)
        else:
            notes["reference"] = f"none: {self.reasons.get(key, 'it was not run')}"
        return facts | self._peak_for(plan, device_kind), notes, []

    def _peak_for(self, plan: Plan, device_kind: str) -> dict[str, Any]:
        if "TPU" in device_kind:
            chip = chip_peak(device_kind, plan.precision)
            if chip is None:
                return {}
            devices = 1 if plan.sharding is None else plan.sharding.devices
            return {
                "peak_flops_per_s": chip.flops_per_s * devices,
                "peak_source": chip.source + (f", {devices} devices" if devices > 1 else ""),
                "peak_provenance": chip.provenance,
            }
        measured = self.peaks.get(plan.precision)
        if measured is None or device_kind != "cpu":
            return {}  # no peak is known for this device: no MFU
        return {
            "peak_flops_per_s": measured["flops_per_s"],
            "peak_source": measured["source"],
            "peak_provenance": "measured",
        }


def _describe(reference: Message, plan: Plan) -> str:
    whose = OWN_STREAMS.get(random_stream(plan))
    if reference["draws"] and whose is not None:
        return f"none: {whose} draws random numbers of its own, so losses differ by chance"
    told = f"eager torch on the CPU, {plan.precision}, same optimizer"
    if reference["draws"] and random_stream(plan) == "device":
        return f"{told}, made to draw the device's random numbers"
    return told


class ReferenceRun:
    """One worker for the peaks of these plans' precisions and for every distinct reference.

    It starts by importing, which may go on beside another set-up, and measures when it is asked
    for its answer. A reference that fails is told and does not stop the ladder.
    """

    def __init__(self, plans: Sequence[Plan], log: Path) -> None:
        self._distinct = {reference_key(plan): plan for plan in plans}
        self._killed_before = oom_kills()
        threads = plans[0].threads if plans else None
        self._worker = WorkerProcess(log, threads)
        self._worker.send(
            job="reference",
            precisions=sorted({plan.precision for plan in plans}),
            plans=[plan.to_json() for plan in self._distinct.values()],
            threads=threads,
        )

    def answer(self, observer: Observer) -> Known:
        """Measure now; nothing else should be at work. Ends the worker."""
        known = Known()
        timeout_s = sum(plan.sampling.timeout_s for plan in self._distinct.values())
        try:
            self._worker.send(command="measure")
            _listen(self._worker, known, timeout_s, observer)
        except WorkerTimeout:
            _missing(known, self._distinct, "torch on the CPU did not finish in time")
        except WorkerDied as death:
            no_memory = oom_kills() > self._killed_before
            text = self._worker.log_text()
            failure = from_death(death.exit_code, "the reference run", no_memory, text)
            _missing(known, self._distinct, known.failed or failure.reason)
        finally:
            self.stop()
        reasons = known.reasons.values()
        known.warnings += [f"no reference to compare with: {why}" for why in reasons]
        return known

    def stop(self) -> None:
        self._worker.kill()


def _listen(worker: WorkerProcess, known: Known, timeout_s: float, observer: Observer) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        message = worker.receive(max(0.0, deadline - time.monotonic()))
        kind = message["kind"]
        if kind == "finished":
            return
        if kind == "progress":
            observer.phase(_NAME, message["phase"])
        elif kind == "peak":
            known.peaks[message["precision"]] = message
        elif kind == "reference":
            known.references[message["key"]] = message
        elif kind == "no_reference":
            known.reasons[message["key"]] = message["reason"]
        elif kind == "failed":
            known.failed = message["reason"]


def _missing(known: Known, distinct: dict[str, Plan], reason: str) -> None:
    for key in distinct:
        if key not in known.references:
            known.reasons.setdefault(key, reason)
