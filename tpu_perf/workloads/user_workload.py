"""What the code of a `python` workload returns, and how its batches become random-access."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from tpu_perf.config.problems import did_you_mean
from tpu_perf.errors import WorkloadError

if TYPE_CHECKING:
    import torch

#: Names of the items of a batch that the user gave as a tuple or a single tensor.
_POSITION = "item_{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A training job of the user's own, as a `python` workload's function returns it.

    Give `model` and `batches`, and `loss(model, batch)` unless the model returns its loss when
    called with the batch (`model(**batch).loss`). Or give `batches` and `make_step(device)`, which
    builds everything on that device and returns `step(batch) -> loss`.

    `batches` is a function of the step's index, a list, or anything that can be iterated over
    (a DataLoader, a generator); what ends is begun again. A batch is a mapping of names to
    tensors, a tuple of tensors or one tensor, and reaches `loss` or `step` in that same form.
    """

    batches: Any
    model: torch.nn.Module | None = None
    loss: Callable[[Any, Any], torch.Tensor] | None = None
    make_step: Callable[[torch.device], Callable[[Any], torch.Tensor]] | None = None
    tokens_per_step: int | None = None
    samples_per_step: int | None = None


def as_workload(returned: Any, where: str) -> Workload:
    """Read what the user's function returned: a Workload, a dataclass like it, dict or tuple."""
    names = [field.name for field in fields(Workload)]
    if isinstance(returned, Workload):
        return returned
    if isinstance(returned, Mapping):
        given = dict(returned)
    elif isinstance(returned, tuple) and 2 <= len(returned) <= 3:
        given = dict(zip(("model", "batches", "loss"), returned, strict=False))
    elif hasattr(returned, "batches"):
        given = {name: getattr(returned, name) for name in names if hasattr(returned, name)}
    else:
        raise WorkloadError(
            f"{where} returned {_kind(returned)}",
            hint="return tpu_perf.Workload(model=..., batches=..., loss=...), "
            "a dict with these keys, or the tuple (model, batches, loss)",
        )
    for name in given:
        if name not in names:
            raise WorkloadError(f"{where} returned the key {name!r}{did_you_mean(name, names)}")
    if given.get("batches") is None:
        raise WorkloadError(f"{where} returned no batches")
    return Workload(**given)


def check_workload(workload: Workload, where: str) -> None:
    """Refuse what cannot be run, before anything is."""
    import torch

    if workload.make_step is not None:
        if not callable(workload.make_step):
            raise WorkloadError(f"{where}: make_step is {_kind(workload.make_step)}, no function")
    elif not isinstance(workload.model, torch.nn.Module):
        raise WorkloadError(
            f"{where}: model is {_kind(workload.model)}, not a torch.nn.Module",
            hint="return a model, or a make_step(device) that builds a step function",
        )
    if workload.loss is not None and not callable(workload.loss):
        raise WorkloadError(f"{where}: loss is {_kind(workload.loss)}, no function")


def random_access(batches: Any, seed: int, where: str) -> Callable[[int], Any]:
    """A function from step index to batch that answers the same whenever it is asked."""
    if isinstance(batches, Sequence):
        if not batches:
            raise WorkloadError(f"{where}: batches is empty")
        return lambda index: batches[index % len(batches)]
    if isinstance(batches, Iterable):
        return _Remembered(batches, seed, where)
    if callable(batches):
        function: Callable[[int], Any] = batches
        return function
    raise WorkloadError(
        f"{where}: batches is {_kind(batches)}",
        hint="give a function of the step's index, a list, or an iterable such as a DataLoader",
    )


class _Remembered:
    """Items of an iterable by index, drawn when first asked for and kept; then begun again.

    Drawing uses a random stream of its own: a shuffling DataLoader gives every rung the same
    order, whatever the rung draws for dropout in between.
    """

    def __init__(self, batches: Iterable[Any], seed: int, where: str) -> None:
        import torch

        self._iterator: Iterator[Any] | None = None
        self._batches = batches
        self._where = where
        self._kept: list[Any] = []
        self._ended = False
        self._random = torch.Generator().manual_seed(seed).get_state()

    def __call__(self, index: int) -> Any:
        while not self._ended and len(self._kept) <= index:
            self._draw()
        return self._kept[index % len(self._kept)]

    def _draw(self) -> None:
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random)
            try:
                if self._iterator is None:
                    self._iterator = iter(self._batches)
                self._kept.append(next(self._iterator))
            except StopIteration:
                self._ended = True
                if not self._kept:
                    raise WorkloadError(f"{self._where}: batches is empty") from None
            self._random = torch.get_rng_state()


def to_mapping(batch: Any, where: str) -> dict[str, torch.Tensor]:
    """A user's batch as names to tensors; `from_mapping` gives back the user's form."""
    import torch

    if isinstance(batch, torch.Tensor):
        return {_POSITION.format(0): batch}
    if isinstance(batch, tuple | list):
        named = {_POSITION.format(i): item for i, item in enumerate(batch)}
    elif isinstance(batch, Mapping):
        named = dict(batch)
    else:
        raise WorkloadError(f"{where} is {_kind(batch)}, not a mapping or tuple of tensors")
    for name, item in named.items():
        if not isinstance(item, torch.Tensor):
            raise WorkloadError(f"{where} holds {_kind(item)} as {name!r}; only tensors can be fed")
    return named


def from_mapping(batch: Mapping[str, Any], like: Any) -> Any:
    """The batch in the form in which the user gave `like`."""
    import torch

    if isinstance(like, torch.Tensor):
        return batch[_POSITION.format(0)]
    if isinstance(like, tuple | list):
        items = [batch[_POSITION.format(i)] for i in range(len(like))]
        return type(like)(items) if type(like) in (tuple, list) else tuple(items)
    return dict(batch)


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
