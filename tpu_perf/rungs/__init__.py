"""How a workload is run: one file a rung."""
