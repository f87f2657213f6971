"""A whole training step as one program: forward, backward and an unmodified torch optimizer.

The step function runs once under recording, with no cut, and becomes one program that takes the
state (parameters, optimizer state) donated and the batch as arguments. When two recordings in a
row are the same in every respect, later steps run the program without running the Python.
Whatever differs from step to step (a learning rate, a shape, data uploaded inside the step) makes
the step be recorded again, which is slower but right; `why_recorded` says what it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import keystr, tree_flatten, tree_flatten_with_path, tree_unflatten

from tpu_perf.errors import WorkloadError
from tpu_perf.runtime.buffers import Buffer, Spec, buffer_of, wrap
from tpu_perf.runtime.forking import refuse_in_child
from tpu_perf.runtime.jax_private import put
from tpu_perf.runtime.mesh import place
from tpu_perf.runtime.modes import STATE, EagerMode
from tpu_perf.runtime.packed_step import PackedStep
from tpu_perf.runtime.program_cache import Program, user_line
from tpu_perf.runtime.replaying import pack
from tpu_perf.runtime.segment import Segment, Work, flush_all, set_current_segment
from tpu_perf.runtime.step_sharding import Arrangement, StepSharding
from tpu_perf.runtime.torch_private import compiling_flag_set
from tpu_perf.runtime.transfers import to_device, to_host_array

#: Uploads of the recording in progress: (buffer, CPU tensor).
_uploads: list[tuple[Buffer, torch.Tensor]] = []


def note_upload(source: torch.Tensor, target: torch.Tensor) -> None:
    """Called by the copy kernel while a step is recorded."""
    _uploads.append((buffer_of(target), source))


def refuse_read() -> None:
    """Called when the step reads a value on the host, which one program cannot wait for."""
    raise WorkloadError(
        f"the step reads a value of the device on the host at {user_line()}, so it cannot be one "
        "program",
        hint="move .item(), .cpu(), print or the if on a tensor out of the step, or use the "
        "defer_and_fuse or compile rung",
    )


@contextmanager
def _recording(segment: Segment) -> Iterator[None]:
    flush_all("unknown")
    before_mode, before_segment = STATE.mode, set_current_segment(segment)
    multithreading = torch._C._is_multithreading_enabled()
    torch._C._set_multithreading_enabled(False)
    STATE.mode, STATE.capturing = EagerMode.DEFER_AND_FUSE, True
    _uploads.clear()
    try:
        with compiling_flag_set():
            yield
    finally:
        STATE.mode, STATE.capturing = before_mode, False
        set_current_segment(before_segment)
        torch._C._set_multithreading_enabled(multithreading)


class _Recording:
    """One recorded step: its work, and where every input of the program comes from."""

    def __init__(self, work: Work, leaves: list[Any], outputs: list[Any], spec: Any) -> None:
        self.work = work
        self.program_key = work.key()
        self.numbers = list(work.numbers)
        self.output_spec = spec
        arguments = {id(b): i for i, b in enumerate(_buffers_of(leaves))}
        uploads = {id(b): source for b, source in _uploads}
        hosts = {id(leaf): i for i, leaf in enumerate(leaves)}
        self.sources: list[tuple[str, Any]] = []
        for array, holder in zip(work.inputs, work.input_buffers, strict=True):
            source = uploads.get(id(holder))
            if id(holder) in arguments:
                self.sources.append(("argument", arguments[id(holder)]))
            elif source is not None and id(source) in hosts:
                self.sources.append(("host argument", hosts[id(source)]))
            elif source is not None:
                digest = hashlib.sha256(to_host_array(source).tobytes()).hexdigest()
                self.sources.append(("constant", (digest, array)))
            else:
                self.sources.append(("state", holder))
        result_of = {id(buffer): i for i, buffer in enumerate(work.live)}
        self.results = [
            result_of.get(id(buffer_of(o))) if isinstance(o, torch.Tensor) else None
            for o in outputs
        ]
        self.outputs = outputs

    @property
    def returned(self) -> set[int]:
        """Positions in the work's wanted values of those that the step returns."""
        return {i for i in self.results if i is not None}

    def differs_from(self, other: _Recording) -> str | None:
        """Why this step could not stand for the other, None if it can."""
        if self.program_key != other.program_key:
            return "its ops differ from those of the step before"
        if self.numbers != other.numbers:
            at = next(i for i, (a, b) in enumerate(zip(self.numbers, other.numbers, strict=True))
                      if a != b)  # fmt: skip
            with_numbers = [plan for plan, _, _ in self.work.nodes if plan.number_kinds]
            return (f"a Python number changes from step to step: {with_numbers[at].op} got "
                    f"{other.numbers[at]}, then {self.numbers[at]}")  # fmt: skip
        for mine, its in zip(self.sources, other.sources, strict=True):
            if mine[0] != its[0]:
                return "its inputs come from elsewhere than in the step before"
            if mine[0] == "state" and mine[1] is not its[1]:
                return "it reads tensors made anew by the step before"
            if mine[0] == "constant" and mine[1][0] != its[1][0]:
                return "it uploads other data in each step; pass the data as an argument"
        return None


def _argument_names(args: Any) -> dict[int, str]:
    """What the step's arguments are called, by the ids of the buffers that hold them."""
    names: dict[int, str] = {}
    uploaded = {id(source): buffer for buffer, source in _uploads}
    for path, leaf in tree_flatten_with_path(args)[0]:
        if isinstance(leaf, torch.Tensor):
            buffer = buffer_of(leaf) if leaf.device.type == "tpu" else uploaded.get(id(leaf))
            names[id(buffer)] = keystr(path[1:]).strip("[']") or "the batch"
    return names


def _buffers_of(leaves: list[Any]) -> list[Buffer]:
    return [
        buffer_of(leaf)
        for leaf in leaves
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "tpu"
    ]


class WholeStep:
    """`step(*args)` as one program. `optimizers` are made capturable, so that their bias
    corrections are computed on the device instead of changing Python numbers. With `sharding` the
    program runs on all devices of its mesh."""

    def __init__(
        self, step: Callable[..., Any], optimizers: tuple[torch.optim.Optimizer, ...] = (),
        sharding: StepSharding | None = None,
    ) -> None:  # fmt: skip
        self.step = step
        self.optimizers = optimizers
        self.sharding = sharding
        self.notes: list[str] = []
        self.replays = 0
        self.recordings = 0
        self.why_recorded: str | None = None
        self._last: _Recording | None = None
        self._guard: Any = None
        self._replay: _Replay | None = None
        self._drops_gradients = False
        for optimizer in optimizers:
            self.notes += make_capturable(optimizer)

    def __call__(self, *args: Any) -> Any:
        refuse_in_child()
        leaves, _ = tree_flatten(args)
        guard = self._guard_of(leaves)
        if self._replay is not None and guard == self._guard:
            self.replays += 1
            return self._replay.run(leaves)
        return self._record(args, leaves, guard)

    def lowered_over(self, sharding: StepSharding, platform: str, *args: Any) -> bytes:
        """Run one step here, and give it as StableHLO (MLIR bytecode, shardings included) for a
        mesh whose devices need not be here: `DeviceMesh.without_devices`. The second step of a
        training loop is the first that is like all later ones."""
        self._guard = self._replay = None
        _, recording, arrangement = self._captured(args, tree_flatten(args)[0], sharding)
        self._last = recording
        code = PackedStep(recording.work, recording.returned, arrangement).stablehlo(platform)
        here = PackedStep(recording.work, recording.returned)
        here.run_once(here.program())
        return code

    def _guard_of(self, leaves: list[Any]) -> Any:
        shapes = [
            (leaf.shape, leaf.dtype, leaf.device.type) if isinstance(leaf, torch.Tensor) else leaf
            for leaf in leaves
        ]
        hyper = [
            value
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for value in group.values()
            if isinstance(value, (float, int, tuple))
        ]
        return (shapes, hyper)

    def _captured(
        self, args: Any, leaves: list[Any], sharding: StepSharding | None
    ) -> tuple[Any, _Recording, Arrangement | None]:
        """Run the step's Python: its result, what it recorded, and where that lies on a mesh."""
        self.recordings += 1
        before_gradients = [buffer_of(p.grad) for p in self._parameters() if p.grad is not None]
        segment = Segment()
        segment.cuts_on_repeats = False
        marking = (
            nullcontext() if sharding is None
            else sharding.recording(segment, self.optimizers)
        )  # fmt: skip
        with _recording(segment), marking:
            result = self.step(*args)
        outputs, spec = tree_flatten(result)
        self._let_gradients_go(segment, before_gradients)
        work = segment.take_work()
        recording = _Recording(work, leaves, outputs, spec)
        if sharding is None:
            return result, recording, None
        names = _argument_names(args)
        return result, recording, sharding.arrange(work, self.optimizers, names)

    def _record(self, args: Any, leaves: list[Any], guard: Any) -> Any:
        result, recording, arrangement = self._captured(args, leaves, self.sharding)
        packed = PackedStep(recording.work, recording.returned, arrangement)
        program = packed.program()
        packed.run_once(program)
        before = self._last
        self._last = recording
        self._replay = None
        if before is None or guard != self._guard:
            self.why_recorded = "first step" if before is None else "shapes or settings changed"
        else:
            self.why_recorded = recording.differs_from(before)
            if self.why_recorded is None:
                self._replay = _Replay(recording, packed, program)
        self._guard = guard
        return result

    def _parameters(self) -> list[torch.Tensor]:
        return [p for o in self.optimizers for group in o.param_groups for p in group["params"]]

    def _let_gradients_go(self, segment: Segment, before: list[Buffer]) -> None:
        """Gradients that the next step does not read are not brought out of the program: they
        would double what it writes. Whether it reads them shows in the second recording."""
        if before and not self._drops_gradients:
            read = {id(buffer) for buffer in segment.input_buffers}
            self._drops_gradients = not any(id(buffer) in read for buffer in before)
            if self._drops_gradients:
                self.notes.append(
                    "gradients live inside the step: p.grad is None after it, as no step reads it"
                )
        if self._drops_gradients:
            for parameter in self._parameters():
                parameter.grad = None


class _Replay:
    """Runs the program of a recording on the state as it is now."""

    def __init__(self, recording: _Recording, packed: PackedStep, program: Program) -> None:
        work = recording.work
        self.call = program.run
        self.pack = packed.pack if packed.packed_in else None
        self.sources = [recording.sources[i] for i in packed.inputs]
        self.state = [s[1] if s[0] == "state" else None for s in self.sources]
        placed = program.placement
        self.places: Sequence[Any] | None = None if placed is None else placed.inputs
        numbers = pack(recording.numbers, [])
        count = len(packed.inputs)
        self.numbers = [
            put(n) if placed is None else place(n, placed.inputs[count + k])
            for k, n in enumerate(numbers)
        ]
        self.draws = [draws for _, _, draws in work.draws]
        returned = recording.returned
        self.fills = [(k, work.live[j]) for k, j in enumerate(packed.outputs) if j not in returned]
        at = {j: k for k, j in enumerate(packed.outputs)}
        self.results = [None if i is None else at[i] for i in recording.results]
        self.outputs = recording.outputs
        self.spec = recording.output_spec
        self.specs: list[Spec] = [work.live[j].spec for j in packed.outputs]
        # Returned tensors belong to the user: later steps return new ones.
        self.views = [
            (tuple(o.shape), tuple(o.stride()), o.storage_offset())
            if isinstance(o, torch.Tensor) else None
            for o in recording.outputs
        ]  # fmt: skip

    def run(self, leaves: list[Any]) -> Any:
        arguments = [
            b.array if b is not None and b.segment is None and b.array is not None
            else self._placed_argument(i, leaves)
            for i, b in enumerate(self.state)
        ]  # fmt: skip
        pack = self.pack
        if pack is not None:
            arguments.append(pack.take())
        arguments += self.numbers
        if self.draws:
            words = [word for draws in self.draws for word in draws.take()]
            arguments.append(np.array(words, np.int64))
        outs = self.call(*arguments)
        for i, buffer in self.fills:
            buffer.array = outs[i]  # counted and unshared since the recording
            buffer.segment = None
        if pack is not None:
            pack.hold(outs[-1])
        results = []
        for position, output, view in zip(self.results, self.outputs, self.views, strict=True):
            if position is None or view is None:
                results.append(output)
                continue
            tensor = wrap(outs[position], self.specs[position])
            if view[0] != self.specs[position].shape or view[2]:
                tensor = tensor.as_strided(*view)
            results.append(tensor)
        return tree_unflatten(results, self.spec)

    def _placed_argument(self, index: int, leaves: list[Any]) -> Any:
        array = self._argument(index, leaves)
        return array if self.places is None else place(array, self.places[index])

    def _argument(self, index: int, leaves: list[Any]) -> Any:
        kind, what = self.sources[index]
        if kind == "argument":
            device_leaves = [
                leaf for leaf in leaves
                if isinstance(leaf, torch.Tensor) and leaf.device.type == "tpu"
            ]  # fmt: skip
            return buffer_of(device_leaves[what]).ready("unknown")
        if kind == "host argument":
            return to_device(leaves[what])
        if kind == "constant":
            return what[1]
        return what.ready("unknown")


def make_capturable(optimizer: torch.optim.Optimizer) -> list[str]:
    """Switch a torch optimizer to its own capturable form, where it has one; says what changed."""
    notes = []
    for group in optimizer.param_groups:
        if "capturable" in group and not group["capturable"] and not group.get("fused"):
            group["capturable"] = True
            notes.append(
                f"{type(optimizer).__name__} runs with capturable=True: its step counts and bias "
                "corrections are computed on the device"
            )
    for state in optimizer.state.values():
        step = state.get("step")
        if isinstance(step, torch.Tensor) and step.device.type == "cpu":
            state["step"] = step.to("tpu")
    return list(dict.fromkeys(notes))
