"""Compiled programs on disk: entries, their keys and index, locks and eviction, without torch or
jax, so that the device and the command line read the same format."""
