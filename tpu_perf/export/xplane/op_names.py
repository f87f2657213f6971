"""Where a program's or an instruction's ops come from, as XProf wants it told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from tpu_perf.export.xplane.capture import Capture, texts


@dataclass(frozen=True, slots=True)
class Origin:
    """Of an op: "module/path/aten::op", "module.path", "file:line", the user's frames, and
    forward | backward | optimizer | other; "" where unknown."""

    tf_op: str = ""
    module: str = ""
    source: str = ""
    stack: str = ""
    phase: str = ""


UNKNOWN = Origin()


class OpNames:
    """Looks up the ops of programs by position, and sites."""

    def __init__(self, capture: Capture) -> None:
        self.sites = _site_origins(capture.detail("sites"))
        self._ops: dict[int, dict[int, tuple[str, int]]] = {}
        table = capture.detail("program_ops")
        rows = zip(
            table["program"], table["position"], texts(table["op"]), table["site"], strict=True
        )
        for program, position, op, site in rows:
            self._ops.setdefault(int(program), {})[int(position)] = (op, int(site))

    def of_site(self, site: int, op: str = "") -> Origin:
        """The origin of an op that was called at a site."""
        found = self.sites.get(site, UNKNOWN)
        path = "/".join(part for part in (found.module.replace(".", "/"), op) if part)
        return replace(found, tf_op=path if op else "")

    def of_instruction(self, program: int, positions: object) -> tuple[Origin, str]:
        """The origin of the last op that an instruction computes (XLA, too, names a fusion after
        its root), and the names of all of them, comma-separated. `positions` as stored: JSON."""
        ops = self._ops.get(program, {})
        chosen = [ops[at] for at in _positions(positions) if at in ops]
        return self._named(chosen)

    def of_program(self, program: int) -> tuple[Origin, str]:
        """The same for a whole program."""
        ops = self._ops.get(program, {})
        return self._named([ops[at] for at in sorted(ops)])

    def _named(self, ops: Sequence[tuple[str, int]]) -> tuple[Origin, str]:
        if not ops:
            return UNKNOWN, ""
        op, site = ops[-1]
        return self.of_site(site, op), ", ".join(name for name, _ in ops)


def _positions(stored: object) -> list[int]:
    if not isinstance(stored, str) or not stored:
        return []
    found = json.loads(stored)
    return [int(position) for position in found]


def _site_origins(table: pd.DataFrame) -> dict[int, Origin]:
    """Site -> Origin without `tf_op`."""
    columns = [texts(table[name]) for name in ("file", "module", "stack", "phase")]
    return {
        int(site): Origin("", module, f"{file}:{line}" if file else "", stack, phase)
        for site, line, file, module, stack, phase in zip(
            table["site"], table["line"], *columns, strict=True
        )
    }
