"""Event sinks that the runtime writes to while a run is being measured."""

from tpu_perf.recorder.recorder import Recorder, active, record_into

__all__ = ["Recorder", "active", "record_into"]
