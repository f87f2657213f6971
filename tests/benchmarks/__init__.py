"""Ratios against the peers and budgets of the project: `python -m tests.benchmarks`."""
