"""A worker process: builds one contender, then runs it whenever the parent says so.

Protocol, JSON lines: the contender's spec comes as the only argument. The worker answers
{"values": [...], "step_ns": n} when warm; each {"count": n, "variant": v} is answered with
{"times": [...]}. For the kind "compile" the only answer is {"compile_ns": n, "values": [...]}.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from typing import Any, TextIO

from tests.benchmarks.contenders import EVIDENCE, Spec, build, compile_time_ns

#: Steps before the first measured one: programs compile in the first few, and DeferAndFuse
#: learns where to cut in the next.
WARM_UP = 16


def _answers() -> TextIO:
    """The parent's pipe, kept apart from what libraries print on standard output."""
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return pipe


def main(arguments: list[str]) -> None:
    spec = Spec(**json.loads(arguments[0]))
    pipe = _answers()

    def answer(**message: Any) -> None:
        print(json.dumps(message), file=pipe, flush=True)

    if spec.kind == "compile":
        compile_ns, values = compile_time_ns(spec)
        answer(compile_ns=compile_ns, values=values)
        return
    contender = build(spec)
    times, values = contender.run(WARM_UP, "plain")
    answer(values=values[:EVIDENCE], step_ns=statistics.median(times[-3:]))
    for line in sys.stdin:
        message = json.loads(line)
        times, _ = contender.run(message["count"], message["variant"])
        answer(times=times)


if __name__ == "__main__":
    main(sys.argv[1:])
