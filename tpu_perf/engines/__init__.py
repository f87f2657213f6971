"""Backends that run a plan; one file each."""
