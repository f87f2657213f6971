"""Every name of TorchTPU's wheel that its makers call private, and what this engine takes from it.

Seen in the versions of `VERSIONS`. What is gone in another version is told by its name; nothing
else in this package reaches into the wheel, except for the public `torch.tpu`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tpu_perf.errors import EnvironmentProblem

VERSIONS = ("0.2.0",)
#: Set to 1 to try another version: what it lacks is then told when it is needed.
ANY_VERSION = "TPU_PERF_TORCH_TPU_ANY_VERSION"

_TRACING = "torch_tpu._internal.tracing"
_BUFFER = "torch_tpu._internal.tracing._tpu_torch_tracing"
_EXECUTABLE = "torch_tpu._internal.compile.torch_tpu_compiled_executable"


def check_version() -> str:
    """The wheel's version. Raises EnvironmentProblem where it is missing or not one of ours."""
    try:
        version = importlib.metadata.version("torch_tpu")
    except importlib.metadata.PackageNotFoundError:
        raise EnvironmentProblem(
            f"torch_tpu is not installed for {sys.executable}",
            hint="`tpu-perf doctor --build torch_tpu` makes an environment that has it",
        ) from None
    if version not in VERSIONS and os.environ.get(ANY_VERSION) != "1":
        raise EnvironmentProblem(
            f"torch_tpu {version} is installed for {sys.executable}; the engine torch_tpu reads "
            f"private names of the wheel that were seen in {', '.join(VERSIONS)} only",
            hint=f"install torch_tpu=={VERSIONS[-1]}, or set {ANY_VERSION}=1 to try it: names that "
            "are gone are told",
        )
    return version


def gone(name: str, error: BaseException) -> EnvironmentProblem:
    """What to raise where a private name is not there."""
    try:
        version = importlib.metadata.version("torch_tpu")
    except importlib.metadata.PackageNotFoundError:
        version = "of an unknown version"
    return EnvironmentProblem(
        f"torch_tpu {version} has no {name} ({type(error).__name__}: {error})",
        hint=f"the engine torch_tpu was written against {', '.join(VERSIONS)}",
    )


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise gone(name, error) from error


def _named(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name)
    except AttributeError as error:
        raise gone(f"{getattr(holder, '__name__', type(holder).__name__)}.{name}", error) from error


def load(plugin: str | None) -> None:
    """Make device "tpu" TorchTPU's. With `plugin`, the PJRT library that stands in for libtpu.

    Call before anything imports torch. Raises EnvironmentProblem if our own backend is loaded
    already: both are torch's PrivateUse1, of which a process has one.
    """
    if "tpu_perf.runtime.device" in sys.modules:
        raise EnvironmentProblem(
            'tpu_perf\'s own device "tpu" is loaded in this process; TorchTPU needs another one'
        )
    check_version()
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # neither backend by itself
    if plugin is not None:
        libtpu = _module("libtpu")
        _named(libtpu, "configure_library_path")

        def keep_plugin() -> None:
            os.environ["TPU_LIBRARY_PATH"] = plugin

        vars(libtpu)["configure_library_path"] = keep_plugin
        keep_plugin()
    _module("torch_tpu")
    loader = _module("torch_tpu._loader")
    if plugin is not None:
        _named(_named(loader, "hardware"), "get_tpu_device_count")
        vars(loader.hardware)["get_tpu_device_count"] = lambda: 1
    _named(loader, "load")()


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A program in TorchTPU's cache of this process. `compile_us` is 0 until it is compiled;
    entries have no name, and their compile time tells them apart."""

    compile_us: int
    reads: int
    last_read_us: int  # since 1970


@dataclass(frozen=True, slots=True)
class CacheStats:
    """TorchTPU's own counts. Requests and hits are those of the memory tier."""

    requests: int
    hits: int
    compilations: int
    entries: tuple[CacheEntry, ...]

    @property
    def compile_ns(self) -> int:
        return 1000 * sum(entry.compile_us for entry in self.entries)


def cache_stats() -> CacheStats:
    """What `torch.tpu._get_cache_stats()` says."""
    stats = _named(_tpu(), "_get_cache_stats")()
    try:
        return CacheStats(
            requests=stats.num_cache_reqs,
            hits=stats.num_cache_hits,
            compilations=stats.num_compilations,
            entries=tuple(
                CacheEntry(
                    compile_us=round(entry.compilation_duration.total_seconds() * 1e6),
                    reads=entry.read_count,
                    last_read_us=_epoch_us(entry.last_read),
                )
                for entry in stats.per_entry_stats
            ),
        )
    except AttributeError as error:
        raise gone("the fields of torch.tpu._get_cache_stats()", error) from error


def cache_misses() -> int:
    return int(_named(_tpu(), "_get_cache_misses")())


def clear_cache() -> None:
    """Forget the compiled programs of the memory tier."""
    _named(_tpu(), "_clear_cache")()


def device_attributes() -> Mapping[str, Any]:
    """PJRT's attributes of the local device; `device_kind` among them."""
    return dict(_named(_tpu(), "_get_local_device_attributes")())


def _tpu() -> Any:
    import torch

    return _named(torch, "tpu")


def _epoch_us(moment: Any) -> int:
    """A naive local datetime, as pybind11 makes of the system clock, in microseconds."""
    return int(moment.replace(microsecond=0).timestamp()) * 1_000_000 + int(moment.microsecond)


@dataclass(frozen=True, slots=True)
class Batch:
    """Ops that TorchTPU ran as one program: one request to its cache. Times are microseconds
    since 1970; graph and StableHLO are empty where the cache had the program."""

    start_us: int
    end_us: int
    name: str
    reason: str
    hit: bool
    graph: str
    stablehlo: str


def own_the_log() -> None:
    """Stop the thread that writes TorchTPU's log, so that `drain` gets every batch. The process
    must have been started with TORCH_TRACE set, which TorchTPU reads once."""
    if not _named(_module(_BUFFER), "_structured_log_enabled")():
        raise gone("a log of batches although TORCH_TRACE is set", RuntimeError("not enabled"))
    _named(_module(_TRACING), "_atexit_flush")()


def drain() -> tuple[list[Batch], int]:
    """The batches since the last call in order, and how many were dropped."""
    drained = _named(_module(_BUFFER), "_drain_structured_log_buffer")()
    try:
        batches = [
            Batch(
                start_us=event["ts_us"],
                end_us=event["ts_us"] + event["dur_us"],
                name=event["name"].removeprefix("torchtpu_eager/"),
                reason=event["reason"],
                hit=event["cache_hit"],
                graph=event["aten_graph"],
                stablehlo=event["stablehlo"],
            )
            for event in drained["events"]
        ]
        return batches, int(drained.get("dropped_since_last_drain", 0))
    except (KeyError, TypeError) as error:
        raise gone("a field of its batch log", error) from error


#: start and end in ns of time.perf_counter_ns, StableHLO of the program.
CompiledCall = tuple[int, int, str]


@contextlib.contextmanager
def compiled_calls() -> Iterator[list[CompiledCall]]:
    """The executions of compiled graphs inside the block, in order."""
    executable = _named(_module(_EXECUTABLE), "TorchTpuCompiledExecutable")
    original: Callable[..., Any] = _named(executable, "__call__")
    calls: list[CompiledCall] = []

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter_ns()
        result = original(self, *args, **kwargs)
        calls.append((begin, time.perf_counter_ns(), self.mlir_text or ""))
        return result

    executable.__call__ = call
    try:
        yield calls
    finally:
        executable.__call__ = original
