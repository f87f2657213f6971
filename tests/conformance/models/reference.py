"""Builds a tiny model with inputs it accepts and runs its step on the CPU."""

from __future__ import annotations

import copy
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tests.conformance.models.architectures import (
    Architecture,
    config_class_of,
    model_class_of,
)
from tests.conformance.models.inputs import Builder, Inputs
from tests.conformance.models.libraries import MODELS as LIBRARY_MODELS
from tests.conformance.models.libraries import load
from tests.conformance.models.overrides import OVERRIDES, Override
from tests.conformance.models.tiny import Shrinking, config_kwargs
from tests.conformance.models.training_step import Comparison, Step, named_outputs, run_step

#: No model of the table may be larger: it would not be tiny.
MOST_PARAMETERS = 40_000_000
#: Spread of the noise on fresh weights, so that what starts at zero takes part too.
_WEIGHT_NOISE = 0.02
SEED = 0


class NotBuildable(Exception):
    """No tiny model of this architecture can be made here."""


class NotOnCpu(Exception):
    """Torch on the CPU does not run the model on any of our inputs."""


@dataclass(slots=True)
class Reference:
    """A model, never stepped, with inputs and the CPU's step."""

    architecture: Architecture
    model: Any
    inputs: Inputs
    comparison: Comparison

    @property
    def family(self) -> str:
        return family_of(self.architecture, self.model)

    @property
    def size(self) -> int:
        return sum(p.numel() for p in self.model.parameters())


def make_reference(architecture: Architecture) -> Reference:
    """Raises NotBuildable or NotOnCpu with the reason."""
    override = OVERRIDES.get(architecture.name, Override())
    if override.skip:
        raise NotBuildable(override.skip)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if architecture.name in LIBRARY_MODELS:
            model, inputs = _library_model(architecture)
        else:
            model, inputs = _model_with_inputs(architecture, override)
        if not _repeats(model, inputs):
            model.eval()
            if not _repeats(model, inputs):
                raise NotOnCpu("draws random numbers in eval mode: no two runs are alike")
        try:
            step = run_step(_fresh(model), inputs, "cpu")
        except Exception as error:
            raise NotOnCpu(f"step: {one_line(error)}") from error
    comparison = Comparison(
        step, lambda: _exact(model, inputs), lambda: _one_rounding_off(model, inputs)
    )
    return Reference(architecture, model, inputs, comparison)


def _model_with_inputs(architecture: Architecture, override: Override) -> tuple[Any, Inputs]:
    """The smallest model that can be built and takes some inputs."""
    problem: Exception | None = None
    for shrinking in Shrinking:
        try:
            model = _model(architecture, override, shrinking)
            model.train()
            return model, _accepted_inputs(model, override)
        except (NotBuildable, NotOnCpu) as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _library_model(architecture: Architecture) -> tuple[Any, Inputs]:
    found = LIBRARY_MODELS[architecture.name]
    torch.manual_seed(SEED)
    try:
        model = found.build(load(found.library), found)
    except Exception as error:
        raise NotBuildable(one_line(error)) from error
    return _perturbed(model), found.inputs(torch.Generator().manual_seed(SEED))


def _model(architecture: Architecture, override: Override, shrinking: Shrinking) -> Any:
    try:
        config_class = config_class_of(architecture)
        default = config_class(**override.needed)
        arguments = config_kwargs(default, shrinking)
        config = config_class(**override.applied(arguments))
        config.use_cache = False
        model_class = model_class_of(architecture)
        if override.model_class is not None:
            import transformers

            model_class = getattr(transformers, override.model_class)
        with torch.device("meta"):
            size = sum(p.numel() for p in model_class(copy.deepcopy(config)).parameters())
    except Exception as error:
        raise NotBuildable(one_line(error)) from error
    if size > MOST_PARAMETERS:
        raise NotBuildable(f"{size / 1e6:.0f} million parameters after shrinking")
    torch.manual_seed(SEED)
    try:
        model = model_class(config)
    except Exception as error:
        raise NotBuildable(one_line(error)) from error
    return _perturbed(model.float())


def _perturbed(model: Any) -> Any:
    """The model with noise on its fresh weights and without dropout."""
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(_WEIGHT_NOISE * noise)
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return model


def _accepted_inputs(model: Any, override: Override) -> Inputs:
    problem: Exception | None = None
    for inputs in _candidates(model, override):
        try:
            with torch.no_grad():
                outputs = dict(named_outputs(model(**inputs)))
            if outputs:
                return inputs
        except Exception as error:
            problem = problem or error
    raise NotOnCpu(one_line(problem) if problem else "no inputs known for its forward")


def _candidates(model: Any, override: Override) -> Iterator[Inputs]:
    builder = Builder(model)
    if override.inputs is not None:
        yield override.inputs(builder)
        return
    yield from builder.candidates()


def _repeats(model: Any, inputs: Inputs) -> bool:
    """Whether two runs from different seeds give one result."""
    runs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        with torch.no_grad():
            runs.append(dict(named_outputs(_fresh(model)(**inputs))))
    first, second = runs
    return first.keys() == second.keys() and all(
        first[k].shape == second[k].shape
        and torch.allclose(first[k], second[k], rtol=1e-4, atol=1e-5, equal_nan=True)
        for k in first
    )


def _fresh(model: Any) -> Any:
    return copy.deepcopy(model)


def _exact(model: Any, inputs: Inputs) -> Step | None:
    """The step in float64, None where the model's code insists on float32."""
    try:
        wide = {k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v
                for k, v in inputs.items()}  # fmt: skip
        return run_step(_fresh(model).double(), wide, "cpu")
    except Exception:
        return None


#: Whether a value falls on the other side of a kink is chance: so many are tried.
_DISTURBED = 12


def _one_rounding_off(model: Any, inputs: Inputs) -> list[Step]:
    """The step with every weight moved to a neighbouring float, some times."""
    generator = torch.Generator().manual_seed(SEED)
    return [_disturbed_step(model, inputs, generator) for _ in range(_DISTURBED)]


def _disturbed_step(model: Any, inputs: Inputs, generator: torch.Generator) -> Step:
    disturbed = _fresh(model)
    with torch.no_grad():
        for parameter in disturbed.parameters():
            if parameter.is_floating_point():
                up = torch.rand(parameter.shape, generator=generator) < 0.5
                to = torch.where(up, torch.inf, -torch.inf).to(parameter.dtype)
                parameter.copy_(torch.nextafter(parameter, to))
    return run_step(disturbed, inputs, "cpu")


def family_of(architecture: Architecture, model: Any) -> str:
    """The table's family: by the layers where those are of a kind of their own."""
    names = {type(m).__name__.lower() for m in model.modules()}
    if architecture.family == "text decoder":
        if any("mamba" in n or "deltanet" in n or "rwkv" in n or "mlstm" in n or "ssm" in n
               or "rglru" in n for n in names):  # fmt: skip
            return "state space"
        if any("expert" in n or "moe" in n for n in names):
            return "mixture of experts"
    if architecture.family == "other":
        main = getattr(model, "main_input_name", "")
        if "pixel" in main:
            return "vision"
        if main in ("input_values", "input_features", "audio_mel"):
            return "audio"
        if main == "past_values":
            return "time series"
    return architecture.family


def one_line(error: BaseException) -> str:
    """The error with the place in the model's code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = next((f for f in reversed(frames) if "transformers/models/" in f.filename), None)
    where = f" ({place.filename.rsplit('/', 1)[-1]}:{place.lineno})" if place else ""
    text = " ".join(str(error).split())[:500]
    return f"{type(error).__name__}: {text}{where}"
