"""Host side of a trace: steps, annotations, modules and aten ops by thread, and dispatch."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pandas as pd

from tpu_perf.export.perfetto.tracks import Body, Describe, Slices, Track, joined, slices_of
from tpu_perf.record.events import Tier
from tpu_perf.record.store import StoredRun

#: Kinds of event on the dispatch lane, in the order in which their tracks are shown.
DISPATCH_KINDS = ("execute", "compile", "lookup", "flush", "transfer", "sync", "fallback")
NOWHERE = -1


class Names:
    """What the numbers in events stand for, read once for a run."""

    def __init__(self, stored: StoredRun) -> None:
        programs = stored.programs().drop_duplicates("program", keep="last")
        self.programs: dict[int, str] = {
            int(number): str(name)
            for number, name in zip(programs["program"], programs["name"], strict=True)
        }
        sites = stored.detail("sites").drop_duplicates("site").astype({"module": "object"})
        self.sites: dict[int, tuple[str, int, str, str, str]] = {
            int(row["site"]): (
                _text(row["file"]),
                int(row["line"]),
                _text(row["module"]),
                _text(row["module_class"]),
                _text(row["phase"]),
            )
            for row in sites.to_dict("records")
        }
        self.shapes = _shapes(stored)

    def program(self, number: int) -> str:
        return self.programs.get(number, f"program {number}" if number >= 0 else "unknown program")


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _shapes(stored: StoredRun) -> dict[tuple[int, str], str]:
    """Argument shapes by program and op, where the program holds that op on one geometry only:
    a dispatch names its program, not its call."""
    calls = stored.detail("calls").drop_duplicates("call").set_index("call")["arguments"]
    ops = stored.detail("program_ops")
    found: dict[tuple[int, str], set[int]] = {}
    for program, op, call in zip(ops["program"], ops["op"], ops["call"], strict=True):
        found.setdefault((int(program), str(op)), set()).add(int(call))
    out = {}
    for key, numbers in found.items():
        number = next(iter(numbers))
        if len(numbers) == 1 and number in calls.index:
            out[key] = shapes_text(str(calls[number]))
    return {key: text for key, text in out.items() if text}


def shapes_text(arguments: str) -> str:
    """The tensors among the arguments of a call: `float32[2, 3], int64[4]`."""
    try:
        values = json.loads(arguments)
    except ValueError:
        return ""
    parts = [part for value in values for part in (value if isinstance(value, list) else [value])]
    return ", ".join(
        f"{part.get('dtype', 'unknown')}{list(part['shape'])}"
        for part in parts
        if isinstance(part, dict) and "shape" in part
    )


def host_tracks(
    tables: Mapping[str, pd.DataFrame], steps: pd.DataFrame, names: Names
) -> list[Track]:
    """Steps on a track of their own; for each thread its annotations, modules and aten ops."""
    tracks = []
    if not steps.empty:
        tracks.append(Track(group="host", name="steps", slices=_steps(steps)))
    dispatch, annotation = tables["dispatch"], tables["annotation"]
    threads = sorted({*dispatch["thread"].unique(), *annotation["thread"].unique()})
    for thread in threads:
        ops = dispatch[dispatch["thread"] == thread].sort_values(
            ["t_start_ns", "t_end_ns"], ascending=[True, False], kind="stable"
        )
        said = annotation[annotation["thread"] == thread]
        # With equal times the outer one comes first: what users say, then modules, then ops.
        parts = [
            slices_of(said, ["name", "kind"], _annotation),
            module_slices(ops, said, steps, names, recorded=(said["kind"] == "module").any()),
            slices_of(ops, ["op", "site", "program"], lambda *row: _op(names, *row)),
        ]
        name = f"thread {thread}" if thread >= 0 else "thread not recorded"
        tracks.append(Track(group="host", name=name, slices=joined(parts)))
    return tracks


def _steps(steps: pd.DataFrame) -> Slices:
    def body(step: int, phase: str, compiles: int) -> Body:
        args = (("phase", str(phase)), ("compiles", int(compiles)))
        return Body("step", f"step {step} ({phase})", args)

    return slices_of(steps, ["step", "phase", "compiles"], body)


def _annotation(name: str, kind: str) -> Body:
    return Body("annotation", _text(name) or "(no name)", (("kind", _text(kind)),))


def _op(names: Names, op: str, site: int, program: int) -> Body:
    file, line, module, _, phase = names.sites.get(site, ("", -1, "", "", ""))
    shown: list[tuple[str, str | int]] = []
    if file:
        shown.append(("line", f"{file}:{line}"))
    if module:
        shown.append(("module", module))
    if phase:
        shown.append(("phase", phase))
    if program >= 0:
        shown.append(("program", names.program(program)))
    if (program, op) in names.shapes:
        shown.append(("shapes", names.shapes[program, op]))
    return Body("dispatch", _text(op) or "(no name)", tuple(shown))


def module_slices(
    ops: pd.DataFrame,
    annotations: pd.DataFrame,
    steps: pd.DataFrame,
    names: Names,
    *,
    recorded: bool = False,
) -> Slices:
    """Modules as slices around consecutive dispatches of one thread, sorted by start: phase, then
    one slice a part of the module path (forward > model > layers > 3 > mlp).

    A slice lasts from its first op's start to its last op's end. It ends where the path leaves
    it, and where a step or an annotation begins or ends, so that it nests in those. Where the
    forwards of modules were `recorded` themselves, only the other phases are grouped.
    """
    if ops.empty:
        return joined([])
    start = ops["t_start_ns"].to_numpy(dtype=np.int64)
    # An op nested in another lies in what that one lies in: only outermost ops open modules.
    reach = np.maximum.accumulate(ops["t_end_ns"].to_numpy(dtype=np.int64))
    outermost = np.concatenate([[True], start[1:] >= reach[:-1]])
    edges = [frame[["t_start_ns", "t_end_ns"]].to_numpy().ravel() for frame in (annotations, steps)]
    section = np.searchsorted(np.sort(np.concatenate(edges)), start, side="right")
    grouping = _Grouping()
    paths: dict[int, tuple[str, ...]] = {}
    rows = zip(
        start[outermost].tolist(),
        ops["t_end_ns"].to_numpy()[outermost].tolist(),
        ops["site"].to_numpy()[outermost].tolist(),
        section[outermost].tolist(),
        strict=True,
    )
    for begins, ends, site, within in rows:
        path = paths.get(site)
        if path is None:
            path = paths[site] = _path(names, site, recorded)
        grouping.add(begins, ends, path, within)
    return grouping.slices()


def _path(names: Names, site: int, recorded: bool) -> tuple[str, ...]:
    _, _, module, _, phase = names.sites.get(site, ("", -1, "", "", ""))
    if not phase or phase == "other" or (recorded and phase == "forward"):
        return ()
    # The outermost module alone is "(root)", which is one part, whatever its name holds.
    return (phase, *module.split(".")) if module else (phase,)


class _Grouping:
    """Opens and closes nested slices as the path changes from op to op."""

    def __init__(self) -> None:
        self._open: list[tuple[int, int]] = []  # (start, index of body)
        self._path: tuple[str, ...] = ()
        self._section = -1
        self._end = 0
        self._bodies: dict[tuple[str, ...], int] = {}
        self._closed: list[tuple[int, int, int]] = []

    def add(self, start: int, end: int, path: tuple[str, ...], section: int) -> None:
        shared = 0
        if section == self._section:
            for before, now in zip(self._path, path, strict=False):
                if before != now:
                    break
                shared += 1
        self._close(shared)
        for depth in range(shared, len(path)):
            body = self._bodies.setdefault(path[: depth + 1], len(self._bodies))
            self._open.append((start, body))
        self._path, self._section, self._end = path, section, end

    def _close(self, keep: int) -> None:
        while len(self._open) > keep:
            start, body = self._open.pop()
            self._closed.append((start, self._end, body))

    def slices(self) -> Slices:
        self._close(0)
        # Opened outer first, closed inner first: reversed, the outer comes first again.
        columns = np.array(self._closed[::-1], dtype=np.int64).reshape(-1, 3)
        return Slices(
            start_ns=columns[:, 0],
            end_ns=columns[:, 1],
            body=columns[:, 2],
            bodies=[
                Body("module", path[-1], (("module", ".".join(path[1:])), ("phase", path[0])))
                for path in self._bodies
            ],
        )


def dispatch_tracks(tables: Mapping[str, pd.DataFrame], names: Names) -> list[Track]:
    """One track a kind of event on the way from an op to the device; empty kinds are left out."""
    describe: dict[str, tuple[list[str], Describe]] = {
        "execute": (["program", "tier"], lambda p, t: _program("execute", names, p, t)),
        "compile": (
            ["program", "tier", "trace_ns", "backend_ns", "differed", "source"],
            lambda p, t, *more: _program("compile", names, p, t, _compile_args(*more)),
        ),
        "lookup": (
            ["program", "tier", "hit", "differed"],
            lambda p, t, hit, differed: _program(
                "lookup", names, p, t, _known(hit=int(hit), differed=differed)
            ),
        ),
        "flush": (
            ["reason", "ops", "program"],
            lambda reason, ops, p: Body(
                "flush",
                _text(reason) or "unknown",
                _known(reason=reason, ops=int(ops), program=names.program(p)),
            ),
        ),
        "transfer": (
            ["direction", "bytes"],
            lambda direction, count: Body(
                "transfer", _text(direction) or "unknown", _known(bytes=int(count))
            ),
        ),
        "sync": (["reason"], lambda reason: Body("sync", _text(reason) or "unknown")),
        "fallback": (["op"], lambda op: Body("fallback", _text(op) or "(no name)")),
    }
    return [
        Track(group="dispatch", name=kind, slices=slices_of(tables[kind], *describe[kind]))
        for kind in DISPATCH_KINDS
        if not tables[kind].empty
    ]


Args = tuple[tuple[str, str | int], ...]


def _known(**values: object) -> Args:
    """Arguments that are known: -1 and empty text stand for what is not."""
    return tuple(
        (name, value)
        for name, value in values.items()
        if (isinstance(value, str) and value) or (isinstance(value, int) and value != NOWHERE)
    )


def _compile_args(trace_ns: int, backend_ns: int, differed: object, source: object) -> Args:
    return _known(
        trace_ns=int(trace_ns), backend_ns=int(backend_ns), differed=differed, source=source
    )


def _program(category: str, names: Names, program: int, tier: int, more: Args = ()) -> Body:
    known = tier in set(Tier)
    shown: Args = (("tier", Tier(tier).name.lower() if known else "unknown"),)
    return Body(category, names.program(program), (*shown, *more))
