"""How long one instruction keeps its lane busy, from the best source there is.

The order is the one that experiments found sound: cycles or bytes for matrix multiplications,
whichever is longer; cycles of one block times blocks for kernels; bytes for everything else;
links for collectives. Every answer says which source it used.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tpu_perf.hlo.category import MATMULS
from tpu_perf.hlo.device_groups import collective_kind
from tpu_perf.hlo.module import Instruction
from tpu_perf.hlo.traffic import MOVES_NOTHING, traffic_of
from tpu_perf.hlo.work import work_of
from tpu_perf.predict.collectives import DCN_BYTES_PER_S, collective_time
from tpu_perf.predict.targets import Target

Unit = Literal["mxu", "hbm", "vmem", "ici", "ici back", "dcn", "host", "scalar", "none"]
Queue = Literal["core", "dma", "host link", "ici", "ici back", "dcn"]
HOST_MEMORY = 5  # S(5) in HLO text
#: Work of the scalar unit up to so many bytes.
_SCALAR_BYTES = 1024
_FREE = MOVES_NOTHING | {"partition-id", "replica-id", "custom-call-done"}
_FREE_CALLS = frozenset({"AllocateBuffer", "PrepareAsyncCallStart", "PrepareAsyncCallDone"})
_KERNEL = "tpu_custom_call"  # Mosaic, which is what Pallas becomes
#: Cycles that libtpu estimates for the smallest matmul (8x128x128), by generation: its guess of
#: what starting one costs. What HBM copies were seen to cost beside their bytes takes its place.
_EMPTY_DOT_CYCLES = {"v4": 1582, "v5e": 3880, "v5p": 4476, "v6e": 4364, "tpu7x": 5636}


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What a calibration may change; the defaults were fitted to no step.

    `hbm_efficiency` and `launch_s`: t = bytes / (efficiency x peak) + launch, fitted to the copies
    of one tpu7x device. `vmem_bytes_per_cycle`: libtpu's static profile of a reduction on v6e.
    `mxu_scale` multiplies the compute time of matmuls, `ici_scale` the time of collectives,
    `kernel_scale` that of kernels. `kernel_efficiency` (of peak) stands in where a kernel's cycles
    are not known: seen between 0.16 and 0.5.
    """

    hbm_efficiency: float = 0.87
    launch_s: float = 1.5e-6
    vmem_bytes_per_cycle: float = 1500.0
    scalar_s: float = 2e-8
    mxu_scale: float = 1.0
    ici_scale: float = 1.0
    kernel_scale: float = 1.0
    kernel_efficiency: float = 0.25
    host_scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionTime:
    """`seconds` on `queue`; `unit` is what bounds them. `waits_for` names the start whose end this
    instruction waits for. FLOPs are those of matrix multiplications and kernels; bytes of HBM."""

    seconds: float
    queue: Queue = "core"
    unit: Unit = "none"
    source: str = "nothing to do"
    flops: float = 0.0
    hbm_bytes: float = 0.0
    waits_for: Instruction | None = None
    asynchronous: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The times of one compiled program's instructions.

    `kernel_cycles`: part of a kernel's name -> cycles of one call (one block's times its blocks),
    for Mosaic kernels; `llo_cycles` are of libtpu's static profile, by instruction.
    """

    target: Target
    partitions: int = 1
    order: Sequence[int] = ()
    constants: Constants = field(default_factory=Constants)
    kernel_cycles: Mapping[str, float] = field(default_factory=dict)
    llo_cycles: Mapping[str, int] = field(default_factory=dict)

    def of(self, one: Instruction) -> InstructionTime:
        """The time of an instruction. While, call and conditional take none themselves."""
        start = _awaited(one)
        if start is not None:
            return InstructionTime(seconds=0.0, waits_for=start, source="waits for its start")
        if one.opcode in _FREE or one.opcode == "send":  # its recv holds the cost of both
            return InstructionTime(seconds=0.0)
        if one.opcode == "recv" and self.target.slices > 1:
            return InstructionTime(
                seconds=one.shape.parts[0].nbytes / DCN_BYTES_PER_S,
                queue="dcn",
                unit="dcn",
                source="bytes between slices over the data-centre network",
                asynchronous=True,
            )
        if one.opcode == "custom-call":
            return self._custom_call(one)
        joined = _collective_inside(one)
        if joined is not None:
            return self._collective(one, *joined)
        traffic = _Bytes(one)
        flops = matmul_flops(one)
        if flops:
            return self._matmul(one, flops, traffic)
        return self._moves(one, traffic)

    def _matmul(self, one: Instruction, flops: float, traffic: _Bytes) -> InstructionTime:
        generation, constants = self.target.generation, self.constants
        config = one.backend_config
        noted = config.get("window_config", {}).get("estimated_cycles")
        floor = flops / generation.flops_per_cycle
        if noted is not None and float(noted) > 0:
            cycles = max(float(noted) - _EMPTY_DOT_CYCLES[generation.name], floor)
            source = "libtpu's cycles"
        else:
            cycles, source = floor / 0.83, "FLOPs at 83 % of peak (no cycles noted)"
        compute = constants.mxu_scale * cycles / generation.clock_hz
        # A fusion that carries an asynchronous collective on names the whole buffer it fills.
        hbm = 0.0 if "continuation_config" in config else traffic.hbm
        moving = self._hbm_s(hbm)
        launch = constants.launch_s if hbm else 0.0
        bound: Unit = "mxu" if compute >= moving else "hbm"
        return InstructionTime(
            seconds=launch + max(compute, moving),
            unit=bound,
            source=source if bound == "mxu" else "bytes over HBM bandwidth",
            flops=flops,
            hbm_bytes=hbm,
        )

    def _moves(self, one: Instruction, traffic: _Bytes) -> InstructionTime:
        generation, constants = self.target.generation, self.constants
        asynchronous = one.opcode.endswith("-start")
        if traffic.host:
            rate = generation.host_bytes_per_s
            return InstructionTime(
                seconds=constants.host_scale * traffic.host / rate + constants.launch_s,
                queue="host link",
                unit="host",
                source="bytes over the host link (assumed rate)",
                hbm_bytes=traffic.hbm,
                asynchronous=asynchronous,
            )
        if traffic.hbm > _SCALAR_BYTES:
            return InstructionTime(
                seconds=self._hbm_s(traffic.hbm) + constants.launch_s,
                queue="dma" if asynchronous else "core",
                unit="hbm",
                source=traffic.source,
                hbm_bytes=traffic.hbm,
                asynchronous=asynchronous,
            )
        if traffic.vmem > _SCALAR_BYTES:
            cycles = traffic.vmem / constants.vmem_bytes_per_cycle
            return InstructionTime(
                seconds=cycles / generation.clock_hz, unit="vmem", source="bytes within VMEM"
            )
        return InstructionTime(seconds=constants.scalar_s, unit="scalar", source="scalar unit")

    def _custom_call(self, call: Instruction) -> InstructionTime:
        generation, constants = self.target.generation, self.constants
        if call.proto.custom_call_target in _FREE_CALLS:
            return InstructionTime(seconds=0.0)
        flops = work_of(call).flops or 0.0
        named = _kernel_names(call) if self.kernel_cycles else ""
        cycles = next((n for part, n in self.kernel_cycles.items() if part in named), None)
        source = "cycles of one block times blocks"
        if cycles is None and call.name in self.llo_cycles:
            cycles = float(self.llo_cycles[call.name])
            source = "libtpu's static profile (grid not counted: a lower bound)"
        traffic = _Bytes(call)
        moving = self._hbm_s(traffic.hbm) + constants.launch_s
        if cycles is not None:
            compute = constants.kernel_scale * cycles / generation.clock_hz
        elif flops:
            compute = flops / (constants.kernel_efficiency * generation.peak_flops_per_s)
            source = f"its author's FLOPs at {constants.kernel_efficiency:.0%} of peak (assumed)"
        else:
            compute = 0.0
            if call.proto.custom_call_target == _KERNEL:
                traffic.source = "unknown kernel: bytes of its operands and results (a lower bound)"
        return InstructionTime(
            seconds=max(compute, moving),
            unit="mxu" if compute >= moving else "hbm",
            source=source if compute >= moving else traffic.source,
            flops=flops,
            hbm_bytes=traffic.hbm,
        )

    def _collective(self, one: Instruction, inner: Instruction, kind: str) -> InstructionTime:
        found = collective_time(inner, self.target, self.partitions, self.order, kind)
        asynchronous = one.opcode.endswith("-start") or "async-collective-start" in one.name
        return InstructionTime(
            seconds=self.constants.ici_scale * found.seconds,
            queue=found.queue,
            unit=found.queue,
            source=f"{kind} of {found.devices} devices: bytes over links, and latency",
            asynchronous=asynchronous,
        )

    def _hbm_s(self, nbytes: float) -> float:
        rate = self.constants.hbm_efficiency * self.target.generation.hbm_bytes_per_s
        return nbytes / rate


class _Bytes:
    """Bytes of an instruction by where they lie."""

    def __init__(self, one: Instruction) -> None:
        traffic = traffic_of(one)
        self.source = "bytes over HBM bandwidth"
        spaces = _touched_spaces(one)
        if traffic.read is None or traffic.written is None:
            self.hbm = sum(
                float(leaf.nbytes)
                for shape in (one.shape, *(operand.shape for operand in one.operands))
                for leaf in shape.leaves()
                if leaf.memory_space == 0
            )
            self.vmem = self.host = 0.0
            self.source = "bytes of all operands and results over HBM bandwidth"
            return
        elsewhere = traffic.elsewhere or 0.0
        self.hbm = traffic.read + traffic.written - elsewhere
        self.host = min(traffic.read, traffic.written) if HOST_MEMORY in spaces else 0.0
        self.vmem = 0.0 if self.host else elsewhere


def _touched_spaces(one: Instruction) -> set[int]:
    shapes = [one.shape, *(operand.shape for operand in one.operands)]
    return {leaf.memory_space for shape in shapes for leaf in shape.leaves()}


def matmul_flops(one: Instruction) -> float:
    """FLOPs of the matrix multiplications in one execution of an instruction, elementwise work
    left out."""
    inside = [one, *one.fused()]
    return float(sum(work_of(part).flops or 0.0 for part in inside if part.opcode in MATMULS))


def _collective_inside(one: Instruction) -> tuple[Instruction, str] | None:
    """The collective that an instruction is or holds, and its kind. An all-reduce fused with a
    slice is a reduce-scatter."""
    kind = collective_kind(one)
    if kind is not None:
        return one, kind
    if one.opcode not in ("fusion", "async-start"):
        return None
    parts = list(_within(one))
    for part in parts:
        kind = collective_kind(part)
        if kind is not None and not matmul_flops(one):
            scattered = kind == "all-reduce" and any("dynamic-slice" in p.opcode for p in parts)
            return part, "reduce-scatter" if scattered else kind
    return None


def _kernel_names(call: Instruction) -> str:
    """Where a kernel's names stand: the instruction, its path, and the Mosaic module it runs."""
    config = call.backend_config.get("custom_call_config")
    body = config.get("body", "") if isinstance(config, dict) else ""
    try:
        inside = base64.b64decode(body).decode("latin-1")
    except ValueError:
        inside = ""
    return f"{call.name} {call.op_name} {inside}"


def _within(one: Instruction) -> Iterator[Instruction]:
    """Instructions of the computations that an instruction calls, and of those they call."""
    for computation in one.called:
        for inner in computation.instructions:
            yield inner
            if inner.opcode in ("fusion", "call"):
                yield from _within(inner)


def _awaited(one: Instruction) -> Instruction | None:
    """The start of the asynchronous pair that an instruction ends."""
    if not one.operands or not (
        one.opcode.endswith("-done") or "async-collective-done" in one.name
    ):
        return None
    start = one.operands[0]
    while start.opcode in ("get-tuple-element", "bitcast", "async-update") and start.operands:
        start = start.operands[0]
    return start
