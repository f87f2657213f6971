"""The tensor-parallel plan of transformers, by the names their layers go by.

The plan is the one that `torch.distributed.tensor.parallel.parallelize_module` is given for such
models: what makes heads or hidden units is split by columns (its outputs), what takes them is split
by rows (its inputs), so that one sum a block suffices.
"""

from __future__ import annotations

import re
from typing import Literal

#: column: outputs split; row: inputs split; vocabulary: rows of a table split; experts: the first
#: of three dimensions; fused: q, k and v in one layer, outputs split; whole: not split by tp.
Role = Literal["column", "row", "vocabulary", "experts", "fused", "whole"]

#: Patterns of a module's path, first match wins. `Linear` layers and their like only.
_LINEAR: tuple[tuple[str, Role], ...] = (
    (r"(^|\.)(q|k|v|gate|up)_proj$", "column"),
    (r"(^|\.)(o|out|down)_proj$", "row"),
    (r"(^|\.)(wq|wk|wv|w1|w3)$", "column"),
    (r"(^|\.)(wo|w2)$", "row"),
    (r"(^|\.)(query|key|value)$", "column"),
    (r"(^|\.)intermediate\.dense$", "column"),
    (r"(^|\.)output\.dense$", "row"),
    (r"(^|\.)(c_attn|qkv|qkv_proj|wqkv|query_key_value)$", "fused"),
    (r"(^|\.)(c_fc|fc1|linear1|gate_up_proj|dense_h_to_4h)$", "column"),
    (r"(^|\.)(c_proj|fc2|linear2|dense_4h_to_h)$", "row"),
    (r"(^|\.)(lm_head|output|embed_out|decoder|proj_out)$", "column"),
)
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|word_embeddings|tok_embeddings|embed_in)$")


def role_of(path: str, module_class: str, parameter: str, dimensions: int) -> Role:
    """The part that a parameter plays, by its module's path and class and its own name."""
    if dimensions == 3 and "expert" in f"{path}.{module_class}".lower():
        return "experts"
    if parameter in ("in_proj_weight", "in_proj_bias"):  # torch.nn.MultiheadAttention
        return "fused"
    if module_class == "Embedding":
        return "vocabulary" if _EMBEDDING.search(path) else "whole"
    if not module_class.endswith(("Linear", "Conv1D")):
        return "whole"
    return next((role for pattern, role in _LINEAR if re.search(pattern, path)), "whole")


def split_dimension(role: Role, dimensions: int, inputs_first: bool) -> int | None:
    """The dimension of a parameter that tensor parallelism splits, None for none.

    `inputs_first`: whether a weight is stored (inputs, outputs), as transformers' Conv1D does.
    """
    if role in ("whole", "experts"):
        return None
    if role == "vocabulary":
        return 0
    outputs = 1 if inputs_first and dimensions == 2 else 0
    if role in ("column", "fused"):
        return outputs
    return None if dimensions == 1 else 1 - outputs  # a row layer's bias is added after the sum
