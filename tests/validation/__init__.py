"""Predictions against what was measured and published: `python -m tests.validation`."""
