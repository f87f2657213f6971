"""DIR, the one directory that the dashboard reads: what lies in it, and nothing outside it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tpu_perf.errors import StoredRunError
from tpu_perf.record.store import LADDER_FILE, PARTIAL_SUFFIX, RUN_FILE

#: Directories below DIR that are looked through for ladders and runs.
MAX_DEPTH = 6
#: A JSON document larger than this is not one of ours, and would hold up the page.
MAX_DOCUMENT_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A ladder or run directory: its path below DIR, and when its document last changed."""

    path: str
    kind: str  # ladder | run | partial
    changed_ns: int


class Directory:
    """Resolves paths from URLs and documents. Everything refused is a StoredRunError."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def resolve(self, path: str) -> Path:
        """The directory at this path below DIR; symlinks must not lead out of it."""
        if "\0" in path:
            raise StoredRunError("this path cannot exist: it holds a null character")
        try:
            found = (self.root / path).resolve()
        except (OSError, RuntimeError) as error:  # too long, or a loop of symlinks
            raise StoredRunError(f"{path!r} cannot be opened: {error}") from None
        if not found.is_relative_to(self.root):
            raise StoredRunError(
                f"{path!r} lies outside the directory that this dashboard shows",
                hint=f"start another: tpu-perf dashboard {found if found.is_dir() else 'DIR'}",
            )
        return found

    def below(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def ladder(self, path: str) -> Path:
        """A ladder directory whose ladder.json is a plain file inside DIR."""
        directory = self.resolve(path)
        self._document(directory / LADDER_FILE)
        return directory

    def run(self, path: str) -> Path:
        """A run directory of which every file that is read lies inside DIR."""
        directory = self.resolve(path)
        self._document(directory / RUN_FILE)
        self.check_tables(directory)
        return directory

    def check_tables(self, directory: Path) -> None:
        """Refuse tables that are symlinks out of DIR, or no plain files."""
        for folder in (directory, directory / "events"):
            if not folder.is_dir():
                continue
            if not folder.resolve().is_relative_to(self.root):
                raise StoredRunError(f"{self.below(directory)}/events leads outside DIR")
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.endswith((".parquet", ".json", ".txt")):
                        self._file(Path(entry.path))

    def _document(self, path: Path) -> None:
        self._file(path)
        if path.stat().st_size > MAX_DOCUMENT_BYTES:
            raise StoredRunError(f"{self._shown(path)} is too large to be one of our documents")

    def _file(self, path: Path) -> None:
        try:
            found = path.resolve(strict=True)
            regular = stat.S_ISREG(found.stat().st_mode)
        except (OSError, RuntimeError):
            raise StoredRunError(
                f"{self._shown(path)} does not exist", hint="was it moved or removed?"
            ) from None
        if not found.is_relative_to(self.root):
            raise StoredRunError(f"{self._shown(path)} leads outside DIR and is not read")
        if not regular:  # reading a pipe or a device could last forever
            raise StoredRunError(f"{self._shown(path)} is not a plain file")

    def _shown(self, path: Path) -> str:
        return self.below(path) if path.is_relative_to(self.root) else path.name

    def found(self) -> list[Found]:
        """All ladders, and runs outside ladders, newest first. Symlinked directories are left
        out: what they lead to is found where it lies, if it lies in DIR."""
        found = list(self._walk(self.root, 0))
        return sorted(found, key=lambda one: (-one.changed_ns, one.path))

    def _walk(self, folder: Path, depth: int) -> Iterator[Found]:
        for name, kind in ((LADDER_FILE, "ladder"), (RUN_FILE, "run")):
            changed = _changed_ns(folder / name)
            if changed is not None:
                yield Found(path=self.below(folder), kind=kind, changed_ns=changed)
                return
        if folder.name.endswith(PARTIAL_SUFFIX):
            changed = _changed_ns(folder) or 0
            yield Found(path=self.below(folder), kind="partial", changed_ns=changed)
            return
        if depth >= MAX_DEPTH:
            return
        try:
            with os.scandir(folder) as entries:
                folders = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return  # not ours to read
        for path in folders:
            yield from self._walk(Path(path), depth + 1)


def _changed_ns(path: Path) -> int | None:
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return None
