"""What operators compute and move, from their shapes and types."""

from replay.operators.calls import Call, operator_of
from replay.operators.kernels import operator_of_kernel
from replay.operators.operator import (
    DTYPE_BYTES,
    KINDS,
    Operator,
    attention,
    batched_matmul,
    convolution,
    rowwise,
    streaming,
)

__all__ = [
    "DTYPE_BYTES",
    "KINDS",
    "Call",
    "Operator",
    "attention",
    "batched_matmul",
    "convolution",
    "operator_of",
    "operator_of_kernel",
    "rowwise",
    "streaming",
]
