"""The list of cells that are known to fail, each with its reason: `expected.toml`."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.cells import Cell, Result

FILE = Path(__file__).with_name("expected.toml")


@dataclass(frozen=True, slots=True)
class Expectation:
    """Cells of one op that fail. Empty dtypes, modes or checks stand for all of them."""

    op: str
    reason: str
    dtypes: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()

    def covers(self, cell: Cell) -> bool:
        return (
            cell.op == self.op
            and (not self.dtypes or cell.dtype in self.dtypes)
            and (not self.modes or cell.mode in self.modes)
            and (not self.checks or cell.check in self.checks)
        )


class Expectations:
    """All entries of a file, looked up by cell."""

    def __init__(self, entries: Iterable[Expectation]) -> None:
        self.by_op: dict[str, list[Expectation]] = defaultdict(list)
        for entry in entries:
            self.by_op[entry.op].append(entry)

    def reason(self, cell: Cell) -> str | None:
        """Why the cell fails, or None if it must pass."""
        return next((e.reason for e in self.by_op.get(cell.op, ()) if e.covers(cell)), None)


def load(path: Path = FILE) -> Expectations:
    """Read the file. Raises ValueError for an entry with an unknown key or without a reason."""
    entries = []
    for values in tomllib.loads(path.read_text(encoding="utf-8")).get("expected", []):
        unknown = set(values) - {"op", "reason", "dtypes", "modes", "checks"}
        if unknown or not values.get("reason"):
            raise ValueError(f"{path.name}: entry {values} has keys {unknown} or no reason")
        lists = {k: tuple(v) for k, v in values.items() if k not in ("op", "reason")}
        entries.append(Expectation(values["op"], values["reason"], **lists))
    return Expectations(entries)


def entries_for(results: Sequence[Result], reasons: Expectations) -> list[Expectation]:
    """Entries that cover exactly the failed cells of a run, as few as there are check kinds.

    Reasons are kept from entries that covered the cell before; a new cell's is its message.
    """
    ran: dict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)
    for r in results:
        if r.status != "absent":
            ran[r.cell.op, r.cell.check].add((r.cell.dtype, r.cell.mode))
    failed: dict[tuple[str, str, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for r in results:
        if r.status == "failed":
            reason = reasons.reason(r.cell) or r.message.split(" | ")[0][:160]
            failed[r.cell.op, r.cell.check, reason][r.cell.dtype].add(r.cell.mode)
    found = []
    for (op, check, reason), dtypes in sorted(failed.items()):
        by_modes: dict[frozenset[str], list[str]] = defaultdict(list)
        for dtype, modes in dtypes.items():
            by_modes[frozenset(modes)].append(dtype)
        for together, names in sorted(by_modes.items(), key=lambda item: sorted(item[0])):
            found.append(
                Expectation(op, reason, tuple(sorted(names)), tuple(sorted(together)), (check,))
            )
    return found


def write(entries: Iterable[Expectation], path: Path = FILE) -> None:
    lines = [
        "# Cells of the operator matrix that fail, each with its reason. They are strict: one",
        "# that passes is an error too. `python -m tests.conformance --update` rewrites the",
        "# entries of the ops it ran and keeps the reasons.",
    ]
    for e in entries:
        lines += ["", "[[expected]]", f"op = {_text(e.op)}"]
        for name in ("dtypes", "modes", "checks"):
            values = getattr(e, name)
            if values:
                lines.append(f"{name} = [{', '.join(_text(v) for v in values)}]")
        lines.append(f"reason = {_text(e.reason)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _text(value: str) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)
