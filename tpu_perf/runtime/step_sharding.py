"""How everything that a whole training step touches lies on a mesh.

Parameters lie as they are told; optimizer state and gradients follow their parameter; the batch is
split by rows; all else is copied. Inside the program a parameter is gathered where forward and
backward use it, and a gradient is brought to its parameter's split where it is made: without
these two the partitioner improvises (it gathers activations instead of weights).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import torch
from jax import lax

from tpu_perf.hlo.collectives import GRADIENT_SCOPE, USE_SCOPE
from tpu_perf.record.details import PLACEMENT_COLUMNS
from tpu_perf.record.plan import Dims
from tpu_perf.record.store import table_of_rows
from tpu_perf.runtime.buffers import Buffer, buffer_of
from tpu_perf.runtime.jax_private import Placement
from tpu_perf.runtime.memory import MEMORY
from tpu_perf.runtime.mesh import DeviceMesh, place
from tpu_perf.runtime.segment import Segment, Work

if TYPE_CHECKING:
    import pyarrow as pa

_NEVER = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A parameter: how it lies, and how forward and backward want it."""

    name: str
    tensor: torch.Tensor
    own: Dims
    use: Dims


class StepSharding:
    """`batch(name, shape)` says how a tensor of the batch is split; `gather_again` whether the
    backward pass gathers parameters anew instead of keeping what forward gathered; `batch_axes`
    are the mesh axes along which gradients are summed."""

    def __init__(
        self, mesh: DeviceMesh, parameters: Sequence[Placed],
        batch: Callable[[str, tuple[int, ...]], Dims], gather_again: bool = False,
        batch_axes: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.mesh = mesh
        self.parameters = list(parameters)
        self.batch = batch
        self.gather_again = gather_again
        self.batch_axes = batch_axes
        self._marks = _Marks()

    def spread(self) -> None:
        """Bring the parameters to their places."""
        for one in self.parameters:
            self.put(one.tensor, one.own)

    def put(self, tensor: torch.Tensor, dims: Dims) -> None:
        """Bring a tensor of the device to its place on the mesh."""
        buffer = buffer_of(tensor)
        array = buffer.ready()
        dims = _in_storage_order(tensor, buffer, dims)
        buffer.array = None
        self.fill(buffer, place(array, self.mesh.sharding(dims)), dims)

    def fill(self, buffer: Buffer, array: jax.Array, dims: Dims) -> None:
        """Give a buffer its array; what it takes of one device's memory is counted."""
        nbytes = buffer.spec.nbytes // self.mesh.parts(dims)
        if buffer.counted != nbytes:
            if buffer.counted:
                MEMORY.release(buffer.counted, id(buffer))
            MEMORY.allocate(nbytes, id(buffer))
            buffer.counted = nbytes
        buffer.fill(array)

    @contextmanager
    def recording(
        self, segment: Segment, optimizers: Sequence[torch.optim.Optimizer]
    ) -> Iterator[None]:
        """Note where in the recording the backward pass and the optimizers begin."""
        marks = self._marks = _Marks()

        def optimizer_begins(*_: Any) -> None:
            marks.optimizer = min(marks.optimizer, len(segment.nodes))
            for one in self.parameters:
                gradient = one.tensor.grad
                if gradient is not None:
                    buffer = buffer_of(gradient)
                    if buffer.segment is segment:
                        dims = _in_storage_order(gradient, buffer, one.own)
                        marks.gradients[buffer.value] = dims
                        marks.names[buffer.value] = one.name

        handles = [o.register_step_pre_hook(optimizer_begins) for o in optimizers]
        run_backward = torch.autograd.backward

        def backward(*args: Any, **kwargs: Any) -> Any:
            marks.backward = min(marks.backward, len(segment.nodes))
            return run_backward(*args, **kwargs)

        torch.autograd.backward = backward
        try:
            yield
        finally:
            torch.autograd.backward = run_backward
            for handle in handles:
                handle.remove()

    def arrange(
        self, work: Work, optimizers: Sequence[torch.optim.Optimizer], batch: dict[int, str]
    ) -> Arrangement:
        """Places for a recorded step. `batch` names the buffers that are arguments of the step."""
        marks = self._marks
        known: dict[int, Dims] = {}
        uses: dict[int, Dims] = {}
        names = dict(marks.names)
        values = dict(zip(map(id, work.input_buffers), work.input_values, strict=True))
        for one in self.parameters:
            buffer = buffer_of(one.tensor)
            known[id(buffer)] = _in_storage_order(one.tensor, buffer, one.own)
            if id(buffer) in values:
                value = values[id(buffer)]
                uses[value] = _in_storage_order(one.tensor, buffer, one.use)
                names[value] = one.name
            _follow(known, one.tensor.grad, one)
            for optimizer in optimizers:
                for state in optimizer.state.get(one.tensor, {}).values():
                    _follow(known, state, one)
        inputs = []
        for buffer in work.input_buffers:
            if id(buffer) in known:
                inputs.append(known[id(buffer)])
            elif id(buffer) in batch:
                inputs.append(self.batch(batch[id(buffer)], buffer.spec.shape))
            else:
                inputs.append(())
        return Arrangement(
            sharding=self, inputs=inputs, outputs=[known.get(id(b), ()) for b in work.live],
            uses=uses, gradients=dict(marks.gradients), names=names,
            backward=marks.backward if self.gather_again else _NEVER, optimizer=marks.optimizer,
        )  # fmt: skip

    def table(self, optimizers: Sequence[torch.optim.Optimizer]) -> pa.Table:
        """The table `placements` of record.details."""
        rows = []
        devices = self.mesh.size
        for one in self.parameters:
            rows.append(self._row(one.name, "parameter", one.tensor, one.own, devices))
            for optimizer in optimizers:
                for name, value in optimizer.state.get(one.tensor, {}).items():
                    if isinstance(value, torch.Tensor) and value.device.type == "tpu":
                        own = one.own if value.shape == one.tensor.shape else ()
                        what = f"{name} of {one.name}"
                        rows.append(self._row(what, "optimizer_state", value, own, devices))
        return table_of_rows(PLACEMENT_COLUMNS, rows)

    def _row(
        self, name: str, category: str, tensor: torch.Tensor, own: Dims, devices: int
    ) -> tuple[Any, ...]:
        split = ", ".join("+".join(axes) or "-" for axes in own)
        nbytes = tensor.numel() * tensor.element_size()
        shape = str(list(tensor.shape))
        return name, category, shape, split, nbytes, self.mesh.parts(own), devices


class _Marks:
    """Positions in a recording, and the values that are gradients when the optimizer begins."""

    def __init__(self) -> None:
        self.backward = self.optimizer = _NEVER
        self.gradients: dict[int, Dims] = {}
        self.names: dict[int, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """Places of a recorded step's inputs and wanted values, and those that hold inside it:
    `uses` of parameters before the optimizer begins, `gradients` where they are made."""

    sharding: StepSharding
    inputs: list[Dims]
    outputs: list[Dims]
    uses: dict[int, Dims]
    gradients: dict[int, Dims]
    names: dict[int, str]  # of the parameters that these values are of
    backward: int
    optimizer: int

    @property
    def text(self) -> str:
        """All of it, for the program's key."""
        mesh = self.sharding.mesh
        devices = [device.id for device in mesh.devices] or mesh.size
        parts = (self.inputs, self.outputs, sorted(self.uses.items()),
                 sorted(self.gradients.items()), self.backward, self.optimizer)  # fmt: skip
        digest = hashlib.sha256(repr(parts).encode()).hexdigest()
        return f"mesh {mesh.axes} of devices {devices}, places {digest}"

    def placement(self, inputs: Sequence[int], more_inputs: int, outputs: Sequence[int]) -> Any:
        """For a program of these inputs, some replicated ones behind them, and these outputs."""
        mesh = self.sharding.mesh
        given = [mesh.sharding(self.inputs[i]) for i in inputs]
        return Placement(
            devices=mesh.devices,
            inputs=(*given, *[mesh.replicated] * more_inputs),
            outputs=tuple(mesh.sharding(self.outputs[j]) for j in outputs),
            axes=mesh.axes,
            batch_axes=self.sharding.batch_axes,
            parameters={p.name: tuple(p.tensor.shape) for p in self.sharding.parameters},
        )

    def at_use(self, position: int, value: int, array: Any) -> Any:
        dims = self.uses.get(value)
        if dims is None or position >= self.optimizer:
            return array
        if position >= self.backward:  # else XLA would find it gathered already
            array = lax.optimization_barrier(array)
        return self._bring(array, dims, USE_SCOPE, value)

    def at_birth(self, value: int, array: Any) -> Any:
        dims = self.gradients.get(value)
        return array if dims is None else self._bring(array, dims, GRADIENT_SCOPE, value)

    def _bring(self, array: Any, dims: Dims, scope: str, value: int) -> Any:
        with jax.named_scope(f"{scope}{self.names[value]}"):
            return lax.with_sharding_constraint(array, self.sharding.mesh.sharding(dims))


def _follow(known: dict[int, Dims], tensor: Any, parameter: Placed) -> None:
    """State of a parameter's shape lies as the parameter does."""
    if (
        isinstance(tensor, torch.Tensor)
        and tensor.device.type == "tpu"
        and tensor.shape == parameter.tensor.shape
    ):
        buffer = buffer_of(tensor)
        known.setdefault(id(buffer), _in_storage_order(tensor, buffer, parameter.own))


def _in_storage_order(tensor: torch.Tensor, buffer: Buffer, dims: Dims) -> Dims:
    """The dimensions of a tensor as its buffer has them; copied where the buffer is laid out
    otherwise, such as a gradient that is part of a larger tensor."""
    shape, stride = tuple(tensor.shape), tensor.stride()
    order = sorted(range(len(shape)), key=lambda i: (-stride[i], -shape[i]))
    if tuple(shape[i] for i in order) != buffer.spec.shape:
        return ()
    return tuple(dims[i] for i in order)
