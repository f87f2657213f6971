"""Mistakes in a ladder file, collected and told at once: where, what, and what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tpu_perf.errors import ConfigError

#: Where a value sits in the document: keys and list indices from the root.
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake. `place` is `file:line` or the `--set` argument it came from."""

    place: str
    path: Path
    message: str

    def __str__(self) -> str:
        where = dotted(self.path)
        return (
            f"{self.place}: {where}: {self.message}" if where else f"{self.place}: {self.message}"
        )


def dotted(path: Path) -> str:
    """`("rungs", 2, "precision")` as `rungs[2].precision`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A suggestion to append to a message: the nearest known words, or the list of them."""
    options = sorted(known)
    close = difflib.get_close_matches(word, options, n=2, cutoff=0.6)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; known: {', '.join(options)}" if options else ""


def raise_all(problems: Sequence[Problem]) -> None:
    """Raise one ConfigError that tells every problem, in the order of the file."""
    if not problems:
        return
    lines = [str(problem) for problem in dict.fromkeys(problems)]
    if len(lines) > 1:
        lines.insert(0, f"{len(lines)} mistakes:")
    raise ConfigError("\n".join(lines))
