"""Architectures for which the general rules of configs and inputs do not do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Override:
    """`config` is merged into the tiny config's arguments, dicts within dicts; `needed` goes to
    the default config, which some classes cannot do without; `inputs` replaces the general rules;
    `skip` says why the architecture cannot be built at all."""

    config: dict[str, Any] = field(default_factory=dict)
    needed: dict[str, Any] = field(default_factory=dict)
    inputs: Callable[[Any], dict[str, Any]] | None = None
    model_class: str | None = None
    skip: str = ""

    def applied(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return merged({**self.needed, **arguments}, self.config)


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        inner = result.get(key)
        both = isinstance(inner, dict) and isinstance(value, dict)
        result[key] = merged(inner, value) if both else value  # type: ignore[arg-type]
    return result


OVERRIDES: dict[str, Override] = {}
