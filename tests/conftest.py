"""Fixtures of all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def narrow_numbers() -> Iterator[None]:
    """JAX's numbers as they are by default: device "tpu", where an earlier test of the process
    loaded it, makes them 64 bits wide."""
    import jax

    with jax.enable_x64(False):
        yield
