"""Chip table: peaks and sizes per chip, with sources; one entry a chip."""
