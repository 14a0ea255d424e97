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
    own = {(one.kind, one.device.name, one.dtype, one.library) for several in recordings().values() for one in several}
    return replace(shipped, fits=MappingProxyType({key: fit for key, fit in shipped.fits.items() if key not in own}))


def roof_seconds(one: MeasuredOperators) -> Floats | None:
    """Return the time of each operator at the peaks of its device; None of a kind whose traffic is not counted here."""
    machine, dims, size = Machine.of(one.device, one.dtype), one.dims, one.element_bytes
    flops: Floats = np.zeros(len(dims))
    if "matmul" in one.kind:
        batch, m, n, k = dims.T
        flops, moved = 2 * batch * m * n * k, size * batch * (m * k + k * n + m * n)
    elif one.kind in ("softmax", "normalization"):
        moved = 2 * size * dims.prod(axis=1)
    elif one.kind == "elementwise":
        moved = size * dims.prod(axis=1)
    elif "attention" in one.kind:
        sequences, queries, tokens, heads, kv_heads, width, _ = dims.T
        flops, moved = (
            4 * sequences * heads * queries * tokens * width,
            2 * size * sequences * kv_heads * tokens * width,
        )
    elif one.kind == "experts":
        tokens, hidden, inter, topk, experts = dims.T[:5]
        flops = 6 * tokens * topk * hidden * inter
        moved = 3 * size * np.minimum(experts, tokens * topk) * hidden * inter
    else:
        return None
    return np.maximum(flops / machine.flops_per_s, moved / machine.memory_bytes_per_s)


def copies(one: MeasuredOperators, others: Sequence[MeasuredOperators]) -> tuple[float, str]:
    """Return the mean error of the best copy from another device, and that device; shapes that both measured count."""
    best, name = np.inf, ""
    mine = roof_seconds(one)
    for other in others:
        theirs = roof_seconds(other)
        if other.device == one.device or mine is None or theirs is None:
            continue
        at = {shape: row for row, shape in enumerate(map(tuple, other.dims.tolist()))}
        pairs = np.array([(i, at[s]) for i, s in enumerate(map(tuple, one.dims.tolist())) if s in at])
        if len(pairs) < LEAST_ROWS:
            continue
        i, j = pairs.T
        copied = other.seconds[j] * mine[i] / theirs[j]
        if (error := float(np.mean(np.abs(copied / one.seconds[i] - 1)))) < best:
            best, name = error, other.device.name
    return best, name


def row(
    case: str, one: MeasuredOperators, calibration: KernelCalibration, others: Sequence[MeasuredOperators],
) -> dict[str, str]:  # fmt: skip
    """Return a row of the table."""
    found = predict(
        one.kind,
        one.dims,
        one.device,
        calibration=calibration,
        dtype=one.dtype,
        launched=one.launched,
        library=one.library or None,
    )
    errors = accuracy((found.seconds, found.low, found.high), one.seconds, one.seconds, ())
    copy, copied = copies(one, others)
    return {
        "case": f"{one.kind} {one.device.name} {one.dtype} {case}",
        "rows": str(errors["rows"]),
        **{name: f"{100 * errors[name]:.1f}" for name in ("error", "median", "covered")},
        "bias": f"{errors['bias']:.3f}",
        "relation": found.relation,
        "copy": f"{100 * copy:.1f}" if copied else "",
        "copied": copied,
    }


def table(shared: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of the table."""
    recorded = recordings()
    nothing, others = without_recordings(), [one for several in recorded.values() for one in several]
    fitted = {name: calibrate(several) for name, several in recorded.items()}
    for name, several in recorded.items():
        other = next(each for each in RECORDED if each != name)
        for one in several:
            alike = [each for each in others if (each.kind, each.dtype) == (one.kind, one.dtype)]
            yield row("nothing recorded", one, nothing, [])
            yield row("other recording", one, fitted[other], alike)
    yield from _left_out(
        [
            one
            for one in read_measurements(shared / "data" / "kernels")
            if "_test" in one.source or "mi100" in one.source
        ]
    )
    for end in FRAMEWORK:
        new = shared / "new" / "operators" / f"aic_{end}_rtx_pro_6000.parquet"
        measured = read_measurements(shared / "data" / "operators" / f"aic_{end}.parquet") + read_measurements(new)
        yield from _left_out([one for one in measured if one.library == LIBRARY and len(one) >= LEAST_ROWS])


def _left_out(measured: Sequence[MeasuredOperators]) -> Iterator[dict[str, str]]:
    """Yield a row for each device that is left out of the shipped fits."""
    keys: Mapping[tuple[str, str], int] = dict.fromkeys(((one.kind, one.dtype) for one in measured), 0)
    for kind, dtype in keys:
        alike = [one for one in measured if (one.kind, one.dtype) == (kind, dtype)]
        for one in alike:
            others = load_calibration().without(one.device.name)
            if others.donors(kind, dtype, (), library=one.library or None):
                yield row("left out", one, others, alike)


if __name__ == "__main__":
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table(Path(sys.argv[1])))
