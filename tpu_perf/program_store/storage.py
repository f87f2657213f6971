"""Where entries lie: a local directory, or whatever fsspec reaches by a URL.

Every failure of a file system comes out as OSError, so that callers have one thing to catch.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from tpu_perf.errors import EnvironmentProblem

#: Ending of files that are being written; what a killed writer leaves has it too.
TEMPORARY = ".tmp"
_counter = itertools.count()


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a store: its name there, its length, and when it was last used (Unix seconds;
    None where the file system does not say)."""

    name: str
    size_bytes: int
    used_s: float | None


class Storage(Protocol):
    """A flat folder of files, with one level of folders below it in names like "index/x"."""

    location: str
    remote: bool

    def prepare(self) -> None:
        """Make the folder. Raises OSError."""

    def read(self, name: str) -> tuple[bytes, float | None]:
        """The file's bytes and when it was last used. Raises FileNotFoundError, OSError."""

    def read_start(self, name: str, count: int) -> bytes:
        """The first bytes of a file. Raises FileNotFoundError, OSError."""

    def write(self, name: str, data: bytes) -> None:
        """Put the whole file there at once: readers see the former one or this. Raises OSError."""

    def append(self, name: str, data: bytes) -> None:
        """Add to a file, or begin it. Raises OSError."""

    def rename(self, name: str, new: str) -> None:
        """Raises OSError."""

    def delete(self, name: str) -> None:
        """Delete a file; one that is gone already is no error. Raises OSError."""

    def touch(self, name: str) -> None:
        """Note that the file was used now. Raises OSError."""

    def files(self) -> list[StoredFile]:
        """The files of the folder, not those of folders below. Raises OSError."""


def storage_at(location: str | os.PathLike[str]) -> Storage:
    """The storage of a directory or a URL. Raises EnvironmentProblem where fsspec has no way to
    the URL's protocol."""
    text = os.fspath(location)
    path = local_path(text)
    return LocalStorage(path) if path is not None else UrlStorage(text)


def local_path(location: str) -> Path | None:
    """The directory that a location names, None where it is a URL of something else."""
    if "://" not in location:
        return Path(os.path.abspath(os.path.expanduser(location)))
    parts = urllib.parse.urlsplit(location)
    if parts.scheme not in ("file", "local"):
        return None
    return Path(urllib.parse.unquote(parts.netloc + parts.path))


def protocol_problem(location: str) -> str | None:
    """Why fsspec cannot reach this URL: a protocol it does not know, or a package that is not
    installed. None where it can, or where it is a local path."""
    if local_path(location) is not None:
        return None
    from fsspec import get_filesystem_class

    protocol = location.partition("://")[0]
    try:
        get_filesystem_class(protocol)
    except (ValueError, ImportError) as error:
        return f"{location}: {error}"
    return None


class LocalStorage:
    """A directory of this machine."""

    remote = False

    def __init__(self, root: Path) -> None:
        self.root = root
        self.location = str(root)

    def prepare(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)

    def read(self, name: str) -> tuple[bytes, float | None]:
        with open(self.root / name, "rb") as file:
            status = os.fstat(file.fileno())
            return file.read(), status.st_mtime

    def read_start(self, name: str, count: int) -> bytes:
        with open(self.root / name, "rb") as file:
            return file.read(count)

    def write(self, name: str, data: bytes) -> None:
        path = self.root / name
        temporary = path.with_name(f".{path.name}.{_writer()}{TEMPORARY}")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(data)
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise

    def append(self, name: str, data: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:  # one write: lines of several processes do not mix
            os.write(file, data)
        finally:
            os.close(file)

    def rename(self, name: str, new: str) -> None:
        os.replace(self.root / name, self.root / new)

    def delete(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    def touch(self, name: str) -> None:
        os.utime(self.root / name)

    def files(self) -> list[StoredFile]:
        found = []
        with os.scandir(self.root) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # deleted by another process
                    if entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        found.append(StoredFile(entry.name, status.st_size, status.st_mtime))
        return found


class UrlStorage:
    """A folder behind an fsspec URL: a bucket, or `memory://` of this process.

    An object store has no stamp that could be renewed, so uses are noted in empty objects
    `<name>.used` beside the entries.
    """

    remote = True
    _USED = ".used"

    def __init__(self, url: str) -> None:
        problem = protocol_problem(url)
        if problem is not None:
            raise EnvironmentProblem(
                f"the program cache cannot be kept at {problem}",
                hint="name a directory, or install the package that fsspec asks for",
            )
        self.location = url
        self._fs: Any = None
        self._root = ""

    def _system(self) -> Any:
        if self._fs is None:
            from fsspec.core import url_to_fs

            with _as_os_error(self.location):
                # Listings that fsspec keeps would hide what other hosts write.
                self._fs, self._root = url_to_fs(self.location, use_listings_cache=False)
        return self._fs

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def prepare(self) -> None:
        self._system()  # buckets have no folders to make

    def read(self, name: str) -> tuple[bytes, float | None]:
        fs = self._system()
        with _as_os_error(self.location):
            return bytes(fs.cat_file(self._path(name))), None

    def read_start(self, name: str, count: int) -> bytes:
        fs = self._system()
        with _as_os_error(self.location):
            return bytes(fs.cat_file(self._path(name), start=0, end=count))

    def write(self, name: str, data: bytes) -> None:
        """Under a key of its own first, then moved: not every file system puts a file whole."""
        fs = self._system()
        folder, _, last = name.rpartition("/")
        temporary = self._path(f"{folder}/.{last}.{_writer()}{TEMPORARY}".lstrip("/"))
        with _as_os_error(self.location):
            fs.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)
            try:
                fs.pipe_file(temporary, data)
                fs.mv(temporary, self._path(name))
            except Exception:
                with contextlib.suppress(Exception):
                    fs.rm_file(temporary)
                raise

    def append(self, name: str, data: bytes) -> None:
        """Rewrites the file: of two processes that append at once, one line may be lost."""
        try:
            before, _ = self.read(name)
        except FileNotFoundError:
            before = b""
        self.write(name, before + data)

    def rename(self, name: str, new: str) -> None:
        fs = self._system()
        with _as_os_error(self.location):
            fs.mv(self._path(name), self._path(new))

    def delete(self, name: str) -> None:
        fs = self._system()
        with contextlib.suppress(FileNotFoundError), _as_os_error(self.location):
            fs.rm_file(self._path(name))
        with contextlib.suppress(OSError), _as_os_error(self.location):
            fs.rm_file(self._path(name + self._USED))

    def touch(self, name: str) -> None:
        fs = self._system()
        with _as_os_error(self.location):
            fs.pipe_file(self._path(name + self._USED), b"")

    def files(self) -> list[StoredFile]:
        fs = self._system()
        try:
            with _as_os_error(self.location):
                listed = fs.ls(self._root, detail=True)
        except FileNotFoundError:
            return []
        found: dict[str, StoredFile] = {}
        stamps: dict[str, float | None] = {}
        for item in listed:
            if item.get("type") != "file":
                continue
            name = str(item["name"]).rpartition("/")[2]
            if name.endswith(self._USED):
                stamps[name.removesuffix(self._USED)] = _modified_s(item)
            else:
                found[name] = StoredFile(name, int(item.get("size") or 0), _modified_s(item))
        for name, stamp in stamps.items():
            if name in found and stamp is not None:
                before = found[name]
                used = max(stamp, before.used_s or 0.0)
                found[name] = StoredFile(name, before.size_bytes, used)
        return list(found.values())


def _writer() -> str:
    """Tells apart those who write at once: processes of all hosts, and threads."""
    return f"{os.uname().nodename}.{os.getpid()}.{threading.get_ident():x}.{next(_counter)}"


@contextlib.contextmanager
def _as_os_error(location: str) -> Iterator[None]:
    """fsspec's back ends raise errors of their own libraries; to us they are all OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{location}: {type(error).__name__}: {error}") from error


#: What fsspec's back ends call the time of an object.
_TIMES = ("mtime", "LastModified", "updated", "last_modified", "created")


def _modified_s(item: dict[str, Any]) -> float | None:
    for name in _TIMES:
        value = item.get(name)
        if isinstance(value, (int, float)):
            return float(value)
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return value.timestamp()
    return None


def age_s(file: StoredFile) -> float | None:
    """Seconds since the file was last used, None where that is unknown."""
    return None if file.used_s is None else max(0.0, time.time() - file.used_s)
