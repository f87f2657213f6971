"""Errors meant for the user, and the exit codes of the command line."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process returns; scripts and CI jobs rely on these numbers."""

    OK = 0
    REGRESSION = 1
    USAGE = 2
    RUNG_FAILED = 3
    ENVIRONMENT = 4


class TpuPerfError(Exception):
    """Something the user can act on: printed as a message, never as a traceback."""

    exit_code: ExitCode = ExitCode.USAGE

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  {self.hint}"


class ConfigError(TpuPerfError):
    """A ladder file or a --set override is wrong; the message carries file and line."""


class WorkloadError(TpuPerfError):
    """The user's workload could not be built, or does not return what it should."""


class EnvironmentProblem(TpuPerfError):
    """This machine or installation cannot do what was asked."""

    exit_code = ExitCode.ENVIRONMENT


class StoredRunError(TpuPerfError):
    """A run or ladder directory is missing, half-written or of a schema we cannot read."""


class NotComparable(StoredRunError):
    """Two runs differ in what a comparison must hold fixed; the message lists it."""


class ExportMismatch(TpuPerfError):
    """A file that was just written does not read back as what was to be written."""

    exit_code = ExitCode.ENVIRONMENT


class ImportProblem(TpuPerfError):
    """A capture cannot be read: damaged, truncated, or of a kind that nobody here knows."""


class HloProblem(StoredRunError):
    """A compiled program's HLO cannot be read: damaged, cut short, or of another kind."""
