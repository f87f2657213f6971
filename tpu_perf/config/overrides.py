"""`--set path=value`: changes one value of a ladder file before it is validated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpu_perf.config.problems import Path, Problem, did_you_mean
from tpu_perf.config.yaml_source import Document, parse_value
from tpu_perf.errors import ConfigError


def apply_overrides(document: Document, arguments: Sequence[str]) -> None:
    """Apply each `path=value` in order; what cannot be applied becomes a problem."""
    for argument in arguments:
        try:
            _apply(document, argument)
        except ConfigError as error:
            document.problems.append(Problem(f"--set {argument}", (), error.message))


def _apply(document: Document, argument: str) -> None:
    dotted, equals, text = argument.partition("=")
    parts = dotted.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError("write it as path=value, for example sampling.rounds=3")
    value = parse_value(text)
    target: Any = document.data
    path: Path = ()
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        key = _step(target, part, path)
        path = (*path, key)
        if last:
            _forget_below(document, path)
            document.overrides[path] = argument
            target[key] = value
        elif isinstance(target, list):
            if isinstance(target[key], str):
                target[key] = {"rung": target[key]}
            target = target[key]
        else:
            if not isinstance(target.get(key), dict | list):
                document.overrides[path] = argument
                target[key] = {}
            target = target[key]


def _step(target: Any, part: str, path: Path) -> Any:
    """The key or index that `part` means in `target`; list items may be given by name."""
    if isinstance(target, dict):
        return part
    if not isinstance(target, list):
        raise ConfigError(f"{part!r} has no place to go: what it should change is a single value")
    if part.lstrip("-").isdigit():
        if 0 <= int(part) < len(target):
            return int(part)
        raise ConfigError(f"{part} is outside the list, which has {len(target)} entries")
    names = [_name(item) for item in target]
    if part in names:
        return names.index(part)
    raise ConfigError(f"no entry is named {part!r}{did_you_mean(part, filter(None, names))}")


def _name(item: Any) -> str:
    if isinstance(item, dict):
        return str(item.get("name", item.get("rung", "")))
    return str(item)


def _forget_below(document: Document, path: Path) -> None:
    """Lines of what is being replaced no longer tell where a value was written."""
    for known in [known for known in document.lines if known[: len(path)] == path]:
        del document.lines[known]
