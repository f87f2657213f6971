"""torch.compile(backend="tpu")."""

from __future__ import annotations


def register() -> None:
    """Register the backend."""
