"""Regenerate tests/accuracy/detailed.csv: simulated times of kernels in PTX against measured ones.

    python benchmarks/detailed/accuracy_of_kernels.py ../shared/data tests/accuracy

The sets are: `counters`, the kernels of `seqpoint validate detailed` (cycles on a Quadro GV100); `recordings`, the same
kernels and those of Triton on an H100 and an H200, as `datasets/measured` has them, with cold caches; `operators`,
operators of PyTorch on four devices (NeuSight's measurements), four sizes each, chosen by rank of their size. Times of
recordings contain the launch, which is that of an empty kernel; it is added to the simulated time. Nothing is fitted to
recordings or operators. The start of a launch in `counters` is a constant of the same set.
"""

import csv
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
from operator_kernels import operator_plan

from profilers.devices import find_device
from profilers.files import dataset_path
from replay.detailed import LaunchPlan
from replay.detailed.plans import read_plan
from replay.detailed.timing.launches import TimedDevice
from replay.detailed.timing.simulation import simulate_plan
from seqpoint.validation.detailed import MeasuredKernel, read_kernels, target

COLUMNS = ("set", "device", "kernel", "measured_us", "simulated_us", "error")
RECORDED = {"h100": "H100-SXM5-80GB", "h200": "H200-SXM-141GB"}
#: Clock of the compute units while kernels were recorded, as the device counted it.
RECORDED_MHZ = 1955.0
OPERATORS = {
    "add": ("nvidia_elem.parquet", "add"), "copy": ("nvidia_elem.parquet", "addu"),
    "softmax": ("nvidia_softmax.parquet", "softmax"), "layer_norm": ("nvidia_ln.parquet", "ln"),
}  # fmt: skip
DEVICES = ("Tesla V100-PCIE-32GB", "Tesla P100-PCIE-16GB", "Tesla T4", "NVIDIA A100-PCIE-40GB")
RANKS = (0.1, 0.35, 0.6, 0.85)
Row = tuple[str, str, str, float, float]


def simulated(plan: LaunchPlan, device: TimedDevice, registers: int | None = None) -> tuple[float, float]:
    """Return the time of the one launch of a plan in us, with and without start and end of the launch."""
    (timing,) = simulate_plan(plan, device, registers=registers, execute_all=False).timings
    start = device.core.figures.start / device.core.clock_hz
    return 1e6 * timing.seconds, 1e6 * (timing.seconds - start)


def counted(kernels: list[MeasuredKernel]) -> Iterator[Row]:
    """Yield the kernels that were counted on a GV100."""
    device = target()
    for kernel in kernels:
        registers = kernel.facts.registers_per_thread_ptxas_12_9_sm70
        time, _ = simulated(kernel.plan(), device, registers)
        yield "counters", "GV100", kernel.name, kernel.facts.measured_cycles / device.core.clock_hz * 1e6, time


def recorded(kernels: list[MeasuredKernel]) -> Iterator[Row]:
    """Yield the kernels that were recorded on an H100 and an H200."""
    # When they were recorded, plans had a buffer for each parameter, also where the kernel works in place.
    plans: dict[str, Callable[[], LaunchPlan]] = {
        kernel.name: partial(kernel.plan, in_place=False) for kernel in kernels
    }
    for name in ("softmax", "matmul_fp16", "matmul_bf16"):
        plans[f"triton/{name}"] = partial(read_plan, dataset_path(f"ptx/triton/{name}.toml"))
    for folder, name in RECORDED.items():
        device = TimedDevice.of(find_device(name), clock_mhz=RECORDED_MHZ)
        times: dict[str, list[int]] = {}
        registers: dict[str, int] = {}
        for file in ("benchmark_kernels.parquet", "ptx.parquet"):
            table = pq.read_table(dataset_path(f"measured/{folder}/{file}"))
            for row in table.select(["plan", "cache", "duration_ns", "registers"]).to_pylist():
                if row["cache"] == "cold":
                    times.setdefault(row["plan"], []).append(row["duration_ns"])
                    registers[row["plan"]] = row["registers"]
        medians = {plan: sorted(values)[len(values) // 2] / 1e3 for plan, values in times.items()}
        for plan, make in plans.items():
            if plan not in medians:
                continue
            _, time = simulated(make(), device, registers[plan])
            yield "recordings", folder.upper(), plan, medians[plan], time + medians["empty"]


def operators(data: Path) -> Iterator[Row]:
    """Yield operators of PyTorch."""
    for name in DEVICES:
        device = TimedDevice.of(find_device(name))
        for operator, (file, label) in OPERATORS.items():
            rows = [
                row for row in pq.read_table(data / "kernels" / file).to_pylist()
                if row["device"] == name and row["op"] == label and (operator != "layer_norm" or row["H"] % 4 == 0)
            ]  # fmt: skip
            rows.sort(key=lambda row: row["B"] * row["H"])
            for rank in RANKS:
                row = rows[int(rank * (len(rows) - 1))]
                _, time = simulated(operator_plan(operator, row["B"], row["H"]), device)
                yield "operators", name, f"{operator} {row['B']} x {row['H']}", 1e3 * row["latency_ms"], time


def main(data: Path, tables: Path) -> None:
    """Write the table."""
    kernels = read_kernels(data / "ptx" / "kernels.json")
    with (tables / "detailed.csv").open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        for rows in (counted(kernels), recorded(kernels), operators(data)):
            for kind, device, name, measured, ours in rows:
                cells = (f"{measured:.2f}", f"{ours:.2f}", f"{100 * (ours / measured - 1):.2f}")
                writer.writerow((kind, device, name, *cells))
                stream.flush()
                print(kind, device, name, *cells, file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
