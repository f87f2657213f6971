"""A worker process: checks the cells the parent sends, and says which one it is at.

Protocol, JSON lines. The worker says {"ready": true} when the device is loaded. Each line of
input is a list of cells; each is answered with {"at": cell} before it runs and with
{"result": result} after, and the whole list with {"done": true}. The argument, if any, is how
many samples a cell has at most.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any


def main() -> None:
    # Libraries print on standard output; the parent's pipe is kept apart.
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(**message: Any) -> None:
        print(json.dumps(message), file=pipe, flush=True)

    import torch

    import tpu_perf.runtime.device  # noqa: F401 - loads the device
    from tests.conformance.cells import Cell
    from tests.conformance.checks import run_cell
    from tests.conformance.samples import Choice
    from tpu_perf.runtime.forgetting import forget_programs
    from tpu_perf.runtime.modes import STATE

    torch.set_num_threads(1)
    assert not STATE.cpu_fallback, "what passes must be computed by the device's programs"
    choice = Choice(int(sys.argv[1]) if len(sys.argv) > 1 else None)
    answer(ready=True)
    for line in sys.stdin:
        for values in json.loads(line):
            cell = Cell(**values)
            answer(at=asdict(cell))
            answer(result=run_cell(cell, choice).as_json())
        # Programs of past ops are never asked for again, and each holds memory mappings.
        forget_programs()
        torch._dynamo.reset()
        answer(done=True)


if __name__ == "__main__":
    main()
