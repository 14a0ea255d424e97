"""Regenerate tests/accuracy/power_limits.csv: time and energy of training jobs under lower power limits.

    python benchmarks/power/accuracy_of_limits.py ../shared/new/power > tests/accuracy/power_limits.csv

Zeus measured the time of an epoch and the mean power of each job at several limits. A job is a step of one kernel that
fills the device. Its power is the measured one at the highest limit (`power_share_compute_bound`). `limit_power` then
projects the time and the energy at each lower limit. Of limits of equal energy the lowest is best. Nothing is fitted.
"""

import csv
import json
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np

import seqpoint as sp
from replay.costs.shipped import load_parameters
from seqpoint.projecting import ProjectOptions

COLUMNS = ("device", "jobs", "limit_w", "time_median", "time_mean", "energy_median", "energy_mean", "regret",
           "best_within_step")  # fmt: skip
_DEVICES = {"v100": "V100-SXM2-32GB", "p100": "P100-PCIE-16GB"}
#: Watts between two limits.
_STEP = 25
_US = 100_000.0

Job = dict[int, tuple[float, float]]


def jobs_of(path: Path) -> list[Job]:
    """Return time (s) and power (W) of each job by limit (W)."""
    jobs = defaultdict[tuple[str, ...], Job](dict)
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            key = tuple(row[name] for name in ("dataset", "network", "batch_size", "optimizer"))
            jobs[key][int(row["power_limit"])] = float(row["time_per_epoch"]), float(row["average_power"])
    return [job for job in jobs.values() if len(job) > 1]


def trace_of(device: str, path: Path) -> sp.Trace:
    """Return a trace of steps of one matrix product that fills the device."""
    events = []
    for step in range(3):
        start = (_US + 100) * step
        events += [
            _event(f"ProfilerStep#{step}", "user_annotation", start, _US + 90),
            _event("aten::mm", "cpu_op", start + 1, 20.0),
            _event("cudaLaunchKernel", "cuda_runtime", start + 5, 5.0, correlation=step + 1),
            _event("sgemm_128x128", "kernel", start + 20, _US, correlation=step + 1, device=0, stream=7,
                   grid=[4096, 1, 1], block=[256, 1, 1]),
            _event("cudaDeviceSynchronize", "cuda_runtime", start + 30, _US - 5),
        ]  # fmt: skip
    path.write_text(json.dumps({"deviceProperties": [{"id": 0, "name": device}], "traceEvents": events}))
    return sp.open(path)


def _event(name: str, category: str, start: float, duration: float, **args: object) -> dict[str, object]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": duration, "args": args}


def slowdowns(trace: sp.Trace, device: str, watts: float, limits: list[int], top: int) -> list[tuple[float, float]]:
    """Return the projected time and energy at each limit over those at the highest one."""
    parameters = load_parameters().with_values([("power_share_compute_bound", watts / top)])
    options = ProjectOptions(device=device, draws=2, parameters=parameters, iterations=(1,))
    rows = sp.project(trace, [f"limit_power:{limit / top}" for limit in limits], options=options).rows
    return [(1 / row.speedup, row.energy) if row.applied else (1.0, 1.0) for row in rows]


def scores(jobs: list[Job], device: str) -> list[dict[str, float]]:
    """Return, for each job and lower limit, the errors of time and energy, and what the best projected limit costs."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        trace = trace_of(device, Path(folder) / "job.json")
        for job in jobs:
            *limits, top = sorted(job)
            seconds, watts = job[top]
            both = dict(zip(limits, slowdowns(trace, device, watts, limits, top), strict=True)) | {top: (1.0, 1.0)}
            times = {limit: time for limit, (time, _) in both.items()}
            projected = {limit: energy * watts for limit, (_, energy) in both.items()}
            measured = {limit: job[limit][0] * job[limit][1] / seconds for limit in job}
            best, chosen = (min(energy, key=lambda limit: energy[limit]) for energy in (measured, projected))
            of_job = {"regret": measured[chosen] / measured[best] - 1, "near": float(abs(chosen - best) <= _STEP)}
            for limit in limits:
                time = times[limit] / (job[limit][0] / seconds) - 1
                energy = projected[limit] / measured[limit] - 1
                rows.append({"limit": limit, "time": abs(time), "energy": abs(energy), **of_job})
    return rows


def row_of(device: str, limit: str, found: list[dict[str, float]], jobs: int) -> dict[str, str]:
    """Return a row of the table."""
    time, energy, regret, near = (
        np.array([each[name] for each in found]) for name in ("time", "energy", "regret", "near")
    )
    shares = {
        **{"time_median": np.median(time), "time_mean": time.mean()},
        **{"energy_median": np.median(energy), "energy_mean": energy.mean()},
        **{"regret": regret.mean(), "best_within_step": near.mean()},
    }
    texts = {key: f"{value:.4f}" for key, value in shares.items()}
    return {"device": device, "jobs": str(jobs), "limit_w": limit} | texts


def main(folder: str) -> None:
    """Print the table."""
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for name, device in _DEVICES.items():
        jobs = jobs_of(Path(folder) / f"zeus_power_{name}.csv")
        found = scores(jobs, device)
        writer.writerow(row_of(device, "all", found, len(jobs)))
        for limit in sorted({each["limit"] for each in found}):
            some = [each for each in found if each["limit"] == limit]
            writer.writerow(row_of(device, f"{limit:.0f}", some, len(jobs)))


if __name__ == "__main__":
    main(sys.argv[1])
