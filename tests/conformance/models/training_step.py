"""One forward, backward and AdamW step of a model, and whether two of them agree."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

LEARNING_RATE = 1e-3
#: Larger than usual, so that an update is a smooth function of the gradient: a gradient that is
#: zero but for rounding would otherwise move a parameter by a whole learning rate, either way.
EPSILON = 1e-4
#: Largest difference of a tensor, relative to its largest element.
OUTPUT_TOLERANCE = 2e-4
#: The same for gradients; those far smaller than the model's largest are measured against that.
GRADIENT_TOLERANCE = 1e-3
_SMALL_GRADIENT = 1e-3
#: Of a parameter after the step, in learning rates.
PARAMETER_TOLERANCE = 0.05
#: The device may be this many times as far from the float64 run as the CPU's float32 is, with
#: the model's weights or with weights that differ by one rounding: batch norm over two samples
#: followed by a kink makes gradients of which float32 knows only the order of magnitude.
_AS_WRONG_AS_THE_CPU = 4.0


@dataclass(slots=True)
class Step:
    """What a step left behind, on the CPU: named tensors."""

    outputs: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor]
    parameters: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]


def run_step(model: Any, inputs: dict[str, Any], device: str, compiled: bool = False) -> Step:
    """Run the step of a model that is on `device` already; moves the inputs there."""
    moved = pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), inputs)
    # Fused: one program of a model's own instead of some fourteen, each as long as the model.
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=LEARNING_RATE, eps=EPSILON,
        fused=True,
    )  # fmt: skip
    call = torch.compile(model, backend="tpu") if compiled else model
    outputs = dict(named_outputs(call(**moved)))
    loss = loss_of(outputs)
    loss.backward()
    optimizer.step()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return Step(
        _on_cpu({**outputs, "total loss": loss}), _on_cpu(gradients),
        _on_cpu(dict(model.named_parameters())), _on_cpu(dict(model.named_buffers())),
    )  # fmt: skip


def named_outputs(result: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a model's output, by name. Caches are not results."""
    items = result.items() if isinstance(result, dict) else [("output", result)]
    for key, value in items:
        if "cache" in key or "past_key_values" in key:
            continue
        leaves = [v for v in pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]
        for i, leaf in enumerate(leaves):
            yield (key if len(leaves) == 1 else f"{key}.{i}"), leaf


def loss_of(outputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The model's own loss, or a fixed random projection of everything it returns."""
    own = outputs.get("loss")
    if own is not None and own.requires_grad and own.numel() == 1:
        return own.reshape(())
    generator = torch.Generator().manual_seed(1)
    parts = []
    for value in outputs.values():
        if not value.requires_grad or not (value.is_floating_point() or value.is_complex()):
            continue
        real = torch.view_as_real(value) if value.is_complex() else value
        weights = torch.randn(real.shape, generator=generator).to(real.device, real.dtype)
        finite = torch.where(torch.isfinite(real), real, 0.0)
        parts.append((finite * weights).sum() / max(1, real.numel()) ** 0.5)
    if not parts:
        raise ValueError("no output of the model depends on its parameters")
    return torch.stack(parts).sum()


def _on_cpu(tensors: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {k: v.detach().cpu().clone() for k, v in tensors.items()}


class Comparison:
    """The reference step, with its twins where they are needed and can be had: one in float64,
    and some in float32 whose weights are one rounding off."""

    def __init__(
        self,
        reference: Step,
        exact: Callable[[], Step | None],
        disturbed: Callable[[], Sequence[Step]] = lambda: (),
    ) -> None:
        self.reference = reference
        self._exact = functools.cache(exact)
        self._disturbed = functools.cache(disturbed)
        self.zeros_for_none = False

    @property
    def exact(self) -> Step | None:
        return self._exact()

    def problems(self, got: Step, zeros_for_none: bool = False) -> list[str]:
        """What differs, the worst kind first; empty if the steps agree.

        `zeros_for_none`: where the CPU has no gradient, zeros are one. AOTAutograd makes them, on
        any device, for what a graph returns and the loss does not use.
        """
        want = self.reference
        self.zeros_for_none = zeros_for_none
        found = self._compare("outputs", got, OUTPUT_TOLERANCE, 1e-6)
        largest = max((float(g.abs().max()) for g in want.gradients.values() if g.numel()),
                      default=0.0)  # fmt: skip
        found += self._compare(
            "gradients", got, GRADIENT_TOLERANCE, max(1e-7, _SMALL_GRADIENT * largest)
        )
        found += self._compare("parameters", got, PARAMETER_TOLERANCE * LEARNING_RATE, None)
        found += self._compare("buffers", got, OUTPUT_TOLERANCE, 1e-6)
        return found

    def _compare(self, kind: str, got: Step, tolerance: float, least: float | None) -> list[str]:
        ours, theirs = getattr(got, kind), getattr(self.reference, kind)
        if kind == "gradients" and self.zeros_for_none:
            theirs = {n: torch.zeros_like(g) for n, g in ours.items()} | theirs
        if ours.keys() != theirs.keys():
            odd = sorted(set(ours) ^ set(theirs))
            return [f"{kind} of other names: {', '.join(odd[:4])}"]
        found = []
        for name, want in theirs.items():
            message = _difference(ours[name], want, tolerance, least)
            if message and not self._is_noise(kind, name, ours[name], want, tolerance, least):
                found.append(f"{kind[:-1]} {name}: {message}")
        return found

    def _is_noise(
        self, kind: str, name: str, ours: torch.Tensor, theirs: torch.Tensor, tolerance: float,
        least: float | None,
    ) -> bool:  # fmt: skip
        """Whether the CPU's float32 is itself about as far from float64, or would be if the
        weights had been rounded otherwise."""
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return False
        if not theirs.is_floating_point() or self.exact is None:
            return False
        truth = getattr(self.exact, kind).get(name)
        if truth is None or truth.shape != ours.shape:
            return False
        if not torch.equal(torch.isfinite(ours), torch.isfinite(theirs)):
            return False
        fine = torch.isfinite(theirs) & torch.isfinite(truth)
        if not fine.any():
            return True
        our_error = float((ours.double() - truth)[fine].abs().max())
        their_error = float((theirs.double() - truth)[fine].abs().max())
        scale = 1.0 if least is None else max(least, float(truth[fine].abs().max()))
        if our_error <= _AS_WRONG_AS_THE_CPU * their_error + tolerance * scale:
            return True
        if kind == "outputs":
            return False
        others = [getattr(step, kind)[name].double() - truth for step in self._disturbed()]
        errors = [their_error, *(float(other[fine].abs().max()) for other in others)]
        return our_error <= _AS_WRONG_AS_THE_CPU * max(errors)


def _difference(
    ours: torch.Tensor, theirs: torch.Tensor, tolerance: float, least: float | None
) -> str | None:
    """What is wrong with a tensor; `least` None makes the tolerance absolute."""
    if ours.dtype != theirs.dtype:
        return f"dtype {ours.dtype} instead of {theirs.dtype}"
    if ours.shape != theirs.shape:
        return f"shape {list(ours.shape)} instead of {list(theirs.shape)}"
    if not ours.numel():
        return None
    if not (theirs.is_floating_point() or theirs.is_complex()):
        wrong = int((ours != theirs).sum())
        return f"{wrong} of {ours.numel()} elements differ" if wrong else None
    same = torch.isfinite(ours) == torch.isfinite(theirs)
    if not same.all():
        return f"{int((~same).sum())} elements finite on one side only"
    fine = torch.isfinite(theirs)
    if not fine.any():
        return None
    worst = float((ours - theirs)[fine].abs().max())
    scale = 1.0 if least is None else max(least, float(theirs[fine].abs().max()))
    if worst <= tolerance * scale:
        return None
    return f"differs by {worst:.2e}, largest element {float(theirs[fine].abs().max()):.2e}"
