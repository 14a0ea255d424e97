"""Regenerate tests/accuracy/operators.csv: for every real trace, the share of device time whose operator is known.

    python benchmarks/durations/operator_coverage.py ../shared/data/traces/kineto > tests/accuracy/operators.csv

Shares, in percent, of the time in kernels that are no collectives: launched by a recorded operator, with shapes, and
with shapes from which `replay.costs.operators` counts FLOP and bytes. Of the rest, the share whose operator the name
and grid of a pointwise kernel of PyTorch tell (`operator_of_kernel`). Unknown are other libraries' kernels (FBGEMM's
embeddings, custom attention), compiled graphs, and convolutions without a recorded stride.
"""

import csv
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from profilers.errors import SeqPointError
from profilers.ingest.pipeline import IngestOptions, open_trace
from profilers.trace.arrays import MISSING, integers, strings
from profilers.trace.columns import lookup
from profilers.trace.kernels import is_collective
from profilers.trace.trace import Trace
from replay.costs.calls import Call
from replay.costs.operators import operator_of
from replay.graph.operators import DTYPE_BYTES, Operator, streaming

COLUMNS = ("trace", "kernel_ms", "with_op", "with_shapes", "known", "by_kernel")

#: PyTorch's pointwise kernels, and how many elements a thread takes: the second parameter of the legacy kernel; four,
#: or the width of the vector if that is more, of the others; eight if it is unrolled by hand.
_LEGACY = re.compile(r"\belementwise_kernel<(\d{1,4}), (\d{1,4})\b")
_VECTORIZED = re.compile(r"\bvectorized_elementwise_kernel<(\d{1,4})\b")
_UNROLLED = re.compile(r"\bunrolled_elementwise_kernel<")
_BY_HAND = re.compile(r"\belementwise_kernel_manual_unroll<(\d{1,4}), (\d{1,4})\b")
#: The pointers that are handed to the kernel: one an array.
_POINTERS = re.compile(r"[Aa]rray<char ?\*, (\d{1,2})(?!\d)")
#: Largest number of workgroups, and of work-items of a workgroup, that counts.
_MOST = 2**40
_TYPES: tuple[tuple[str, str], ...] = (
    ("bfloat16", "bf16"),
    ("half", "fp16"),
    ("double", "fp64"),
    ("float8", "fp8"),
    ("float", "fp32"),
    ("long", "long"),
    ("bool", "bool"),
    ("char", "int8"),
)


def operator_of_kernel(name: str, workgroups: int, workgroup_size: int) -> Operator | None:
    """Return the operator of a pointwise kernel of PyTorch, by its name and grid; None of any other kernel.

    The last workgroup may be partly idle, so that elements are an upper bound, off by less than one workgroup's.
    Products do not tell their depth, row-wise kernels not their columns. Elements a thread are those of PyTorch 1.10 to
    2.9, as `tests/test_real_durations.py` compares them with recorded shapes.
    """
    each = _elements_a_thread(name)
    if not each or not (1 <= workgroups < _MOST and 1 <= workgroup_size < _MOST):
        return None
    elements = int(workgroups) * int(workgroup_size) * each
    pointers = _POINTERS.search(name)
    arrays = int(pointers[1]) if pointers else 2
    size = _element_bytes(name)
    kind = "copy" if re.search(r"copy|fill", name, re.IGNORECASE) else "elementwise"
    return streaming(kind, max(arrays - 1, 0) * elements * size, elements * size, elements, size)


def _elements_a_thread(name: str) -> int | None:
    if by_hand := _BY_HAND.search(name):
        return int(by_hand[2])
    if legacy := _LEGACY.search(name):
        return int(legacy[2])
    if vectorized := _VECTORIZED.search(name):
        return max(int(vectorized[1]), 4)
    return 4 if _UNROLLED.search(name) else None


def _element_bytes(name: str) -> int:
    lower = name.lower().replace("array<char", "array<")
    found = [(lower.find(text), dtype) for text, dtype in _TYPES if text in lower]
    return DTYPE_BYTES[min(found)[1]] if found else 4


@dataclass(frozen=True)
class OperatorCoverage:
    """Shares of the time in kernels that are no collectives.

    Parameters
    ----------
    kernel_ns : int
        Time in these kernels.
    with_op, with_shapes, known : float
        Share of kernels launched by an operator, by an operator with recorded shapes, and by a known operator.
    by_kernel : float
        Share of kernels whose operator only their name and grid tell (`operator_of_kernel`).
    """

    kernel_ns: int
    with_op: float
    with_shapes: float
    known: float
    by_kernel: float = 0.0


def operators_of_kernels(trace: Trace) -> tuple[list[Operator | None], npt.NDArray[np.bool_]]:
    """Return for every kernel the operator that launched it, and whether that has recorded shapes."""
    kernels, ops = trace.kernels, trace.ops
    rows = lookup(integers(ops, "id"), np.arange(ops.num_rows), integers(kernels, "op_id"))
    launching = sorted(set(rows[rows != MISSING].tolist()))
    columns = ["name", "shapes", "dtypes", "concrete_inputs"]
    calls = ops.select(columns).take(launching).to_pylist() if launching else []
    operators: dict[int, Operator | None] = {}
    shaped: set[int] = set()
    for row, op in zip(launching, calls, strict=True):  # a Python loop over operators that launch kernels
        operators[row] = operator_of(Call.of_row(op["name"], op["shapes"], op["dtypes"], op["concrete_inputs"]))
        if op["shapes"]:
            shaped.add(row)
    each = rows.tolist()
    return [operators.get(row) for row in each], np.array([row in shaped for row in each], dtype=np.bool_)


def operator_coverage(trace: Trace) -> OperatorCoverage:
    """Return the shares of a trace's kernel time whose operator is known."""
    kernels = trace.kernels
    duration = integers(kernels, "dur_ns")
    names = strings(kernels, "name")
    collective = {name: is_collective(name) for name in set(names)}
    counted = np.array([not collective[name] for name in names], dtype=np.bool_) & (duration != MISSING)
    operators, shaped = operators_of_kernels(trace)
    launched = integers(kernels, "op_id") != MISSING
    known = np.array([operator is not None for operator in operators], dtype=np.bool_)
    total = int(duration[counted].sum())

    def share(rows: npt.NDArray[np.bool_]) -> float:
        return float(duration[counted & rows].sum() / total) if total else 0.0

    by_kernel = share(~known & _known_by_kernel(trace, names))
    return OperatorCoverage(total, share(launched), share(shaped), share(known), by_kernel)


def _known_by_kernel(trace: Trace, names: np.ndarray) -> npt.NDArray[np.bool_]:
    """Return the mask of kernels whose name and grid tell their operator; a loop over the distinct names."""
    known = {name: operator_of_kernel(name, 1, 1) is not None for name in set(names)}
    launched = np.minimum(integers(trace.kernels, "workgroups"), integers(trace.kernels, "workgroup_size")) > 0
    return np.array([known[name] for name in names], dtype=np.bool_) & launched


def row(path: Path) -> dict[str, str] | None:
    """Return the row of a trace, None of one without kernels."""
    try:
        found = operator_coverage(open_trace(str(path), IngestOptions("whole")))
    except SeqPointError:
        return None
    if not found.kernel_ns:
        return None
    shares = {name: f"{100 * getattr(found, name):.1f}" for name in COLUMNS[2:]}
    return {"kernel_ms": f"{found.kernel_ns / 1e6:.3f}"} | shares


def files(folder: Path) -> list[Path]:
    """Return the traces: all but particle_transformer's, of whose 208 two stand for the rest."""
    several = sorted(folder.rglob("*.json*"))
    kept = [path for path in several if "particle_transformer" not in path.parts]
    return kept + [path for path in several if "particle_transformer" in path.parts][:2]


if __name__ == "__main__":
    root = Path(sys.argv[1])
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for one in files(root):
        if (found := row(one)) is not None:
            writer.writerow({"trace": str(one.relative_to(root)), **found})
