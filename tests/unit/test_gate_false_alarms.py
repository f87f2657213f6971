"""The gate's promise: under 1 % false alarms on identical code, and a true 10 % is found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy.signal import lfilter

from tpu_perf.analysis.gate import FALSE_ALARMS, judge
from tpu_perf.analysis.significance import TwoSamples

GATES = 1_000
LIMIT = 0.05
Series = npt.NDArray[np.float64]
Noise = Callable[[np.random.Generator], Series]

#: Round medians in ms of one rung of a real ladder (quick.yaml, strict, on a shared machine).
REAL_ROUNDS = np.array([7.87, 6.23, 9.13, 6.99, 7.63, 8.17, 6.37, 7.74, 7.45])


def autoregressive(rng: np.random.Generator, size: int, phi: float, deviation: float) -> Series:
    """Step times around 100 ms whose deviations remember a share `phi` of the last one."""
    innovations = rng.normal(0, deviation * np.sqrt(1 - phi**2), size)
    innovations[0] = rng.normal(0, deviation)
    return np.asarray(100 * np.exp(lfilter([1.0], [1.0, -phi], innovations)))


def rounds_of(steps: Series, rounds: int, per_round: int, rungs: int) -> Series:
    """Round medians of one rung out of `rungs` that take turns on the same machine."""
    turns = steps.reshape(rounds, rungs, per_round)
    return np.asarray(np.median(turns[:, 0, :], axis=1))


def independent(rng: np.random.Generator) -> Series:
    return np.asarray(100 * np.exp(rng.normal(0, 0.05, 8)))


def resampled_reality(rng: np.random.Generator) -> Series:
    return rng.choice(REAL_ROUNDS, 8)


def spikes(rng: np.random.Generator) -> Series:
    """Another job takes the machine in every fifth round."""
    return np.asarray(100 * rng.normal(1, 0.02, 8) + np.where(rng.random(8) < 0.2, 60, 0))


def drifting_rounds(rng: np.random.Generator) -> Series:
    """Eight rounds of five steps, six rungs in turns, steps that remember 90 % of the last."""
    return rounds_of(autoregressive(rng, 8 * 5 * 6, 0.9, 0.08), 8, 5, 6)


def one_series(rng: np.random.Generator) -> Series:
    """200 steps in a row, no rounds, as the pytest fixture records them."""
    return autoregressive(rng, 200, 0.7, 0.08)


def stubborn_series(rng: np.random.Generator) -> Series:
    return autoregressive(rng, 400, 0.95, 0.08)


NOISES = (independent, resampled_reality, spikes, drifting_rounds, one_series, stubborn_series)


def alarms(noise: Noise, slower: float, gates: int, checks: int = 1) -> float:
    """The share of gates that find a regression when the new run is `slower` times as slow."""
    rng = np.random.default_rng(7)
    found = 0
    for _ in range(gates):
        samples = TwoSamples.of(noise(rng), noise(rng) * slower)
        found += judge(samples, LIMIT, FALSE_ALARMS / checks).state == "regressed"
    return found / gates


@pytest.mark.parametrize("noise", NOISES)
def test_identical_runs_raise_a_false_alarm_in_fewer_than_one_gate_of_a_hundred(
    noise: Noise,
) -> None:
    assert alarms(noise, 1.0, GATES) < 0.01


@pytest.mark.parametrize(
    ("noise", "least"), [(drifting_rounds, 0.9), (one_series, 0.9), (independent, 0.95)]
)
def test_code_that_is_a_quarter_slower_is_found_through_heavy_noise(
    noise: Noise, least: float
) -> None:
    assert alarms(noise, 1.25, 200) > least


def test_a_regression_of_ten_percent_is_found_on_a_machine_of_ordinary_noise() -> None:
    def quiet(rng: np.random.Generator) -> Series:
        return rounds_of(autoregressive(rng, 8 * 5 * 6, 0.8, 0.03), 8, 5, 6)

    assert alarms(quiet, 1.10, 200) > 0.9
    assert alarms(quiet, 1.10, 200, checks=6) > 0.8
    assert alarms(quiet, 1.0, 500) == 0


def test_a_gate_of_many_checks_keeps_its_promise_as_a_whole() -> None:
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(300):
        states = [
            judge(TwoSamples.of(independent(rng), independent(rng)), LIMIT, FALSE_ALARMS / 6).state
            for _ in range(6)
        ]
        wrong += "regressed" in states
    assert wrong / 300 < 0.01
