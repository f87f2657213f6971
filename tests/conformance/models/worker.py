"""A worker process that runs models; its protocol is that of `tests.conformance.worker`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

_MOST_PROGRAMS = 4000


def main() -> None:
    # Libraries print on standard output; the parent's pipe is kept apart.
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # Optional kernels from the network would be another library's code.
    os.environ["USE_HUB_KERNELS"] = "0"
    os.environ["HF_HUB_OFFLINE"] = "1"

    def answer(**message: Any) -> None:
        print(json.dumps(message), file=pipe, flush=True)

    import torch

    import tpu_perf.runtime.device  # noqa: F401 - loads the device
    from tests.conformance.models.cells import ModelCell
    from tests.conformance.models.comparison import Runner
    from tests.conformance.models.libraries import let_torchvision_import
    from tpu_perf.runtime.forgetting import forget_programs
    from tpu_perf.runtime.modes import STATE
    from tpu_perf.runtime.program_cache import CACHE

    torch.set_num_threads(1)
    let_torchvision_import()
    assert not STATE.cpu_fallback, "what passes must be computed by the device's programs"
    runner = Runner()
    answer(ready=True)
    for line in sys.stdin:
        for values in json.loads(line):
            cell = ModelCell(**values)
            answer(at=asdict(cell))
            answer(result=runner.run(cell).as_json())
            torch._dynamo.reset()
        # Models share many programs, but each holds memory mappings, of which there are few.
        if len(CACHE.by_key) > _MOST_PROGRAMS:
            forget_programs()
        answer(done=True)


if __name__ == "__main__":
    main()
