"""Ladder files: their models, loading with line numbers, overrides and JSON schema."""
