"""Captures made elsewhere, read into run directories; one file a format."""
