"""Errors of programs that ran, or should have: what failed, at which line, and what to do.

XLA runs programs after the call that started them has returned, and then only a later read would
fail. A program that needs a good part of the device's memory is therefore waited for where it is
started, so that running out of memory names its line at no cost to the others.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any

import jax
import torch

from tpu_perf.runtime.memory import MEMORY

#: A program that needs this part of the device's memory is waited for.
_LARGE_PART = 1 / 16


@functools.cache
def large_bytes() -> int:
    """From how many bytes on a program or value is large."""
    return int(total_bytes() * _LARGE_PART)


@functools.cache
def total_bytes() -> int:
    """Memory of the device; that of the machine where programs run on its CPU."""
    import psutil

    from tpu_perf.runtime import jax_private

    return jax_private.bytes_limit() or int(psutil.virtual_memory().total)


def explained(error: BaseException, what: str, where: str) -> BaseException:
    """The error as a user should see it. `what` failed, started at `where`."""
    if not isinstance(error, jax.errors.JaxRuntimeError):
        return error
    text = str(error)
    if "RESOURCE_EXHAUSTED" in text or "ut of memory" in text:
        MEMORY.out_of_memory += 1
        return torch.OutOfMemoryError(
            f"device tpu is out of memory: {what}{where}. Live tensors hold "
            f"{_size(MEMORY.allocated)} of {_size(total_bytes())}. Use a smaller batch, drop "
            f"tensors that are no longer needed, or recompute activations "
            f"(torch.utils.checkpoint). XLA said: {_first_line(text)}"
        )
    return RuntimeError(f"{what} failed on device tpu{where}: {text}")


def found_at_fence(error: BaseException) -> BaseException:
    """An error of work started earlier that a wait or a read came upon."""
    hint = (
        " (found here, started earlier: TPU_LAUNCH_BLOCKING=1 runs one op at a time and names "
        "the line that started it)"
    )
    return explained(error, "work", hint)


def watched(
    call: Callable[..., tuple[jax.Array, ...]], name: str, nbytes: int
) -> Callable[..., tuple[jax.Array, ...]]:
    """A large program's call, which waits and explains what goes wrong."""

    def run(*arguments: Any) -> tuple[jax.Array, ...]:
        try:
            return jax.block_until_ready(call(*arguments))  # type: ignore[no-any-return]
        except Exception as error:
            from tpu_perf.runtime.program_cache import user_line

            line = user_line()
            what = f"{name} needs {_size(nbytes)}"
            raise explained(error, what, f" at {line}" if line else "") from None

    return run


class Failed:
    """Stands where a pending segment stood that could not run: every use of its results raises
    what went wrong, instead of finding nothing there."""

    __slots__ = ("_error",)

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def flush(self, reason: str) -> None:
        told = "".join(traceback.format_exception_only(self._error)).strip()
        kind = torch.OutOfMemoryError
        if isinstance(self._error, kind):
            raise kind(f"this tensor was never computed: {self._error}") from self._error
        raise RuntimeError(f"this tensor was never computed: {told}") from self._error


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].rstrip(".")


def _size(nbytes: int) -> str:
    amount = float(nbytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} TiB"
