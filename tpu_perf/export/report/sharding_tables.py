"""Tables of the report on jobs over several devices: what moves, and what is copied."""

from __future__ import annotations

from tpu_perf.analysis import quantities
from tpu_perf.analysis.collectives import is_spread, moved, replicated
from tpu_perf.analysis.rung_record import RungRecord
from tpu_perf.export.report.rung_tables import Table, cell

_METRICS = ("scaling_efficiency", "collectives_per_step", "collective_bytes_per_step",
            "collective_sent_bytes_per_step", "collective_exposed_time", "collective_hidden_time",
            "hbm_peak_bytes", "replicated_bytes")  # fmt: skip
_HEADS = ("scaling efficiency", "collectives", "bytes moved", "sent by a device", "exposed",
          "hidden", "HBM peak of a device", "state copied")  # fmt: skip
#: Copied tensors listed per rung; the rest is counted.
_MOST_COPIED = 5


def tables(rungs: list[RungRecord]) -> list[Table]:
    """Empty for a ladder of one device."""
    spread = [r for r in rungs if r.ok and r.tables is not None and is_spread(r.tables)]
    if not spread:
        return []
    return [_summary(spread), _moved(spread), *_copied(spread)]


def _summary(rungs: list[RungRecord]) -> Table:
    rows = [(rung.name, _mesh(rung), *(_text(rung, name) for name in _METRICS)) for rung in rungs]
    note = (
        "Per step. Bytes moved are those of whole arrays; sent, what the ring algorithm makes each "
        "device send. Exposed and hidden: a collective is under way on a device, without and with "
        "other work beside it, under XLA's profiler. Virtual devices of a CPU share its cores and "
        "count as one in the scaling efficiency. Bytes and counts are derived from the compiled "
        "program, times and peak are measured."
    )
    return Table(
        caption="Over several devices", head=("rung", "mesh", *_HEADS), rows=rows, left=2, note=note
    )


def _mesh(rung: RungRecord) -> str:
    sharding = None if rung.run is None else rung.run.plan.sharding
    if sharding is None:
        return "unknown"
    return f"{sharding.strategy}: {' x '.join(f'{k} {v}' for k, v in sharding.mesh.items())}"


def _text(rung: RungRecord, name: str) -> str:
    return cell(name, rung.metric(name)).text


def _moved(rungs: list[RungRecord]) -> Table:
    rows = [
        (rung.name, row["kind"], row["axes"], row["role"],
         quantities.count(round(row["times"], 1)), quantities.byte_count(row["bytes"]),
         quantities.byte_count(row["sent_bytes"]))
        for rung in rungs if rung.tables is not None
        for row in moved(rung.tables).to_dict("records")
    ]  # fmt: skip
    head = ("rung", "collective", "along", "of", "times", "bytes moved", "sent by a device")
    return Table(
        caption="What moves between devices in a step", head=head, rows=rows, left=4, texts=(2, 3)
    )


def moved_lines(rung: RungRecord) -> list[str]:
    """One line a kind, axis and role."""
    if rung.tables is None:
        return []
    return [
        f"{row['kind']} along {row['axes']} of {row['role']}: "
        f"{quantities.byte_count(row['bytes'])} in {quantities.count(round(row['times'], 1))}"
        for row in moved(rung.tables).to_dict("records")
    ]


def _copied(rungs: list[RungRecord]) -> list[Table]:
    rows = []
    for rung in rungs:
        assert rung.tables is not None
        frame = replicated(rung.tables).sort_values("bytes", ascending=False)
        rows += [
            (rung.name, row["name"], row["shape"], row["split"] or "-",
             quantities.byte_count(row["bytes"]),
             str(int(row["devices"]) // max(1, int(row["parts"]))))
            for row in frame.head(_MOST_COPIED).to_dict("records")
        ]  # fmt: skip
        if len(frame) > _MOST_COPIED:
            rest = frame.iloc[_MOST_COPIED:]
            rows.append((rung.name, f"{len(rest)} more", "", "",
                         quantities.byte_count(float(rest["bytes"].sum())), ""))  # fmt: skip
    if not rows:
        return []
    head = ("rung", "tensor", "shape", "split along", "bytes on a device", "copies")
    return [Table(caption="State that several devices hold alike", head=head, rows=rows, left=4)]
