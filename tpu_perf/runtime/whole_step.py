"""Whole-step capture."""

from __future__ import annotations

from typing import Any


def note_upload(src: Any, dst: Any) -> None: ...


def refuse_read() -> None: ...
