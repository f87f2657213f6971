"""What torch refuses of a distribution's parameters: checked when the op is called."""

from __future__ import annotations

from typing import Any

import torch


def _require(fine: bool, message: str) -> None:
    if not fine:
        raise RuntimeError(message)


def _require_float(self: torch.Tensor, op: str) -> None:
    if not (self.is_floating_point() or self.is_complex()):
        raise NotImplementedError(
            f"{op} is not implemented for {self.dtype}: draws are real; use a floating dtype"
        )


def cauchy(self: torch.Tensor, median: float = 0, sigma: float = 1, **_: Any) -> None:
    _require_float(self, "cauchy_")
    _require(sigma > 0, f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")


def exponential(self: torch.Tensor, lambd: float = 1, **_: Any) -> None:
    _require_float(self, "exponential_")
    _require(lambd > 0, f"exponential_ expects lambda > 0.0, but found lambda={lambd}")


def geometric(self: torch.Tensor, p: float, **_: Any) -> None:
    _require(0 < p < 1, f"geometric_ expects p to be in (0, 1), but got p={p}")


def log_normal(self: torch.Tensor, mean: float = 1, std: float = 2, **_: Any) -> None:
    _require_float(self, "log_normal_")
    _require(std > 0, f"log_normal_ expects std > 0.0, but found std={std}")


def uniform(self: torch.Tensor, low: float = 0, high: float = 1, **named: Any) -> None:
    low, high = named.get("from", low), named.get("to", high)
    _require_float(self, "uniform_")
    _require(
        low <= high,
        f"uniform_ expects to return a [from, to) range, but found from={low} > to={high}",
    )


def normal(self: Any, mean: Any = 0, std: Any = 1, **_: Any) -> None:
    if isinstance(self, torch.Tensor):
        _require_float(self, "normal_")
    _require_spread(std)


def normal_of(mean: Any, std: Any = 1, *_: Any, **__: Any) -> None:
    _require_spread(std)


def _require_spread(std: Any) -> None:
    if not isinstance(std, torch.Tensor):
        _require(std >= 0, f"normal expects std >= 0.0, but found std {std}")


def bernoulli(self: torch.Tensor, p: float = 0.5, **_: Any) -> None:
    _require(0 <= p <= 1, f"bernoulli_ expects p to be in [0, 1], but got p={p}")
