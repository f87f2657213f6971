"""How far a rung's losses and gradient norms are from torch on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tpu_perf.record.metric import Metric
from tpu_perf.record.run import Facts

Difference = Callable[[float, float], float]


def absolute(value: float, reference: float) -> float:
    return abs(value - reference)


def relative(value: float, reference: float) -> float:
    """|value - reference| / |reference|; a difference from an exact zero is infinite."""
    if value == reference:
        return 0.0
    return abs(value - reference) / abs(reference) if reference else math.inf


def loss_max_abs_diff(facts: Facts) -> Metric:
    """Largest |loss - reference loss| over the steps both have, in nats.

    Source: Facts.losses and Facts.reference_losses (torch on the CPU, same seed and batches).
    """
    return _largest(facts.losses, facts.reference_losses, absolute, "nat", "losses")


def grad_norm_max_rel_diff(facts: Facts) -> Metric:
    """Largest |norm - reference| / reference of the gradient norm over the steps both have.

    Source: Facts.grad_norms and Facts.reference_grad_norms.
    """
    return _largest(
        facts.grad_norms, facts.reference_grad_norms, relative, "fraction", "gradient norms"
    )


def _largest(
    values: Sequence[float],
    references: Sequence[float],
    difference: Difference,
    unit: str,
    what: str,
) -> Metric:
    pairs = list(zip(values, references, strict=False))
    if not pairs:
        absent = "this rung" if not values else "the CPU reference"
        return Metric.missing(unit, f"{absent} recorded no {what}")
    differences = [difference(value, reference) for value, reference in pairs]
    for index, number in enumerate(differences):
        if not math.isfinite(number):
            value, reference = pairs[index]
            return Metric.missing(
                unit, f"{what} of step {index} cannot be compared: {value} against {reference}"
            )
    return Metric(value=max(differences), unit=unit, provenance="measured")


def outside_tolerance(facts: Facts) -> list[str]:
    """One sentence for each of loss and gradient norm that strays beyond the rung's tolerance."""
    tolerance = facts.numerics_tolerance
    if tolerance is None:
        return []
    out = []
    for what, values, references in (
        ("loss", facts.losses, facts.reference_losses),
        ("gradient norm", facts.grad_norms, facts.reference_grad_norms),
    ):
        worst = [relative(v, r) for v, r in zip(values, references, strict=False)]
        strayed = [step for step, number in enumerate(worst) if not number <= tolerance]
        if strayed:
            first = strayed[0]
            out.append(
                f"{what} leaves the CPU reference at step {first}: {values[first]:.6g} against "
                f"{references[first]:.6g}, relative tolerance {tolerance:.1g}"
            )
    return out
