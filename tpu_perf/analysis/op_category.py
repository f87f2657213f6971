"""What kind of work an aten op is, by its name: the category of tables and charts."""

from __future__ import annotations

import re
from functools import cache

from tpu_perf.analysis.op_flops.call import base_name

#: Category -> names (without namespace) that belong to it; the first that matches holds.
_RULES: tuple[tuple[str, str], ...] = (
    ("collective", r"all_reduce|all_gather|reduce_scatter|all_to_all|broadcast_$|wait_tensor"),
    ("attention", r"attention|sdp_choice|multi_head"),
    ("convolution", r"conv(olution|\d|_|$)"),
    ("recurrent", r"^_?(cudnn_|mkldnn_)?(lstm|gru|rnn)|_cell(_|$)"),
    ("optimizer", r"^_fused_(adam|adamw|sgd|adagrad)|^_foreach_"),
    (
        "matmul",
        r"(^|_)(mm|bmm|addmm|baddbmm|addbmm|matmul|linear|mv|addmv|dot|vdot|inner|einsum|"
        r"multi_dot|tensordot|bilinear|trilinear)(_|$)",
    ),
    ("linear algebra", r"linalg|cholesky|svd|(^|_)(qr|lu|eigh?|solve|det|inverse)(_|$)"),
    ("normalization", r"norm|(^|_)batch_norm"),
    ("softmax and loss", r"softmax|nll_loss|cross_entropy|_loss"),
    ("embedding and indexing", r"embedding|index|gather|scatter|take|select_backward|one_hot"),
    ("pooling and resampling", r"pool|upsample|interpolate|grid_sampler"),
    ("random", r"dropout|bernoulli|rand|normal_|uniform_|multinomial|exponential_"),
    (
        "view",
        r"^_?(unsafe_)?(view|reshape(_alias)?|t|transpose|permute|expand|squeeze|unsqueeze|slice|"
        r"select|split|split_with_sizes|chunk|narrow|as_strided|alias|detach|diagonal|unbind|"
        r"unfold|movedim)_?$",
    ),
    (
        "copy",
        r"copy|clone|contiguous|^cat$|^stack$|^_?to(_|$)|convert_element_type|^repeat|^pad|"
        r"constant_pad|^roll$|^flip$|slice_backward|_local_scalar_dense|^item$",
    ),
    (
        "creation",
        r"^(new_)?(empty|zeros|ones|full|arange|scalar_tensor|eye|linspace)|fill_?$|zero_",
    ),
    ("sorting", r"sort|topk|unique|kthvalue|searchsorted"),
    (
        "reduction",
        r"^(nan)?(sum|mean|prod|amax|amin|max|min|argmax|argmin|any|all|std|var|var_mean|"
        r"logsumexp|cumsum|cumprod|cummax|count_nonzero|median|aminmax)(_|$)",
    ),
)
_COMPILED = tuple((category, re.compile(pattern)) for category, pattern in _RULES)

ELEMENTWISE = "elementwise"
OTHER = "other"


@cache
def category_of(op: str) -> str:
    """The category of an op with or without overload; `other` for ops that are not torch's."""
    name = base_name(op)
    namespace, _, short = name.partition("::")
    for category, pattern in _COMPILED:
        if pattern.search(short):
            return category
    return ELEMENTWISE if namespace in ("aten", "prims") else OTHER
