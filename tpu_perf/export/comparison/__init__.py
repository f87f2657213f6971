"""Comparisons and gates on the terminal, as Markdown and as JSON."""
