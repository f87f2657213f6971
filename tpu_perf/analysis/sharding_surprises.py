"""What is not as a sharding strategy would have it: named in the sentence of why."""

from __future__ import annotations

from collections.abc import Iterator

from tpu_perf.analysis.collectives import is_spread, moved, on_virtual_devices, slowest
from tpu_perf.analysis.quantities import byte_count, count, percent, seconds
from tpu_perf.analysis.rung_record import NS, RungRecord

#: What is less than this share of all bytes moved, of all state, or of the step, is not worth a
#: sentence.
_SHARE = 0.02
#: A collective is not hidden where this share of its time has nothing beside it.
_EXPOSED = 0.8


def surprises(rung: RungRecord) -> list[str]:
    """Sentences, the costliest first; none for a rung on one device."""
    if rung.run is None or rung.tables is None or not is_spread(rung.tables):
        return []
    return [*_moved_otherwise(rung), *_copied(rung), *_exposed(rung)]


def _moved_otherwise(rung: RungRecord) -> Iterator[str]:
    frame = moved(rung.measured)
    total = float(frame["bytes"].sum())
    for row in frame.to_dict("records"):
        nbytes = row["bytes"]
        if nbytes < _SHARE * total:
            continue
        times = count(round(row["times"], 1))
        what = f"{byte_count(nbytes)} of {row['role']} by {times} {row['kind']}"
        axes = set(row["axes"].split("+"))
        if row["kind"] == "all-reduce" and row["role"] == "gradients" and "fsdp" in axes:
            where = ""
            if on_virtual_devices(rung):
                where = "; XLA:CPU has no reduce-scatter, on a TPU XLA makes one"
            yield (
                f"{what} along {row['axes']}, twice the traffic of the reduce-scatter that would do"
                f"{where}"
            )
        elif row["role"] == "activations" and row["kind"] in ("all-gather", "all-to-all"):
            if axes <= {"fsdp", "data"}:
                yield f"{what} along {row['axes']}: activations move where weights should"
            elif "tensor" in axes and row["kind"] == "all-gather":
                yield f"{what} along {row['axes']}: tensor parallelism should only sum them"


def _copied(rung: RungRecord) -> Iterator[str]:
    """Parameters that the strategy's axes could split and do not."""
    assert rung.run is not None
    sharding = rung.run.plan.sharding
    rows = rung.measured.detail("placements")
    rows = rows[rows["category"] == "parameter"]
    total = float(rows["bytes"].sum())
    if sharding is None or sharding.mesh.get("fsdp", 1) == 1:
        return
    whole = rows[~rows["split"].astype(str).str.contains("fsdp", regex=False)]
    nbytes = float(whole["bytes"].sum())
    if nbytes < _SHARE * total:
        return
    largest = whole.sort_values("bytes", ascending=False).iloc[0]
    more = f" and {len(whole) - 1} more" if len(whole) > 1 else ""
    yield (
        f"{largest['name']} {largest['shape']}{more} ({byte_count(nbytes)}, "
        f"{percent(nbytes / total)} of all parameters) are copied on every device of the axis fsdp"
    )


def _exposed(rung: RungRecord) -> Iterator[str]:
    step = rung.value("step_time")
    exposed, hidden = rung.value("collective_exposed_time"), rung.value("collective_hidden_time")
    if not step or exposed is None or hidden is None or exposed < _SHARE * step:
        return
    share = exposed / (exposed + hidden)
    if share < _EXPOSED:
        return
    frame = slowest(rung.measured, top=1)
    longest = ""
    if len(frame):
        row = frame.iloc[0]
        tensor = f" of {row['tensor']}" if row["tensor"] else f" of {row['role']}"
        longest = (
            f", longest {row['instruction']} ({row['kind']}{tensor} along {row['axes']}, "
            f"{byte_count(float(row['bytes']))}) with {seconds(float(row['ns']) * NS)}"
        )
    yield (
        f"nothing hides the collectives: {seconds(exposed)} of {seconds(exposed + hidden)} under "
        f"the profiler have no other work beside them{longest}"
    )
