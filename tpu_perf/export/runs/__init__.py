"""Exporters of one run; one file a format."""
