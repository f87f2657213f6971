"""Models that come split by torch's tensor parallel API: the split is read, the values made whole.

`parallelize_module` leaves each parameter as a DTensor that holds one rank's part. One process that
drives all devices needs the whole values and where they are to lie.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tpu_perf.errors import WorkloadError
from tpu_perf.record.plan import Dims

if TYPE_CHECKING:
    import torch

_API = "torch.distributed.tensor._api"


class WholeValues:
    """Tensors that were split, by the storage of the part that was left."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def keep(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        self._known[part.untyped_storage()._cdata] = (whole.detach().clone(), part)

    def of(self, part: torch.Tensor) -> torch.Tensor | None:
        found = self._known.get(part.untyped_storage()._cdata)
        return None if found is None else found[0]


@contextmanager
def keeping_whole_values() -> Iterator[WholeValues]:
    """Inside, what `distribute_tensor` splits is remembered whole."""
    import torch.distributed.tensor as public

    kept = WholeValues()
    original = public.distribute_tensor

    def distribute_tensor(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        made: Any = original(tensor, *args, **kwargs)
        kept.keep(tensor, made._local_tensor)
        return made

    def put(old: Any, new: Any) -> None:
        for name, module in list(sys.modules.items()):
            if name.startswith("torch.distributed") and vars(module).get(_NAME) is old:
                setattr(module, _NAME, new)

    put(original, distribute_tensor)
    try:
        yield kept
    finally:
        put(distribute_tensor, original)


_NAME = "distribute_tensor"


def made_whole(model: torch.nn.Module, kept: WholeValues, where: str) -> Mapping[str, Dims]:
    """Put whole parameters in the place of DTensors, take torch's hooks for them away, end the
    process group, and say how each was split. Empty for a model without DTensors.

    Raises WorkloadError for a split that cannot be undone.
    """
    import torch
    from torch.distributed.tensor import DTensor

    found: dict[str, Dims] = {}
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            found[name] = _dims(parameter, f"{where}: {name}")
    if not found:
        return {}
    replaced: dict[int, torch.nn.Parameter] = {}
    for path, module in model.named_modules():
        for own, tensor in list(module.named_parameters(recurse=False)):
            if isinstance(tensor, DTensor):
                name = f"{path}.{own}" if path else own
                whole = replaced.get(id(tensor))
                if whole is None:
                    values = kept.of(tensor._local_tensor)
                    if values is None:
                        raise WorkloadError(
                            f"{where}: only a part of {name} is left",
                            hint="split it by parallelize_module or distribute_tensor in the "
                            "function; leave fully_shard to the rung's strategy: fsdp",
                        )
                    whole = torch.nn.Parameter(values, tensor.requires_grad)
                    replaced[id(tensor)] = whole
                setattr(module, own, whole)
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key, hook in list(hooks.items()):
                if getattr(hook, "__module__", "") == _API:
                    del hooks[key]
    if torch.distributed.is_initialized():  # the function may be called again in this process
        torch.distributed.destroy_process_group()
    return found


def _dims(tensor: Any, what: str) -> Dims:
    names = tensor.device_mesh.mesh_dim_names
    if names is None:
        raise WorkloadError(
            f"{what} is split over a DeviceMesh without names",
            hint="give init_device_mesh mesh_dim_names, the axes of the rung's mesh",
        )
    dims: list[tuple[str, ...]] = [()] * tensor.ndim
    for name, placement in zip(names, tensor.placements, strict=True):
        if placement.is_partial():
            raise WorkloadError(f"{what} is a sum that is not yet summed ({placement})")
        if not placement.is_replicate():
            dims[placement.dim] = (*dims[placement.dim], name)
    return tuple(dims)
