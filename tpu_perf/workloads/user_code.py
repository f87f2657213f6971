"""Finding and calling code of the user's own, and telling its errors as its author needs them."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from tpu_perf.config.problems import did_you_mean
from tpu_perf.errors import TpuPerfError, WorkloadError

_OURS = str(Path(__file__).resolve().parents[1])
_LIBRARIES = tuple(
    str(Path(path).resolve()) for path in {*sysconfig.get_paths().values()} if "lib" in path
)


def load_function(target: str) -> Callable[..., Any]:
    """The function that `module:function` or `path/to/file.py:function` names."""
    module_name, _, function_name = target.rpartition(":")
    with user_errors(f"importing {module_name}"):
        module = _load_module(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        own = [
            name
            for name, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", None) == module.__name__
        ]
        raise WorkloadError(
            f"{module.__file__ or module_name} has no function {function_name!r}"
            f"{did_you_mean(function_name, own)}"
        )
    found: Callable[..., Any] = function
    return found


def _load_module(name: str) -> ModuleType:
    if not name.endswith(".py"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
                raise WorkloadError(
                    f"there is no module {name!r}",
                    hint="for a file beside the ladder file write ./file.py:function",
                ) from None
            raise
    path = Path(name)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # so that it finds the modules beside it
    # A file may be named like a module that is loaded already; that one is left alone.
    module_name = f"{path.stem}_of_the_ladder" if path.stem in sys.modules else path.stem
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise WorkloadError(f"{path} cannot be loaded as Python code")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look there
    spec.loader.exec_module(module)
    return module


@contextmanager
def user_errors(doing: str) -> Iterator[None]:
    """Turn whatever the user's code raises into a WorkloadError with its file and line."""
    try:
        yield
    except (TpuPerfError, KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:
        raise WorkloadError(f"{doing}: {describe(error)}") from error


def describe(error: BaseException) -> str:
    """`ValueError: message (my_file.py:12 in make)`: the innermost line of the user's own."""
    text = str(error).strip() or "no message"
    told = f"{type(error).__name__}: {text}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})"
    frame = users_frame(error)
    return told if frame is None else f"{told} ({frame})"


def users_frame(error: BaseException) -> str | None:
    """Where in the user's code an error passed, innermost, None if it never was there."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = os.path.realpath(frame.filename)
        if not file.endswith(".py") or file.startswith(_OURS) or file.startswith(_LIBRARIES):
            continue
        return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return None
