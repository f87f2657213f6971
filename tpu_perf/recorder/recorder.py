"""The recorder: takes one row per event, keeps columns, counts what it had to drop.

The hot path is one list append per event, because a Strict op takes ten microseconds in all.
Rows become Arrow columns between steps, where no one is timing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from tpu_perf.record.events import EVENT_KINDS
from tpu_perf.record.store import table_of_rows
from tpu_perf.recorder.packing import (
    KINDS_OF_AN_OP,
    PACKED_KINDS,
    dispatch_event,
    name_number,
    table_of_packed,
    tables_of_ops,
)

_OPS = "op"
#: Events of one kind held as rows before `settle` turns them into columns.
SETTLE_AT = 100_000
#: Events of one kind accepted between two settles; later ones are dropped and counted.
PENDING_LIMIT = 2_000_000

#: A tuple, or for the commonest kinds the bytes that `packing` makes of one.
Row = tuple[Any, ...] | bytes
Append = Callable[[Row], None]


class _DropCounter:
    """Stands in for list.append when a kind is full."""

    __slots__ = ("dropped",)

    def __init__(self) -> None:
        self.dropped = 0

    def __call__(self, event: Row) -> None:
        self.dropped += 1


class Recorder:
    """Event sinks by kind: `recorder.sync((t_start_ns, t_end_ns, reason, step))`.

    Each sink takes a tuple in the column order of its kind in `record.events`; `dispatch`,
    `execute` and `memory` take it packed (`packing.dispatch_event` and its like). `op` takes a
    dispatch and the execution inside it at once. `step` is the index of the step in progress, -1
    outside steps; the runtime puts it into its rows.
    """

    dispatch: Append
    execute: Append
    compile: Append
    flush: Append
    memory: Append
    transfer: Append
    sync: Append
    fallback: Append
    device: Append
    annotation: Append
    lookup: Append
    op: Append

    def __init__(self, pending_limit: int = PENDING_LIMIT, ring: int | None = None) -> None:
        """`ring`: keep only the newest so many events of each kind, and count those before."""
        self.step = -1
        self._limit = pending_limit
        self._ring = ring
        self._overwritten = 0
        self._lock = threading.Lock()
        self._pending: dict[str, list[Any]] = {}
        #: Lists already taken, to which a thread may append a row that it had begun.
        self._former: dict[str, list[Any]] = {}
        self._drops: dict[str, _DropCounter] = {}
        self._settled: dict[str, list[pa.Table]] = {name: [] for name in EVENT_KINDS}
        self._counts: dict[str, int] = dict.fromkeys(EVENT_KINDS, 0)
        for name in (*EVENT_KINDS, _OPS):
            self._drops[name] = _DropCounter()
            self._open(name)

    def _open(self, name: str) -> None:
        rows: list[Any] = []
        self._pending[name] = rows
        setattr(self, name, self._sink(name, rows.append))

    def _sink(self, name: str, append: Append) -> Append:
        """What takes the rows of a kind."""
        return append

    def begin_step(self, step: int) -> None:
        self.step = step

    def end_step(self) -> None:
        """Call between steps: turns rows into columns when many have piled up."""
        self.step = -1
        self.settle_large()

    def settle_large(self) -> None:
        """Turn rows into columns where many have piled up. Any thread may call it."""
        for name, rows in list(self._pending.items()):
            if len(rows) >= SETTLE_AT:
                self._settle(name)

    def _settle(self, name: str) -> None:
        with self._lock:
            pending = self._pending[name]
            self._open(name)
            rows = self._former.pop(name, [])
            count = len(pending)
            rows += pending[:count]
            del pending[:count]
            self._former[name] = pending
            if len(rows) > self._limit:
                self._drops[name].dropped += len(rows) - self._limit
                del rows[self._limit :]
            if rows:
                made = tables_of_ops(rows) if name == _OPS else {name: _table(name, rows)}
                for kind, table in made.items():
                    self._counts[kind] += len(rows)
                    self._settled[kind].append(table)
                    if self._ring is not None:
                        self._overwrite(kind, self._ring)

    def _overwrite(self, kind: str, ring: int) -> None:
        """Give up the oldest rows of a kind beyond the ring's length."""
        excess = sum(table.num_rows for table in self._settled[kind]) - ring
        if excess > 0 and kind in KINDS_OF_AN_OP:  # of two sinks, so not in order of time
            self._settled[kind] = [_in_order(self._settled[kind])]
        tables = self._settled[kind]
        while excess > 0:
            oldest = tables[0].num_rows
            gone = min(excess, oldest)
            tables[0:1] = [] if gone == oldest else [tables[0].slice(gone)]
            self._overwritten += gone
            excess -= gone

    @property
    def dropped_events(self) -> int:
        """Events that were not kept, over all kinds."""
        dropped = sum(counter.dropped for counter in self._drops.values())
        # An op is two events.
        return dropped + self._drops[_OPS].dropped + self._overwritten

    def event_count(self, kind: str) -> int:
        """Events of this kind kept so far, drained ones included."""
        ops = len(self._pending[_OPS]) if kind in KINDS_OF_AN_OP else 0
        return self._counts[kind] + len(self._pending[kind]) + ops

    def drain(self) -> dict[str, pa.Table]:
        """Take everything recorded so far, one Arrow table a kind (empty ones included)."""
        tables = {}
        self._settle(_OPS)
        for name in EVENT_KINDS:
            self._settle(name)
            with self._lock:
                parts, self._settled[name] = self._settled[name], []
            tables[name] = pa.concat_tables(parts or [_table(name, [])])
            if name in KINDS_OF_AN_OP and len(parts) > 1:
                tables[name] = _in_order(parts)
        return tables

    def cost_per_event_ns(self, samples: int = 20_000) -> float:
        """What one event costs the host, measured on a recorder of its own: two clock reads,
        packing and one append."""
        probe = Recorder()
        op = name_number("aten::add.Tensor")
        clock = time.perf_counter_ns
        start = clock()
        for _ in range(samples):
            begin = clock()
            probe.dispatch(dispatch_event(begin, clock(), op, 0, probe.step))
        with_events = clock() - start
        start = clock()
        for _ in range(samples):
            pass
        return (with_events - (clock() - start)) / samples


def _in_order(parts: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(parts).unify_dictionaries().sort_by("t_start_ns")


def _table(name: str, rows: list[Any]) -> pa.Table:
    kind = EVENT_KINDS[name]
    if name in PACKED_KINDS:
        return table_of_packed(kind, rows)
    return table_of_rows(kind.columns, rows)


class _Active:
    """The recorder in force, read by the runtime on every op; None means recording is off."""

    __slots__ = ("recorder",)

    def __init__(self) -> None:
        self.recorder: Recorder | None = None


active = _Active()


@contextmanager
def record_into(recorder: Recorder | None) -> Iterator[Recorder | None]:
    """Make `recorder` the one in force inside the block (None switches recording off)."""
    before = active.recorder
    active.recorder = recorder
    try:
        yield recorder
    finally:
        active.recorder = before
