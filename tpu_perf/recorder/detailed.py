"""A recorder that also says where in the user's program each op and each buffer comes from."""

from __future__ import annotations

import itertools
import sys
import threading
from collections import defaultdict
from typing import Any

from tpu_perf.record.events import DISPATCH, MEMORY
from tpu_perf.recorder.packing import site_and_thread, site_only
from tpu_perf.recorder.recorder import PENDING_LIMIT, Append, Recorder
from tpu_perf.recorder.sites import Sites

#: The byte of a packed memory event that holds the sign of its delta.
_DELTA_SIGN = 15 if sys.byteorder == "little" else 8
_NOWHERE = site_only(-1)


class DetailedRecorder(Recorder):
    """Adds the site and the thread to every dispatch, and the site to every memory event.

    It costs a walk over the frames on the stack, one to three microseconds an op; the events
    themselves are those of Recorder.
    """

    def __init__(self, sites: Sites, pending_limit: int = PENDING_LIMIT,
                 ring: int | None = None) -> None:  # fmt: skip
        self.sites = sites
        counter = itertools.count()
        self._threads: dict[int, int] = defaultdict(lambda: next(counter))
        super().__init__(pending_limit, ring)

    def end_step(self) -> None:
        super().end_step()
        self.sites.forget_sequences()

    def _sink(self, name: str, append: Append) -> Append:
        here, threads, ident = self.sites.here, self._threads, threading.get_ident
        if name in ("op", DISPATCH.name):

            def dispatched(event: Any) -> None:
                append(event + site_and_thread(here(), threads[ident()]))

            return dispatched
        if name == MEMORY.name:

            def allocated(event: Any) -> None:
                released = event[_DELTA_SIGN] & 0x80
                append(event + (_NOWHERE if released else site_only(here())))

            return allocated
        return append
