"""`tpu_perf.record`, `tpu_perf.step` and `tpu_perf.schedule`: recording from inside a program."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpu_perf.errors import ConfigError
from tpu_perf.profiling.schedule import Schedule as schedule
from tpu_perf.record.plan import WorkloadPlan

if TYPE_CHECKING:
    from tpu_perf.profiling.profile import Profile

__all__ = ["record", "schedule", "step", "under_way"]

_profiles: list[Profile] = []


def under_way(profile: Profile | None) -> None:
    """Make a profile the one that `step` speaks to; None: the latest is over."""
    if profile is None:
        _profiles.pop()
    else:
        _profiles.append(profile)


@contextmanager
def record(
    directory: str | Path, *, schedule: schedule | None = None, steps: str = "auto",
    fence: bool = True, details: bool = False, ring: int | None = None, name: str | None = None,
) -> Iterator[Profile]:  # fmt: skip
    """Record what the block does on device "tpu" into a new run directory.

    The steps inside are those that `run.step()`, `@tpu_perf.step`, torch.profiler or an optimizer
    mark (`steps`, as `tpu-perf profile --steps`). An exception in the block is passed on, and
    leaves a run of status `failed`. Raises ConfigError if the directory exists or another
    recording is under way.
    """
    from tpu_perf.profiling.profile import Profile, Settings

    path = Path(directory)
    if path.exists():
        raise ConfigError(f"{path} exists already", hint="record into a new directory")
    if _profiles:
        raise ConfigError(f"a recording into {_profiles[-1].directory} is under way already")
    what = WorkloadPlan(kind="code", params={"program": sys.argv[0]})
    phases = {} if schedule is None else {"phases": schedule}
    settings = Settings(name=name or path.name, what=what, steps=steps, fence=fence,
                        details=details, ring=ring, **phases)  # type: ignore[arg-type]  # fmt: skip
    profile = Profile(path, settings)
    under_way(profile)
    try:
        profile.start()
        yield profile
    except BaseException as error:
        profile.fail(error)
        raise
    else:
        profile.finish()
    finally:
        under_way(None)


class _Step(ContextDecorator):
    """One step, nested ones not counted."""

    _depth = 0

    def __enter__(self) -> None:
        if _profiles and _Step._depth == 0:
            _profiles[-1].mark(begins=True)
        _Step._depth += 1

    def __exit__(self, *error: object) -> None:
        _Step._depth -= 1
        if _profiles and _Step._depth == 0:
            _profiles[-1].mark(begins=False)


def step(function: Callable[..., Any] | None = None) -> Any:
    """Mark a step: `@tpu_perf.step` on the function that runs one, or `with tpu_perf.step():`
    around it. Without a recording under way it costs a microsecond and does nothing."""
    if function is None:
        return _Step()

    @functools.wraps(function)
    def stepping(*args: Any, **kwargs: Any) -> Any:
        with _Step():
            return function(*args, **kwargs)

    return stepping
