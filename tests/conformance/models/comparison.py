"""Runs one cell of the table: a model's step in one mode, compared with the CPU's."""

from __future__ import annotations

import copy
import time
import warnings

import torch

import tpu_perf.runtime.device  # noqa: F401 - loads the device
from tests.conformance.models.architectures import Architecture, all_architectures
from tests.conformance.models.cells import ModelCell, ModelResult
from tests.conformance.models.reference import (
    SEED,
    NotBuildable,
    NotOnCpu,
    Reference,
    make_reference,
    one_line,
)
from tests.conformance.models.training_step import run_step
from tpu_perf.runtime.modes import EagerMode, mode_set_to

_EAGER_MODES = {"strict": EagerMode.DEFER_NEVER, "defer_and_fuse": EagerMode.DEFER_AND_FUSE,
                "compile": EagerMode.DEFER_NEVER}  # fmt: skip


class Runner:
    """Keeps the reference of the last architecture, for the cells of its other modes."""

    def __init__(self) -> None:
        self.architectures = all_architectures()
        self._name = ""
        self._reference: Reference | Exception | None = None

    def run(self, cell: ModelCell) -> ModelResult:
        """Never raises: what goes wrong is the result."""
        start = time.perf_counter()
        architecture = self.architectures[cell.architecture]
        result = ModelResult(cell, "passed", family=architecture.family)
        try:
            reference = self._get(architecture)
            result.family = reference.family
            result.inputs = tuple(reference.inputs)
            result.parameters = reference.size
            if cell.mode != "cpu":
                self._compare(reference, cell.mode, result)
        except NotBuildable as problem:
            result.status, result.message = "not_buildable", str(problem)
        except NotOnCpu as problem:
            result.status, result.message = "not_on_cpu", str(problem)
        except Exception as problem:
            result.status, result.message = "failed", one_line(problem)
        result.seconds = time.perf_counter() - start
        return result

    def _get(self, architecture: Architecture) -> Reference:
        if self._name != architecture.name:
            self._name = architecture.name
            try:
                self._reference = make_reference(architecture)
            except Exception as problem:
                self._reference = problem
        if isinstance(self._reference, Exception):
            raise self._reference
        assert self._reference is not None
        return self._reference

    @staticmethod
    def _compare(reference: Reference, mode: str, result: ModelResult) -> None:
        with warnings.catch_warnings(), mode_set_to(_EAGER_MODES[mode]):
            warnings.simplefilter("ignore")
            model = copy.deepcopy(reference.model).to("tpu")
            torch.manual_seed(SEED)
            step = run_step(model, reference.inputs, "tpu", compiled=mode == "compile")
        problems = reference.comparison.problems(step, zeros_for_none=mode == "compile")
        if problems:
            more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
            result.status = "failed"
            result.message = "; ".join(problems[:3]) + more
