"""Fixtures of the device's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tpu_perf.runtime.modes import EagerMode, mode_set_to


@pytest.fixture(params=[EagerMode.DEFER_NEVER, EagerMode.DEFER_AND_FUSE], ids=lambda m: m.name)
def mode(request: pytest.FixtureRequest) -> Iterator[EagerMode]:
    """Runs a test in Strict and in DeferAndFuse."""
    with mode_set_to(request.param):
        yield request.param
