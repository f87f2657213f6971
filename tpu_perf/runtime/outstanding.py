"""What has been started on the device since the last fence, and how to wait for it."""

from __future__ import annotations

import weakref

import jax

from tpu_perf.runtime import jax_private
from tpu_perf.runtime.failures import found_at_fence

#: Whole steps remembered between two fences; beyond, the fence looks at every live array.
_MOST_STEPS = 256


class Outstanding:
    """Whole steps are remembered one by one, because a step with little to compute would spend a
    tenth of its time on a list of all live arrays; anything else is found in that list.

    XLA:CPU runs independent programs out of order, so waiting for the newest result alone is not
    enough in either case. All results of one program become ready together.
    """

    __slots__ = ("_steps", "anything")

    def __init__(self) -> None:
        #: Whether something other than whole steps was started. The hot path sets it.
        self.anything = True
        self._steps: list[weakref.ref[jax.Array]] = []

    def step_started(self, result: jax.Array) -> None:
        """Note a whole step by one of its results."""
        if len(self._steps) == _MOST_STEPS:
            self.anything = True
            self._steps.clear()
        self._steps.append(weakref.ref(result))

    def wait(self) -> None:
        """Wait until the device has nothing left to do."""
        results = [step() for step in self._steps]
        if self.anything or None in results:
            results = jax_private.device().client.live_arrays()
        # A donated result belongs to a later program.
        try:
            jax.block_until_ready([a for a in results if a is not None and not a.is_deleted()])
        except jax.errors.JaxRuntimeError as error:
            raise found_at_fence(error) from error
        finally:
            self._steps.clear()
        self.anything = False

    @staticmethod
    def unfinished() -> list[jax.Array]:
        """Every array whose program has not finished."""
        arrays = jax_private.device().client.live_arrays()
        return [a for a in arrays if not a.is_deleted() and not a.is_ready()]


OUTSTANDING = Outstanding()
