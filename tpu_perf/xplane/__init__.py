"""XPlane, the file format of XLA's profiler: its schema, and writing its planes fast."""
