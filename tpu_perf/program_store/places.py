"""Where programs are kept by default, and what the environment says about it."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tpu_perf.errors import EnvironmentProblem

#: TorchTPU's name for the third tier: a directory or a URL.
DIRECTORY_VARIABLE = "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT"
#: Switches the second tier on (1) or off (0), in TorchTPU's style and in ours; the first counts.
HOST_VARIABLES = ("TORCH_TPU_TIER2_COMPILATION_CACHE", "TPU_PERF_HOST_CACHE")
#: Where the second tier lies, if not in shared memory.
HOST_ROOT_VARIABLE = "TORCH_TPU_TIER2_COMPILATION_CACHE_ROOT"
#: How long a process waits for another one of its host that compiles the same program.
WAIT_VARIABLE = "TPU_PERF_HOST_CACHE_WAIT_S"
#: Most bytes that the third tier may hold: a number, or one with K, M, G or T (powers of 1024).
LIMIT_VARIABLE = "TPU_PERF_CACHE_MAX_BYTES"

#: A program that compiles longer is compiled twice; so is one whose compiler hangs.
DEFAULT_WAIT_S = 600.0
#: Shared memory is the machine's memory: the host tier keeps to so much of the file system.
_HOST_SHARE = 0.1
_SHARED_MEMORY = Path("/dev/shm")


def default_directory() -> str:
    """The third tier of a ladder that names none: what TorchTPU's variable says, else a folder
    of the user's cache directory."""
    return os.environ.get(DIRECTORY_VARIABLE) or local_default_directory()


def local_default_directory() -> str:
    """The folder for compiled programs in the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return str(Path(base) / "tpu_perf" / "programs")


def host_root() -> Path:
    """The folder of the second tier: in shared memory, else in the directory for temporary
    files, one for each user."""
    told = os.environ.get(HOST_ROOT_VARIABLE)
    if told:
        return Path(told)
    usable = _SHARED_MEMORY.is_dir() and os.access(_SHARED_MEMORY, os.W_OK | os.X_OK)
    base = _SHARED_MEMORY if usable else Path(tempfile.gettempdir())
    return base / f"tpu_perf-{os.getuid()}" / "programs"


def prepare_host_root(root: Path) -> None:
    """Make the folder, for this user alone: who can write there can have others run code.
    Raises OSError where it cannot be made, or belongs to another."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    told = os.environ.get(HOST_ROOT_VARIABLE)
    for folder in (root,) if told else (root, root.parent):
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise PermissionError(f"{folder} does not belong to this user")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            folder.chmod(stat.S_IMODE(status.st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))


def host_limit_bytes(root: Path) -> int:
    """Most bytes the second tier may hold: a tenth of its file system."""
    system = os.statvfs(root)
    return int(system.f_frsize * system.f_blocks * _HOST_SHARE)


def host_wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the second tier is on: as the environment says, else where torchrun started
    several processes. Off for a single process, as in TorchTPU."""
    for name in HOST_VARIABLES:
        told = environment.get(name, "").strip().lower()
        if told:
            return told not in ("0", "false", "off", "no")
    for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"):
        count = environment.get(name, "")
        if count.isdigit():
            return int(count) > 1
    return False


def wait_s() -> float:
    """Seconds to wait for another process. Raises EnvironmentProblem."""
    told = os.environ.get(WAIT_VARIABLE)
    if not told:
        return DEFAULT_WAIT_S
    try:
        return max(0.0, float(told))
    except ValueError:
        raise EnvironmentProblem(f"{WAIT_VARIABLE}={told}: a number of seconds is wanted") from None


def limit_bytes() -> int | None:
    """The limit that the environment sets for the third tier, None without one. Raises
    EnvironmentProblem."""
    told = os.environ.get(LIMIT_VARIABLE)
    if not told:
        return None
    try:
        return parse_bytes(told)
    except ValueError as error:
        raise EnvironmentProblem(f"{LIMIT_VARIABLE}={told}: {error}") from None


_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def parse_bytes(text: str) -> int:
    """Bytes from "1500", "200M", "1.5 GiB" (powers of 1024). Raises ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", text.lower())
    if match is None:
        raise ValueError("a size such as 1500, 200M or 1.5G is wanted")
    return int(float(match[1]) * _UNITS[match[2]])
