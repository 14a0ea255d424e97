"""Regenerate tests/accuracy/occupancy.csv and resident.csv: passes by occupancy, and resident workgroups.

    python benchmarks/contention/accuracy_of_occupancy.py ../shared/data tests/accuracy

The first has the errors of `seqpoint validate occupancy` on REEF's passes (Han et al., OSDI 2022; MI50), in per cent.
The rows of whole kernels compare the kernel's latency with `OccupancyLaw.kernel_ns` on the 60 compute units, from the
same two passes. Of these, 12 us are the launch, which REEF's clock counts: no first pass is shorter.

The second compares `resident_workgroups` with the occupancy in traces of the PyTorch profiler. A shape is a set of
workgroups, threads, registers and shared memory. `equal` has the profiler's whole per cent. `zero` has more than 48 KB
of shared memory: the profiler then records 0, as it does not know that the kernel may have that much.
"""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from profilers.devices.catalogue import find_device
from profilers.ingest.pipeline import open_trace
from profilers.trace.arrays import Floats
from profilers.trace.trace import Trace
from replay.calibration.tables import MeasuredTable
from replay.costs.occupancy import fit_occupancy, resident_workgroups
from seqpoint.validation.occupancy import (
    LEAST_PASSES,
    MeasuredPasses,
    errors_with_chosen_exponent,
    occupancy_scores,
    read_passes,
)

PASSES = "hardware_counters/reef_latency_by_occupancy.parquet"
COLUMNS = ("kernels of", "n", "known", "law", "median", "p90", "kernels")
#: Compute units of the MI50, on all of which each pass ran.
UNITS = 60
#: Time of a launch in REEF's latencies: the shortest first pass of any kernel.
LAUNCH_NS = 12e3
KINETO = "traces/kineto/"
TRACES = (
    *(f"nanogpt8/nanogpt_rank{rank}" for rank in range(2)),
    *("hta/trace_diff_a100", "hta/nccl_a100_rank0", "hta/multistream_a100_rank0"),
    *("hta/trace_diff_v100", "misc/resnet50_v100_2021_schema", "misc/linear_rtx2080ti_30iters"),
)
RESIDENT_COLUMNS = ("trace", "device", "launches", "shapes", "equal", "zero", "other")
#: Shared memory of a workgroup that needs no permission, bytes.
_PLAIN_BYTES = 48 * 2**10


def occupancy_table(data: Path) -> list[dict[str, str]]:
    """Return the rows of occupancy.csv."""
    kernels = [kernel for kernel in read_passes(data / PASSES) if len(kernel.resident) >= LEAST_PASSES]
    rows = [dict(score) for score in occupancy_scores(kernels)]
    chosen = errors_with_chosen_exponent(kernels)
    rows.append(_row("all", "exponent of the other models", chosen))
    rows += _whole_kernels(data / PASSES, kernels)
    return [
        {name: f"{100 * value:.2f}" if isinstance(value := row[name], float) else str(value) for name in COLUMNS}
        for row in rows
    ]


def _row(label: str, law: str, errors: Sequence[Floats]) -> dict[str, Any]:
    passes, kernels = np.concatenate(errors), np.median([np.median(of_kernel) for of_kernel in errors])
    known = {"kernels of": label, "n": len(errors), "known": "first and last", "law": law}
    return known | {
        "median": float(np.median(passes)), "p90": float(np.quantile(passes, 0.9)), "kernels": float(kernels)
    }  # fmt: skip


def _whole_kernels(file: Path, kernels: Sequence[MeasuredPasses]) -> list[dict[str, Any]]:
    """Return the rows of whole kernels, which one pass or several passes finish."""
    table = MeasuredTable.read(file)
    assert table is not None
    columns = ("model", "kernel", "workgroups", "kernel_total_latency_us")
    whole = {(row["model"], row["kernel"]): row for row in table.content.select(columns).to_pylist()}
    errors: dict[str, list[Floats]] = {"whole kernels of one pass": [], "whole kernels of several passes": []}
    for kernel in kernels:
        row, most = whole[kernel.model, kernel.kernel], int(kernel.resident[-1])
        ends = [(float(kernel.resident[i]), float(kernel.times_ns[i])) for i in (0, -1)]
        ours = fit_occupancy(*ends, fixed_ns=LAUNCH_NS).kernel_ns(row["workgroups"], UNITS, resident=most)
        label = "one pass" if row["workgroups"] <= UNITS * most else "several passes"
        errors[f"whole kernels of {label}"].append(np.array([abs(ours / (1e3 * row["kernel_total_latency_us"]) - 1)]))
    return [_row(label, "latency and throughput", of_label) for label, of_label in errors.items()]


def resident_row(trace: Trace, name: str) -> dict[str, str]:
    """Return the row of a trace: how many shapes have the occupancy that the profiler recorded."""
    device, units = find_device(trace.meta.devices[0].name), trace.meta.devices[0].compute_units
    assert units is not None
    columns = ("workgroups", "workgroup_size", "registers", "lds_bytes", "occupancy")
    kernels = trace.kernels.select(columns).drop_null()
    shapes = kernels.group_by(list(columns)).aggregate([])
    workgroups, threads, registers, lds, recorded = (shapes[column].to_numpy().astype(float) for column in columns)
    resident = resident_workgroups(device, threads, registers=registers, lds_bytes=lds)
    ours = 100 * np.minimum(resident, workgroups / units) * threads / device.value("unit_threads")
    large = (lds > _PLAIN_BYTES) & (recorded == 0)
    equal = ~large & (np.abs(ours - recorded) <= 0.5001)  # the profiler rounds
    counts = (kernels.num_rows, len(recorded), equal.sum(), large.sum(), (~large & ~equal).sum())
    return dict(zip(RESIDENT_COLUMNS, (name, device.name, *map(str, counts)), strict=True))


def resident_table(data: Path) -> list[dict[str, str]]:
    """Return the rows of resident.csv."""
    return [resident_row(open_trace(str(data / KINETO / f"{name}.json.gz")), name) for name in TRACES]


if __name__ == "__main__":
    for file, names, rows in (
        ("occupancy.csv", COLUMNS, occupancy_table(Path(sys.argv[1]))),
        ("resident.csv", RESIDENT_COLUMNS, resident_table(Path(sys.argv[1]))),
    ):
        with (Path(sys.argv[2]) / file).open("w", newline="") as stream:
            writer = csv.DictWriter(stream, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
