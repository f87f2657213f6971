"""Ladder files: their models, how they are read, and what is said when one is wrong."""
