"""Regenerate tests/accuracy/relatives.csv: devices that are left out, predicted from relatives, beside the best copy.

    python benchmarks/durations/accuracy_of_relatives.py ../shared > tests/accuracy/relatives.csv

A copy is the time that another device took for the same shape, times the ratio of the roofs of the two devices. The
best of all devices is in the table, although nobody knows beforehand which one it is. `relation` says what the nearest
measured devices are to the one that is left out (`replay.costs.kernels.fits.relation`).

The project's recordings of an H100 and an H200 are predicted three ways: by the shipped fits without those of the
recordings (`nothing recorded`), by fits of the other recording alone (`other recording`), and of products by halves.
"""

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from profilers.trace.arrays import Floats
from replay.costs.kernels import (
    KernelCalibration,
    Machine,
    MeasuredOperators,
    calibrate,
    load_calibration,
    predict,
    read_measurements,
)
from seqpoint.validation.kernels import accuracy

COLUMNS = ("case", "rows", "error", "median", "bias", "covered", "relation", "copy", "copied")
RECORDED = ("h100", "h200")
#: Tables of operators inside frameworks, and the framework that is the default.
FRAMEWORK = ("gemm", "context_attention", "generation_attention", "moe")
LIBRARY, LEAST_ROWS = "trtllm", 10


def recordings() -> dict[str, list[MeasuredOperators]]:
    """Return the operators that the project recorded, by device."""
    measured = Path(__file__).parents[2] / "datasets" / "measured"
    return {name: read_measurements(measured / name / "operators.parquet") for name in RECORDED}


def without_recordings() -> KernelCalibration:
    """Return the shipped fits without those of the recordings, whose tables name no library."""
    shipped = load_calibration()
    own = {
        (operators.kind, operators.device.name, operators.dtype, operators.library)
        for several in recordings().values()
        for operators in several
    }
    return replace(shipped, fits=MappingProxyType({key: fit for key, fit in shipped.fits.items() if key not in own}))


def roof_seconds(operators: MeasuredOperators) -> Floats | None:
    """Return the time of each operator at the peaks of its device; None of a kind whose traffic is not counted here."""
    machine, dims, size = Machine.of(operators.device, operators.dtype), operators.dims, operators.element_bytes
    flops: Floats = np.zeros(len(dims))
    if "matmul" in operators.kind:
        batch, m, n, k = dims.T
        flops, moved = 2 * batch * m * n * k, size * batch * (m * k + k * n + m * n)
    elif operators.kind in ("softmax", "normalization"):
        moved = 2 * size * dims.prod(axis=1)
    elif operators.kind == "elementwise":
        moved = size * dims.prod(axis=1)
    elif "attention" in operators.kind:
        sequences, queries, tokens, heads, kv_heads, width, _ = dims.T
        flops, moved = (
            4 * sequences * heads * queries * tokens * width,
            2 * size * sequences * kv_heads * tokens * width,
        )
    elif operators.kind == "experts":
        tokens, hidden, inter, topk, experts = dims.T[:5]
        flops = 6 * tokens * topk * hidden * inter
        moved = 3 * size * np.minimum(experts, tokens * topk) * hidden * inter
    else:
        return None
    return np.maximum(flops / machine.flops_per_s, moved / machine.memory_bytes_per_s)


def copies(operators: MeasuredOperators, others: Sequence[MeasuredOperators]) -> tuple[float, str]:
    """Return the mean error of the best copy from another device, and that device; shapes that both measured count."""
    best, name = np.inf, ""
    mine = roof_seconds(operators)
    for other in others:
        theirs = roof_seconds(other)
        if other.device == operators.device or mine is None or theirs is None:
            continue
        at = {shape: row for row, shape in enumerate(map(tuple, other.dims.tolist()))}
        pairs = np.array([(i, at[s]) for i, s in enumerate(map(tuple, operators.dims.tolist())) if s in at])
        if len(pairs) < LEAST_ROWS:
            continue
        i, j = pairs.T
        copied = other.seconds[j] * mine[i] / theirs[j]
        if (error := float(np.mean(np.abs(copied / operators.seconds[i] - 1)))) < best:
            best, name = error, other.device.name
    return best, name


def row(
    case: str, operators: MeasuredOperators, calibration: KernelCalibration, others: Sequence[MeasuredOperators],
) -> dict[str, str]:  # fmt: skip
    """Return a row of the table."""
    predicted = predict(
        operators.kind,
        operators.dims,
        operators.device,
        calibration=calibration,
        dtype=operators.dtype,
        launched=operators.launched,
        library=operators.library or None,
    )
    errors = accuracy((predicted.seconds, predicted.low, predicted.high), operators.seconds, operators.seconds, ())
    copy, copied = copies(operators, others)
    return {
        "case": f"{operators.kind} {operators.device.name} {operators.dtype} {case}",
        "rows": str(errors["rows"]),
        **{name: f"{100 * errors[name]:.1f}" for name in ("error", "median", "covered")},
        "bias": f"{errors['bias']:.3f}",
        "relation": predicted.relation,
        "copy": f"{100 * copy:.1f}" if copied else "",
        "copied": copied,
    }


def table(shared: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of the table."""
    recorded = recordings()
    nothing, others = without_recordings(), [operators for several in recorded.values() for operators in several]
    fitted = {name: calibrate(several) for name, several in recorded.items()}
    for name, several in recorded.items():
        other = next(each for each in RECORDED if each != name)
        for operators in several:
            alike = [each for each in others if (each.kind, each.dtype) == (operators.kind, operators.dtype)]
            yield row("nothing recorded", operators, nothing, [])
            yield row("other recording", operators, fitted[other], alike)
    yield from _left_out(
        [
            operators
            for operators in read_measurements(shared / "data" / "kernels")
            if "_test" in operators.source or "mi100" in operators.source
        ]
    )
    for end in FRAMEWORK:
        new = shared / "new" / "operators" / f"aic_{end}_rtx_pro_6000.parquet"
        measured = read_measurements(shared / "data" / "operators" / f"aic_{end}.parquet") + read_measurements(new)
        yield from _left_out(
            [operators for operators in measured if operators.library == LIBRARY and len(operators) >= LEAST_ROWS]
        )


def _left_out(measured: Sequence[MeasuredOperators]) -> Iterator[dict[str, str]]:
    """Yield a row for each device that is left out of the shipped fits."""
    keys: Mapping[tuple[str, str], int] = dict.fromkeys(
        ((operators.kind, operators.dtype) for operators in measured), 0
    )
    for kind, dtype in keys:
        alike = [operators for operators in measured if (operators.kind, operators.dtype) == (kind, dtype)]
        for operators in alike:
            others = load_calibration().without(operators.device.name)
            if others.donors(kind, dtype, (), library=operators.library or None):
                yield row("left out", operators, others, alike)


if __name__ == "__main__":
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table(Path(sys.argv[1])))
