"""Exceptions and deaths become a status and a sentence."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tpu_perf.engines.interface import DoesNotFit, RungUnavailable
from tpu_perf.errors import WorkloadError
from tpu_perf.ladder.failure import from_death, from_exception
from tpu_perf.ladder.protocol import LineBuffer, encode


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (RungUnavailable("no compiler here"), "skipped", "no compiler here"),
        (DoesNotFit("needs 9 GiB of 8 GiB"), "does_not_fit", "needs 9 GiB of 8 GiB"),
        (MemoryError("array"), "does_not_fit", "array"),
        (RuntimeError("RESOURCE_EXHAUSTED: ..."), "does_not_fit", "RESOURCE_EXHAUSTED"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "does_not_fit", "allocate"),
        (WorkloadError("no loss", hint="return one"), "failed", "return one"),
        (ZeroDivisionError("division by zero"), "failed", "ZeroDivisionError: division by zero"),
        (ValueError(), "failed", "ValueError: no message"),
    ],
)
def test_exceptions(error: BaseException, status: str, words: str) -> None:
    failure = from_exception(error)
    assert failure.status == status
    assert words in failure.reason


def test_a_users_error_names_the_users_line() -> None:
    code = compile("\n\n1 / 0\n", "/home/someone/model.py", "exec")
    with pytest.raises(ZeroDivisionError) as caught:
        exec(code, {})
    assert "/home/someone/model.py:3" in from_exception(caught.value).reason


def test_deaths() -> None:
    killed = from_death(-signal.SIGKILL, "warm-up", False, "")
    assert killed.status == "failed"
    assert killed.reason == "the worker was killed by SIGKILL during warm-up"
    assert from_death(-signal.SIGKILL, "warm-up", True, "").status == "does_not_fit"
    told = from_death(3, "round 2", False, "one\nlast thing said\n\n")
    assert told.reason.endswith("with exit code 3 during round 2; its last words: last thing said")
    assert from_death(-signal.SIGABRT, "x", False, "terminate: std::bad_alloc").status == (
        "does_not_fit"
    )


def test_messages_survive_any_cut_of_the_stream() -> None:
    messages: list[dict[str, Any]] = [
        {"kind": "a", "text": "ü\n"},
        {"kind": "b", "value": float("inf")},
    ]
    stream = b"".join(encode(message) for message in messages)
    for size in (1, 3, 1000):
        buffer = LineBuffer()
        found = [
            message
            for start in range(0, len(stream), size)
            for message in buffer.feed(stream[start : start + size])
        ]
        assert found == messages
