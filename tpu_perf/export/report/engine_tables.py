"""The report's section on engines: one job on two of them, and where they cut a step."""

from __future__ import annotations

from collections.abc import Sequence

from tpu_perf.analysis import quantities
from tpu_perf.analysis.engine_comparison import EngineRung, Pair, cuts, loss_difference
from tpu_perf.export.report.figures import GREY, Figure, colour, layout, shown
from tpu_perf.export.report.rung_tables import Table

#: Ops listed of a pair of rungs.
MAX_OPS = 12
#: Blocks drawn of a step; beyond, they are thinner than a pixel.
MAX_BLOCKS = 2_000
STAND_IN = "torch_tpu over a CPU plugin, not a TPU"
_METRICS = (
    *("step_time", "cache_requests_per_step", "programs", "cache_hit_rate"),
    *("compile_time", "first_step_time"),
)


def comparison(pairs: Sequence[Pair]) -> Table | None:
    """Both engines of each mode; None where no mode ran on two."""
    rows = []
    for first, second in pairs:
        rows += [_row(first, None), _row(second, first)]
    if not rows:
        return None
    head = (
        *("rung", "mode", "engine", "step time", "programs / step", "distinct programs"),
        *("cache hits", "compile time", "first step", "ops / program", "not resolved"),
        "loss, largest diff (nat)",
    )
    return Table(
        caption="The same job on two engines, mode by mode",
        head=head,
        rows=rows,
        left=3,
        note="Programs are those of steady steps. Ops per program: mean over executions whose "
        "program is known; TorchTPU's log names programs on cache misses only, and what its "
        "counters could not resolve is the share shown. Losses: against the other engine's, over "
        "the first steps.",
    )


def _row(one: EngineRung, other: EngineRung | None) -> tuple[str, ...]:
    size, unresolved = one.ops_per_program, one.unresolved_share
    loss = None if other is None else loss_difference(one.rung, other.rung)
    return (
        one.rung.name,
        one.mode,
        STAND_IN if one.stand_in else one.engine,
        *(quantities.text(name, one.rung.metric(name)) for name in _METRICS),
        "–" if size is None else quantities.digits(size),
        "–" if unresolved is None else f"{unresolved:.0%}",
        "" if other is None else "–" if loss is None else f"{loss:.1e}",
    )


def cut_tables(pairs: Sequence[Pair]) -> list[Table]:
    """For each pair, the ops that the two put into programs most differently."""
    out = []
    for first, second in pairs:
        found = [cut for cut in cuts(first, second) if cut.weight > 0]
        if not found or None in (first.ops_per_program, second.ops_per_program):
            continue
        names = (first.rung.name, second.rung.name)
        out.append(
            Table(
                caption=f"Where {names[0]} and {names[1]} cut differently",
                head=(
                    "op",
                    *(
                        f"{name}: {what}"
                        for what in ("runs / step", "ops in its program")
                        for name in names
                    ),
                ),
                rows=[
                    (cut.op, *map(str, cut.runs), *map(_size, cut.program_ops))
                    for cut in found[:MAX_OPS]
                ],
                note=f"{quantities.counted(len(found), 'op')} differ; those that cost most "
                "programs come first. An op alone in its program has size 1. The two name some "
                "ops differently: what one calls linear may be t and addmm in the other.",
            )
        )
    return out


def _size(value: float | None) -> str:
    return "–" if value is None else quantities.digits(value)


def step_cuts(pairs: Sequence[Pair]) -> Figure | None:
    """One bar a rung: a steady step from left to right, a block for each program."""
    chosen = [one for pair in pairs for one in pair if one.ops_per_program is not None]
    if not chosen:
        return None
    return Figure(
        id="step-cuts",
        title="A step as each engine cuts it",
        description="A block is a program, as wide as it has ops; grey where its ops are not "
        "known, drawn as one.",
        data=[_blocks(one) for one in chosen],
        layout=layout(
            barmode="overlay",
            xaxis={"title": {"text": "ops of a step, in order"}},
            yaxis={
                "type": "category",
                "categoryorder": "array",
                "categoryarray": [shown(one.rung.name) for one in chosen],
                "autorange": "reversed",
                "automargin": True,
            },
            showlegend=False,
        ),
        height=110 + 44 * max(2, len(chosen)),
    )


def _blocks(one: EngineRung) -> dict[str, object]:
    widths, bases, colours, words, at = [], [], [], [], 0
    for index, program in enumerate(one.programs[:MAX_BLOCKS]):
        width = len(program.ops) if program.ops is not None else 1
        widths.append(width)
        bases.append(at)
        colours.append(GREY if program.ops is None else colour(index % 2))
        listed = ", ".join((program.ops or ("ops not known",))[:8])
        more = ", ..." if program.ops and len(program.ops) > 8 else ""
        words.append(shown(f"{program.name}: {listed}{more}"))
        at += width
    return {
        "type": "bar",
        "orientation": "h",
        "y": [shown(one.rung.name)] * len(widths),
        "x": widths,
        "base": bases,
        "marker": {"color": colours, "line": {"width": 0.3}},
        "customdata": words,
        "hovertemplate": "%{customdata}<extra>%{x} ops</extra>",
    }
