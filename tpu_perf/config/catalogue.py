"""What a ladder file may name (rungs, engines, workload kinds), and the models built from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, Protocol

from pydantic import BeforeValidator, Field, create_model

from tpu_perf.config.models import LadderFile, RungEntry, StrictModel, entry_from_name


class Axes(Protocol):
    """Mesh axes that a sharding strategy needs, and those that it can use."""

    @property
    def required(self) -> tuple[str, ...]: ...

    @property
    def optional(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Passed in by the measuring side, so that this package imports none of it."""

    rungs: Mapping[str, str]  # name -> one-line summary
    engines: tuple[str, ...]
    workloads: Mapping[str, type[StrictModel]]  # kind -> model of its parameters
    strategies: Mapping[str, Axes] = field(default_factory=dict)
    placed_rungs: tuple[str, ...] = ()  # those that need a strategy and a mesh

    def workload_model(self, kind: str) -> type[StrictModel]:
        """The parameters of one kind, plus the `kind` key itself."""
        parameters = self.workloads[kind]
        return create_model(
            f"{kind.title().replace('_', '')}Workload",
            __base__=parameters,
            __doc__=parameters.__doc__,
            kind=(_literal((kind,)), ...),
        )

    def workload_union(self) -> Any:
        models = [self.workload_model(kind) for kind in self.workloads]
        return Annotated[reduce(or_, models), Field(discriminator="kind")]

    def ladder_model(self) -> type[LadderFile]:
        """LadderFile with the names of this installation filled in."""
        names = _literal(tuple(self.rungs))
        entry: Any = create_model(
            "RungEntry",
            __base__=RungEntry,
            __doc__=RungEntry.__doc__,
            rung=(names, ...),
            engine=(_literal(self.engines) | None, None),
            strategy=(_literal(tuple(self.strategies) or ("",)) | None, None),
        )
        short = BeforeValidator(entry_from_name, json_schema_input_type=names | entry)
        return create_model(
            "LadderFile",
            __base__=LadderFile,
            __doc__=LadderFile.__doc__,
            workload=(self.workload_union(), ...),
            engine=(_literal(self.engines) | None, None),
            rungs=(list[Annotated[entry, short]], Field(min_length=1)),
        )


def _literal(names: tuple[str, ...]) -> Any:
    return Literal.__getitem__(names)
