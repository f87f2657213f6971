"""What the compiler's side of prediction says without libtpu: keys, messages, what is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpu_perf.errors import EnvironmentProblem
from tpu_perf.predict.compile_cache import CompileCache, key_of
from tpu_perf.predict.compiled import NotCompiled, Request, pack, unpack
from tpu_perf.predict.compiler import Compiler
from tpu_perf.predict.memory_limits import reason_for_exhaustion
from tpu_perf.predict.targets import find_target
from tpu_perf.program_store.components import explain

V6E = find_target("v6e-1")


def test_a_missing_libtpu_is_said_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(tmp_path / "libtpu.so"))
    with pytest.raises(EnvironmentProblem, match=r"which is not there\n.*tpu_perf\[predict\]"):
        Compiler()


def test_what_is_kept_needs_no_libtpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tpu_perf.program_store.entry import Header, make_entry

    monkeypatch.setenv("TPU_LIBRARY_PATH", str(tmp_path / "libtpu.so"))
    request = Request(name="p", stablehlo=b"module {}", target=V6E)
    outcome = NotCompiled(name="p", target=V6E, status="does_not_fit", reason="does not fit: 1")
    with CompileCache(tmp_path) as cache:
        header = Header(name="p", kind="predicted", components=key_of(request), outputs=(),
                        compile_ns=1)  # fmt: skip
        cache.store.write(make_entry(header, b"", pack(outcome)))
        (kept,) = cache.compile_all([request])
        assert isinstance(kept, NotCompiled)
        assert (kept.status, kept.reason, kept.from_cache) == ("does_not_fit", outcome.reason, True)
        with pytest.raises(EnvironmentProblem):
            cache.compile_all([Request(name="q", stablehlo=b"module @q {}", target=V6E)])


def test_a_miss_says_which_flag_differed() -> None:
    plain = Request(name="p", stablehlo=b"module {}", target=V6E, init_args="--a=1")
    other = Request(name="p", stablehlo=b"module {}", target=V6E, init_args="--a=2")
    assert "--a=2" in explain(key_of(plain), key_of(other))


@pytest.mark.parametrize("data", [b"", b"short", pack(
    NotCompiled(name="p", target=V6E, status="failed", reason="r"))[:-1]])  # fmt: skip
def test_other_bytes_are_no_outcome(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a compiled program"):
        unpack(data, "p", V6E)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (56.00G) exceeds available HBM (31.25G).",
            "does not fit: needs 56.00 GiB of 31.25",
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 30.15G of 15.48G "
            "hbm. Exceeded hbm capacity by 14.67G.",
            "does not fit: needs 30.15 GiB of 15.48",
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem.",
            "does not fit v6e-1: Ran out of memory in memory space vmem.",
        ),
    ],
)
def test_libtpus_words_become_sizes(message: str, told: str) -> None:
    assert reason_for_exhaustion(message, V6E, None) == told
    assert reason_for_exhaustion(message, V6E, b"damaged").startswith(told)
