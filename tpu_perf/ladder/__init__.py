"""Plans, the parent that samples rungs in turn, and the worker that runs one."""
