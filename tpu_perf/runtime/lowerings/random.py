"""Draws from the generator: each is a function of its seed and offset alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tpu_perf.runtime.lowerings import random_checks
from tpu_perf.runtime.lowerings.precision import (
    cast,
    compute_dtype,
    is_complex,
    is_float,
    limits,
    wide,
)
from tpu_perf.runtime.lowerings.registry import Call, Operand, as_array, lowers


def _unit(call: Call, shape: Sequence[int], dtype: Any) -> jax.Array:
    """Uniform on [0, 1) in a float dtype (each dtype at its own resolution, so that rounding
    never gives 1)."""
    return jax.random.uniform(call.random_key(), tuple(shape), dtype)


@lowers("native_dropout", random=True)
def native_dropout(
    call: Call, input: jax.Array, p: Operand, train: bool | None
) -> tuple[jax.Array, jax.Array]:
    if train is False:
        return input, jnp.ones(input.shape, jnp.bool_)
    x = wide(input)
    keep_rate = 1 - cast(p, jnp.float32)
    keep = _unit(call, input.shape, jnp.float32) < keep_rate
    scale = jnp.where(keep_rate == 0, 0, 1 / keep_rate).astype(x.dtype)
    return jnp.where(keep, x * scale, jnp.zeros_like(x)), keep


@lowers("native_dropout_backward")
def native_dropout_backward(
    call: Call, grad_output: jax.Array, mask: jax.Array, scale: Operand
) -> jax.Array:
    grad = wide(grad_output)
    return jnp.where(mask, grad * cast(scale, grad.dtype), jnp.zeros_like(grad))


@lowers("bernoulli", random=True)
def bernoulli(call: Call, self: jax.Array) -> jax.Array:
    return _unit(call, self.shape, compute_dtype(self.dtype)) < wide(self)


@lowers("bernoulli.p", random=True, check=random_checks.bernoulli)
def bernoulli_p(call: Call, self: jax.Array, p: Operand = 0.5) -> jax.Array:
    return _unit(call, self.shape, jnp.float32) < cast(p, jnp.float32)


@lowers("bernoulli.Tensor", random=True)
def bernoulli_tensor(call: Call, self: jax.Array, p: jax.Array) -> jax.Array:
    return _unit(call, self.shape, jnp.float32) < p.astype(jnp.float32)


@lowers("uniform", random=True, check=random_checks.uniform)
def uniform(call: Call, self: jax.Array, low: Operand = 0.0, high: Operand = 1.0) -> jax.Array:
    if is_complex(self.dtype):  # both parts of a number are draws
        part = jnp.zeros((2, *self.shape), self.real.dtype)
        drawn = uniform(call, part, low, high)
        return lax.complex(drawn[0], drawn[1])
    unit = _unit(call, self.shape, self.dtype)
    low, high = cast(low, self.dtype), cast(high, self.dtype)
    return unit * (high - low) + low


def _gauss(call: Call, shape: Sequence[int], dtype: Any) -> jax.Array:
    dtype = compute_dtype(dtype)
    if is_complex(dtype):
        return jax.random.normal(call.random_key(), tuple(shape), dtype)
    return jax.random.normal(call.random_key(), tuple(shape), dtype)


@lowers("normal_functional", "normal_", random=True, check=random_checks.normal)
def normal(call: Call, self: jax.Array, mean: Operand = 0.0, std: Operand = 1.0) -> jax.Array:
    draw = _gauss(call, self.shape, self.dtype)
    return draw * cast(std, draw.dtype) + cast(mean, draw.dtype)


@lowers(
    "normal.Tensor_float",
    "normal.float_Tensor",
    "normal.Tensor_Tensor",
    random=True,
    check=random_checks.normal_of,
)
def normal_tensors(call: Call, mean: Operand, std: Operand = 1.0) -> jax.Array:
    draw = _gauss(call, call.shape, call.dtype)
    return draw * cast(std, draw.dtype) + cast(mean, draw.dtype)


@lowers("normal.float_float", random=True, check=random_checks.normal_of)
def normal_floats(
    call: Call, mean: Operand, std: Operand, size: Sequence[int], **options: Any
) -> jax.Array:
    return normal_tensors(call, mean, std)


@lowers("rand", "rand_like", random=True)
def rand(call: Call, *args: Any, **options: Any) -> jax.Array:
    return _unit(call, call.shape, call.dtype)


@lowers("randn", "randn_like", random=True)
def randn(call: Call, *args: Any, **options: Any) -> jax.Array:
    return _gauss(call, call.shape, call.dtype)


def _integers(call: Call, low: Operand, high: Operand) -> jax.Array:
    low, high = cast(low, jnp.int64), cast(high, jnp.int64)
    return jax.random.randint(call.random_key(), call.shape, low, high, jnp.int64)


@lowers("randint", static_numbers=True, random=True)
def randint(call: Call, high: int, size: Sequence[int], **options: Any) -> jax.Array:
    return _integers(call, 0, high)


@lowers("randint.low", static_numbers=True, random=True)
def randint_low(call: Call, low: int, high: int, size: Sequence[int], **options: Any) -> jax.Array:
    return _integers(call, low, high)


@lowers("randint_like", static_numbers=True, random=True)
def randint_like(call: Call, self: jax.Array, high: int, **options: Any) -> jax.Array:
    return _integers(call, 0, high)


@lowers("randint_like.low_dtype", static_numbers=True, random=True)
def randint_like_low(call: Call, self: jax.Array, low: int, high: int, **options: Any) -> jax.Array:
    return _integers(call, low, high)


@lowers("random.from", static_numbers=True, random=True)
def random_from(call: Call, self: jax.Array, low: int, to: int | None) -> jax.Array:
    return _integers(call, low, _limit(self) if to is None else to)


@lowers("random.to", static_numbers=True, random=True)
def random_to(call: Call, self: jax.Array, to: int) -> jax.Array:
    return _integers(call, 0, to)


@lowers("random", random=True)
def random_(call: Call, self: jax.Array) -> jax.Array:
    return _integers(call, 0, _limit(self))


def _limit(self: jax.Array) -> int:
    """One above the largest integer that random_() draws for a dtype."""
    if is_float(self.dtype):
        return int(2 ** (limits(self.dtype).nmant + 1)) + 1
    if self.dtype == jnp.bool_:
        return 2
    return min(int(limits(self.dtype).max) + 1, 2**63 - 1)


@lowers("randperm", "randperm.generator", random=True)
def randperm(call: Call, n: int, **options: Any) -> jax.Array:
    return jax.random.permutation(call.random_key(), jnp.arange(n, dtype=jnp.int64))


@lowers("exponential", random=True, check=random_checks.exponential)
def exponential(call: Call, self: jax.Array, lambd: Operand = 1.0) -> jax.Array:
    dtype = compute_dtype(self.dtype)
    return jax.random.exponential(call.random_key(), self.shape, dtype) / cast(lambd, dtype)


@lowers("log_normal", random=True, check=random_checks.log_normal)
def log_normal(call: Call, self: jax.Array, mean: Operand = 1.0, std: Operand = 2.0) -> jax.Array:
    return jnp.exp(normal(call, self, mean, std))


@lowers("geometric", random=True, check=random_checks.geometric)
def geometric(call: Call, self: jax.Array, p: Operand) -> jax.Array:
    unit = 1 - _unit(call, self.shape, jnp.float32)
    return jnp.maximum(jnp.ceil(jnp.log(unit) / jnp.log1p(-cast(p, jnp.float32))), 1)


@lowers("cauchy", random=True, check=random_checks.cauchy)
def cauchy(call: Call, self: jax.Array, median: Operand = 0.0, sigma: Operand = 1.0) -> jax.Array:
    dtype = compute_dtype(self.dtype)
    draw = jax.random.cauchy(call.random_key(), self.shape, dtype)
    return draw * cast(sigma, dtype) + cast(median, dtype)


@lowers("poisson", random=True)
def poisson(call: Call, self: jax.Array) -> jax.Array:
    return jax.random.poisson(call.random_key(), self.astype(jnp.float32), self.shape)


@lowers("_standard_gamma", random=True)
def standard_gamma(call: Call, self: jax.Array) -> jax.Array:
    return jax.random.gamma(call.random_key(), wide(self))


@lowers("_standard_gamma_grad")
def standard_gamma_grad(call: Call, self: jax.Array, output: jax.Array) -> jax.Array:
    return jnp.asarray(lax.random_gamma_grad(wide(self), wide(output)))


@lowers("_sample_dirichlet", random=True)
def sample_dirichlet(call: Call, self: jax.Array) -> jax.Array:
    # In logarithms: small concentrations draw numbers below the smallest float.
    logs = jax.random.loggamma(call.random_key(), wide(self))
    return jax.nn.softmax(logs, axis=-1)


@lowers("binomial", random=True)
def binomial(call: Call, count: jax.Array, prob: jax.Array) -> jax.Array:
    return jax.random.binomial(call.random_key(), wide(count), wide(prob))


@lowers("multinomial", random=True)
def multinomial(
    call: Call, self: jax.Array, num_samples: int, replacement: bool = False
) -> jax.Array:
    odds = jnp.log(wide(self))
    if replacement:
        drawn = jax.random.categorical(
            call.random_key(), odds[..., None, :], shape=(*odds.shape[:-1], num_samples)
        )
        return as_array(drawn)
    # The largest of log-odds plus Gumbel noise are a draw without replacement.
    noise = jax.random.gumbel(call.random_key(), odds.shape, odds.dtype)
    return jax.lax.top_k(odds + noise, num_samples)[1]


@lowers("rrelu_with_noise", random=True, mutates=(1,))
@lowers("rrelu_with_noise_", random=True, mutates=(0, 1))
@lowers("rrelu_with_noise_functional", random=True)
def rrelu_with_noise(
    call: Call,
    self: jax.Array,
    noise: jax.Array,
    lower: Operand = 0.125,
    upper: Operand = 1 / 3,
    training: bool = False,
) -> tuple[jax.Array, jax.Array]:
    x = wide(self)
    low, high = cast(lower, x.dtype), cast(upper, x.dtype)
    if not training:
        return jnp.where(x > 0, x, x * ((low + high) / 2)), noise
    slope = jnp.where(x > 0, 1, _unit(call, x.shape, x.dtype) * (high - low) + low)
    return x * slope, slope
