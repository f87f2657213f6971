"""A run as a Perfetto trace: host threads, dispatch and device, with counters and flows."""
