"""The program of a whole step with its small state (step counts, norms, biases) in one vector.

A program argument and a result cost the host one to three microseconds each, and a model with its
optimizer has hundreds of small tensors. They travel as one array; a tensor that somebody reads in
between is unpacked then.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tpu_perf.runtime.buffers import Buffer
from tpu_perf.runtime.jax_private import Aval, Placement, lower_elsewhere, put
from tpu_perf.runtime.mesh import place
from tpu_perf.runtime.program_cache import CACHE, Program
from tpu_perf.runtime.replaying import parts_of, replay
from tpu_perf.runtime.segment import Work, program_for
from tpu_perf.runtime.step_sharding import Arrangement

#: Elements up to which a tensor travels in the vector. Above, copying costs more than passing.
SMALL = 4096


class StatePack:
    """Values of several small buffers in one vector; stands in as their pending segment."""

    def __init__(self, buffers: list[Buffer]) -> None:
        self.buffers = buffers
        self.array: jax.Array | None = None
        self._intact = False

    def flush(self, reason: str) -> None:
        """Give every buffer that still relies on the vector an array of its own."""
        host = np.asarray(self.array)
        start = 0
        for buffer in self.buffers:
            end = start + buffer.spec.numel
            if buffer.segment is self:
                buffer.segment = None
                buffer.fill(put(host[start:end].reshape(buffer.spec.shape).copy()))
            start = end

    def take(self) -> Any:
        """The vector, to be donated."""
        self._intact = self.array is not None and all(b.segment is self for b in self.buffers)
        if self._intact:
            return self.array
        return joined([b.ready("unknown") for b in self.buffers])

    def hold(self, array: jax.Array) -> None:
        self.array = array
        if self._intact:
            return
        self._intact = True
        for buffer in self.buffers:
            buffer.segment = self
            buffer.array = None


def joined(arrays: list[jax.Array]) -> jax.Array:
    """Small arrays, copied end to end into one vector."""
    return put(np.concatenate([np.asarray(a).reshape(-1) for a in arrays]))


class PackedStep:
    """How the inputs and wanted values of a recorded step map to those of its program."""

    def __init__(
        self, work: Work, returned: set[int], arrangement: Arrangement | None = None
    ) -> None:
        self.work = work
        self.arrangement = arrangement
        position = {id(b): j for j, b in enumerate(work.live) if j not in returned}
        chosen = [
            i
            for i in work.donated
            if work.inputs[i].size <= SMALL
            and work.inputs[i].dtype == np.float32
            and id(work.input_buffers[i]) in position
        ]
        # On a mesh each tensor has a place of its own.
        self.packed_in = tuple(chosen) if len(chosen) > 1 and arrangement is None else ()
        self.packed_out = tuple(position[id(work.input_buffers[i])] for i in self.packed_in)
        self.inputs = [i for i in range(len(work.inputs)) if i not in self.packed_in]
        self.outputs = [j for j in range(len(work.live)) if j not in self.packed_out]
        self.pack = StatePack([work.live[j] for j in self.packed_out])

    def program(self) -> Program:
        """The step's program, compiled if it is new."""
        places = None if self.arrangement is None else self.arrangement.text
        key = (self.work.key(), self.packed_in, self.packed_out, places)
        return program_for(key, self._build)

    def _build(self) -> Program:
        work, (avals, donated, placement) = self.work, self._signature()
        key_text = f"{work.key_text()}\npacked {self.packed_in} {self.packed_out}"
        if self.arrangement is not None:
            key_text += f"\n{self.arrangement.text}"
        return CACHE.build(
            name=f"step_{len(work.nodes)}", kind="step", ops=len(work.nodes), key_text=key_text,
            compute=self._compute(), in_avals=avals, donated=donated,
            parts=parts_of([plan for plan, _, _ in work.nodes]), placement=placement,
        )  # fmt: skip

    def stablehlo(self, platform: str) -> bytes:
        """The program as MLIR bytecode for a mesh whose devices need not be here
        (`DeviceMesh.without_devices`); needs an arrangement."""
        avals, donated, placement = self._signature()
        assert placement is not None
        name = f"step_{len(self.work.nodes)}"
        return lower_elsewhere(self._compute(), avals, donated, name, placement, platform)

    def _signature(self) -> tuple[list[Aval], list[int], Placement | None]:
        """Shapes of all inputs, which of them are donated, and where they lie on a mesh."""
        work = self.work
        avals = [(tuple(work.inputs[i].shape), np.dtype(work.inputs[i].dtype)) for i in self.inputs]
        donated = [k for k, i in enumerate(self.inputs) if i in work.donated]
        if self.packed_in:
            donated.append(len(avals))
            length = sum(work.inputs[i].size for i in self.packed_in)
            avals.append(((length,), np.dtype(np.float32)))
        numbers = work.packed()
        avals += [(p.shape, p.dtype) for p in numbers]
        if self.arrangement is None:
            return avals, donated, None
        return avals, donated, self.arrangement.placement(self.inputs, len(numbers), self.outputs)

    def _compute(self) -> Callable[..., tuple[jax.Array, ...]]:
        work = self.work
        inner = replay(work.nodes, work.input_values, work.live_values, bool(work.draws),
                       self.arrangement)  # fmt: skip
        inputs, outputs = self.inputs, self.outputs
        packed_in, packed_out = self.packed_in, self.packed_out
        shapes = [tuple(work.inputs[i].shape) for i in packed_in]

        def run(*arguments: jax.Array) -> tuple[jax.Array, ...]:
            rest = len(inputs)
            values: list[Any] = [None] * (rest + len(packed_in))
            for i, value in zip(inputs, arguments, strict=False):
                values[i] = value
            if packed_in:
                start = 0
                for i, shape in zip(packed_in, shapes, strict=True):
                    end = start + math.prod(shape)
                    values[i] = arguments[rest][start:end].reshape(shape)
                    start = end
                rest += 1
            outs = inner(*values, *arguments[rest:])
            results = tuple(outs[j] for j in outputs)
            if not packed_out:
                return results
            return (*results, jnp.concatenate([outs[j].reshape(-1) for j in packed_out]))

        return run

    def run_once(self, program: Program) -> None:
        """Run the recorded step itself and store its results."""
        work = self.work
        arguments: list[Any] = [work.inputs[i] for i in self.inputs]
        if self.packed_in:
            arguments.append(joined([work.inputs[i] for i in self.packed_in]))
        arguments += work.packed()
        if program.placement is not None:
            arguments = [place(a, s) for a, s in
                         zip(arguments, program.placement.inputs, strict=True)]  # fmt: skip
        outs = program.run(*arguments)
        for j, array in zip(self.outputs, outs, strict=False):
            buffer = work.live[j]
            buffer.segment, buffer.value = None, -1
            if self.arrangement is None:
                buffer.fill(array)
            else:
                self.arrangement.sharding.fill(buffer, array, self.arrangement.outputs[j])
        if self.packed_in:
            for buffer in self.pack.buffers:
                buffer.value = -1
            self.pack.hold(outs[-1])
