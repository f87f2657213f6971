"""Shapes and dtypes of outputs where torch's own meta kernels have none, or not the CPU's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch._prims_common import suggest_memory_format

from tpu_perf.runtime.signatures import overload
from tpu_perf.runtime.torch_private import correct_fakes

Tensor = torch.Tensor
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
Form = TypeVar("Form", bound=Callable[..., Any])

#: Functional overload -> a function of its arguments (on device "meta") to its outputs.
FORMS: dict[str, Callable[..., Any]] = {}


def forms(*ops: str) -> Callable[[Form], Form]:
    """Register a function as the meta kernel of functional aten overloads."""

    def register(function: Form) -> Form:
        for op in ops:
            name = op if "." in op else f"{op}.default"
            if name in FORMS:
                raise ValueError(f"meta kernel of {name} is registered twice")
            FORMS[name] = function
        return function

    return register


#: Those that take the place of torch's own also where graphs are traced.
_REPLACED = frozenset({"_grouped_mm.default", "nonzero_static.default"})


def register(library: torch.library.Library) -> None:
    """Give torch the meta kernels it lacks altogether, so that graphs can be traced over them."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    for name, form in FORMS.items():
        short = name.removesuffix(".default")
        if name in _REPLACED:
            base, _, own = name.partition(".")
            op = getattr(getattr(torch.ops.aten, base), own)
            op.py_kernels.pop(torch._C.DispatchKey.Meta, None)
            op.py_impl(torch._C.DispatchKey.Meta)(form)
            library.impl(short, form, "Meta", allow_override=True)
        elif not any(
            has_kernel(f"aten::{short}", key)
            for key in ("Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd")
        ):
            library.impl(short, form, "Meta")
    correct_fakes(torch.ops.aten.convolution.default, _convolved)
    correct_fakes(torch.ops.aten.convolution_backward.default, _convolved_backward)


@forms("histc")
def histc(self: Tensor, bins: int = 100, min: Any = 0, max: Any = 0) -> Tensor:
    """Whole numbers too, as on CUDA: models count with it how many tokens an expert gets."""
    torch._check(not (self.is_complex() or self.dtype is torch.bool),
                 lambda: f"\"histogram\" not implemented for '{self.dtype}'")  # fmt: skip
    torch._check(bins > 0, lambda: f"histc(): bins must be > 0, but got {bins}")
    torch._check(max >= min, lambda: "histc(): max must be larger than min")
    return self.new_empty(bins)


@forms("_grouped_mm")
def grouped_mm(
    self: Tensor, mat2: Tensor, offs: Tensor | None = None, bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Torch's asks for bfloat16 and 16-byte rows, which are needs of a CUDA kernel."""
    torch._check(self.dim() in (2, 3) and mat2.dim() in (2, 3),
                 lambda: f"Multiplicands must be 2D or 3D but got mat_a.dim()={self.dim()} and "
                         f"mat_b.dim()={mat2.dim()}")  # fmt: skip
    torch._check(self.dtype == mat2.dtype and self.is_floating_point(),
                 lambda: f"expected two floating-point matrices of one dtype but got {self.dtype} "
                         f"and {mat2.dtype}")  # fmt: skip
    torch._check((offs is not None) == (self.dim() == 2 or mat2.dim() == 2),
                 lambda: "Have to provide offsets if there is a 2d matrix, or no offset if both "
                         "matrices are 3d")  # fmt: skip
    if self.dim() == 3 or mat2.dim() == 3:
        torch._check(self.size(-1) == mat2.size(-2),
                     lambda: "contraction dimension of mat_a and mat_b must match")  # fmt: skip
    if self.dim() == 2:
        size: list[Any] = [self.size(0), mat2.size(-1)]
        if mat2.dim() == 2:
            assert offs is not None
            size = [offs.size(0), *size]
    else:
        size = [self.size(1), mat2.size(1)] if mat2.dim() == 2 else [
            self.size(0), self.size(1), mat2.size(-1)]  # fmt: skip
    return self.new_empty(size, dtype=out_dtype or self.dtype)


@forms("_sample_dirichlet", "binomial", "_standard_gamma_grad")
def like_parameter(self: Tensor, *args: Any, **options: Any) -> Tensor:
    return torch.empty_like(self, memory_format=torch.contiguous_format)


@forms("multi_margin_loss_backward", "multilabel_margin_loss_backward")
def like_second(grad_output: Tensor, self: Tensor, *args: Any, **options: Any) -> Tensor:
    return torch.empty_like(self, memory_format=torch.contiguous_format)


@forms("fractional_max_pool3d_backward")
def like_pooled(grad_output: Tensor, self: Tensor, *args: Any) -> Tensor:
    return torch.empty_like(self, memory_format=torch.contiguous_format)


@forms("nonzero_static")
def nonzero_static(self: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    if size < 0:
        raise RuntimeError("nonzero_static: 'size' must be an non-negative integer")
    return self.new_empty((size, self.dim()), dtype=torch.int64)


@forms("_ctc_loss.Tensor")
def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor,
    blank: int = 0, zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    time, batch = log_probs.shape[:2]
    return (
        log_probs.new_empty((batch,)),
        log_probs.new_empty((batch, time, 2 * targets.shape[-1] + 1)),
    )


@forms("_ctc_loss_backward", "_ctc_loss_backward.Tensor")
def ctc_loss_backward(grad: Tensor, log_probs: Tensor, *args: Any, **options: Any) -> Tensor:
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


@forms("histogram.bin_ct")
def histogram_of_count(
    self: Tensor, bins: int = 100, *, range: Any = None, weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    _check_histogram(self, weight)
    if bins <= 0:
        raise RuntimeError(f"histogram(): bins must be > 0, but got {bins}")
    _check_range("histogram", 1, range)
    return self.new_empty((bins,)), self.new_empty((bins + 1,))


@forms("histogram.bins_tensor")
def histogram_of_edges(
    self: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    _check_histogram(self, weight)
    if bins.dim() != 1 or bins.numel() < 2:
        raise RuntimeError(
            "histogram(): bins tensor should have one dimension and at least 2 elements, but got "
            f"shape {list(bins.shape)}"
        )
    if bins.dtype != self.dtype:
        raise RuntimeError(
            "histogram(): input tensor and bins tensors should have the same dtype, but got "
            f"input {self.dtype} and bins {bins.dtype}"
        )
    return self.new_empty((bins.numel() - 1,)), self.new_empty((bins.numel(),))


def _check_histogram(self: Tensor, weight: Tensor | None) -> None:
    if weight is None:
        return
    if weight.shape != self.shape:
        raise RuntimeError(
            "histogram(): if weight tensor is provided it should have the same shape as the "
            f"input tensor, but got input {list(self.shape)} and weight {list(weight.shape)}"
        )
    if weight.dtype != self.dtype:
        raise RuntimeError(
            "histogram(): if weight tensor is provided, input tensor and weight tensor should "
            f"have the same dtype, but got input {self.dtype} and weight {weight.dtype}"
        )


def _check_range(name: str, dims: int, range: Sequence[float] | None) -> None:
    if range is None:
        return
    if len(range) != 2 * dims:
        raise RuntimeError(
            f"{name}(): for a {dims}-dimensional histogram range should have {2 * dims} elements, "
            f"but got {len(range)}"
        )
    for low, high in zip(range[::2], range[1::2], strict=True):
        if low > high:
            raise RuntimeError(f"{name}(): min should not exceed max, but got {low} and {high}")


def _check_histogramdd(self: Tensor, bins: Sequence[Any], weight: Tensor | None) -> None:
    if self.dim() < 2:
        raise RuntimeError(
            f"histogramdd(): input tensor should have at least 2 dimensions, but got {self.dim()}"
        )
    if len(bins) != self.shape[-1]:
        raise RuntimeError(
            f"histogramdd(): expected {self.shape[-1]} sequences of bin edges for a "
            f"{self.shape[-1]}-dimensional histogram but got {len(bins)}"
        )
    if weight is None:
        return
    if weight.shape != self.shape[:-1]:
        raise RuntimeError(
            "histogramdd(): if weight tensor is provided it should have the same shape as the "
            "input tensor excluding its innermost dimension, but got input "
            f"{list(self.shape)} and weight {list(weight.shape)}"
        )
    if weight.dtype != self.dtype:
        raise RuntimeError(
            "histogramdd(): if weight tensor is provided, input tensor and weight tensor should "
            f"have the same dtype, but got input {self.dtype} and weight {weight.dtype}"
        )


@forms("_histogramdd_bin_edges")
def histogramdd_edges(
    self: Tensor, bins: Sequence[int], *, range: Any = None, weight: Tensor | None = None,
    density: bool = False,
) -> list[Tensor]:  # fmt: skip
    _check_histogramdd(self, bins, weight)
    _check_range("histogramdd", len(bins), range)
    return [self.new_empty((n + 1,)) for n in bins]


@forms("_histogramdd_from_bin_cts")
def histogramdd_of_counts(
    self: Tensor, bins: Sequence[int], *, range: Any = None, weight: Tensor | None = None,
    density: bool = False,
) -> Tensor:  # fmt: skip
    _check_histogramdd(self, bins, weight)
    _check_range("histogramdd", len(bins), range)
    return self.new_empty(tuple(bins))


@forms("_histogramdd_from_bin_tensors")
def histogramdd_of_edges(
    self: Tensor, bins: Sequence[Tensor], *, weight: Tensor | None = None, density: bool = False
) -> Tensor:
    _check_histogramdd(self, bins, weight)
    return self.new_empty(tuple(b.numel() - 1 for b in bins))


def _batch_norm_form(name: str, training: int) -> None:
    @forms(name)
    def form(*args: Any) -> Any:
        """Outside of training the CPU saves nothing."""
        out, *saved = overload(name)(*args)  # type: ignore[misc]
        return (out, *saved) if args[training] else (out, *(s.new_empty(0) for s in saved))


_batch_norm_form("native_batch_norm.default", training=5)
_batch_norm_form("_native_batch_norm_legit.default", training=5)


@forms("max_unpool2d")
def max_unpool2d(self: Tensor, *args: Any) -> Tensor:
    made: Tensor = torch.ops.aten.max_unpool2d.default(self, *args)
    turned = made.dim() == 4 and self.is_contiguous(memory_format=torch.channels_last)
    turned = turned and not self.is_contiguous()
    return made.contiguous(memory_format=torch.channels_last) if turned else made


@forms("_scaled_dot_product_fused_attention_overrideable_backward")
def attention_backward(*args: Any, **options: Any) -> tuple[Tensor | None, ...]:
    """Gradients lie as (batch, length, heads, width), as the CPU's do: models that transposed
    heads to the front transpose them back."""
    op = torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward.default
    *made, bias = op(*args, **options)
    turned = (g if g is None else g.transpose(1, 2).contiguous().transpose(1, 2) for g in made)
    return (*turned, bias)


def _channels_last(*tensors: Tensor) -> torch.memory_format | None:
    """The channels-last format, where one of the tensors has it: convolutions keep it."""
    for tensor in tensors:
        found = suggest_memory_format(tensor)
        if found in (torch.channels_last, torch.channels_last_3d):
            return found
    return None


@forms("convolution", "convolution_overrideable")
def convolution(input: Tensor, weight: Tensor, *args: Any, **options: Any) -> Tensor:
    made: Tensor = torch.ops.aten.convolution(input, weight, *args, **options)
    return _convolved(made, input, weight)


def _convolved(made: Tensor, input: Tensor, weight: Tensor, *args: Any, **options: Any) -> Tensor:
    kept = _channels_last(input, weight)
    return made if kept is None else torch.empty_like(made, memory_format=kept)


@forms("convolution_backward")
def convolution_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, *args: Any, **options: Any
) -> Gradients:
    gradients = torch.ops.aten.convolution_backward(grad_output, input, weight, *args, **options)
    return _convolved_backward(gradients, grad_output, input, weight)


def _convolved_backward(
    gradients: Gradients, grad_output: Tensor, input: Tensor, weight: Tensor,
    *args: Any, **options: Any,
) -> Gradients:  # fmt: skip
    kept = _channels_last(input, weight)
    if kept is None:
        return gradients
    of_input, of_weight = (
        None if g is None else torch.empty_like(g, memory_format=kept) for g in gradients[:2]
    )
    return of_input, of_weight, gradients[2]


@forms("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False,
    mode: int = 0, *args: Any, **options: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Always with the bag of each index, which the gradient needs."""
    op = torch.ops.aten._embedding_bag.default
    out = op(weight, indices, offsets, scale_grad_by_freq, mode, *args, **options)[0]
    best = indices.new_empty(out.shape if mode == 2 else (0,))
    return out, indices.new_empty(indices.shape), indices.new_empty(offsets.shape), best
