"""Model FLOPs of one aten call, by formula from its arguments; one file a family of ops."""

from tpu_perf.analysis.op_flops.call import Call, TensorArgument, parse_call
from tpu_perf.analysis.op_flops.counting import (
    CAUSAL,
    CONVENTION,
    FULL,
    OpFlops,
    conventions,
    flops_of_call,
    flops_of_op_name,
)

__all__ = [
    "CAUSAL",
    "CONVENTION",
    "FULL",
    "Call",
    "OpFlops",
    "TensorArgument",
    "conventions",
    "flops_of_call",
    "flops_of_op_name",
    "parse_call",
]
