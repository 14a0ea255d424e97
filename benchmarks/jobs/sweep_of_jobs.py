"""Sweeps of 10,240 scenarios of jobs on 64 GPUs by 1 and 2 processes: seconds, and memory.

    python benchmarks/jobs/sweep_of_jobs.py > sweep_of_jobs.csv     # 15 minutes on two cores; --quick for an eighth

One plan has no what-if: 10,240 jobs. The other has 1,024 jobs under ten what-ifs each, which are replayed. Every row is
the command of a user in a process of its own, from the start to the written table; compiled code is warm. `cpu_s` is
the processor time of all processes, which other work on the machine lengthens less than `seconds`. `peak_mb` is the
largest memory of one process.
"""

import csv
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from replay.projection.scenarios import read_plan
from seqpoint.sweeps import sweep

COLUMNS = ("plan", "scenarios", "failed", "processes", "seconds", "cpu_s", "peak_mb", "result_mb", "ms_cpu_each")
JOB = """
[job]
hidden = 4096
heads = 32
global_batch = 256
[grid]
gpus = [64]
hidden = {hidden}
layers = {layers}
length = [1024, 2048]
tensor = [1, 2, 4, 8]
pipeline = [1, 2, 4, 8]
micro_batch = {micro}
precision = {precisions}
recompute = [false, true]
"""
WHAT_IFS = [
    "nothing",
    "scale_links:2",
    "scale_links:4",
    "scale_clock:1.1",
    "scale_memory_bandwidth:1.5",
    "scale_kernels:gemm:0.5",
    "scale_host:0.5",
    "overlap:ideal",
    "dma_collectives",
    "remove_launch_overhead",
]
PLANS = {
    "jobs": JOB.format(
        hidden=[2048, 3072, 4096, 6144, 8192], layers=[24, 32, 40, 48], micro=[1, 2, 4, 8], precisions=["fp16", "bf16"]
    ),
    "what-ifs": f"what_ifs = {WHAT_IFS}\n"
    + JOB.format(hidden=[4096, 8192], layers=[24, 32], micro=[1, 2, 4, 8], precisions=["fp16"]),
}


def measured(name: str, processes: int, quick: bool) -> dict[str, Any]:
    """Return a row: the sweep of a plan by so many processes."""
    text = PLANS[name]
    if quick:
        text = text.replace("length = [1024, 2048]", "length = [2048]").replace("batch = [1, 2, 4, 8]", "batch = [2]")
    with tempfile.TemporaryDirectory() as folder:
        plan, output = Path(folder) / "plan.toml", Path(folder) / "result.parquet"
        plan.write_text(text)
        began = time.monotonic()
        result = sweep(read_plan(plan), output, jobs=processes)
        seconds, size = time.monotonic() - began, output.stat().st_size
        assert pq.read_metadata(output).num_rows == len(result)
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(each.ru_utime + each.ru_stime for each in usage)
    peak = max(each.ru_maxrss for each in usage) / 1e3
    values = (
        name,
        len(result),
        result.failed,
        processes,
        round(seconds, 1),
        round(cpu, 1),
        round(peak),
        round(size / 1e6, 3),
        round(1e3 * cpu / len(result), 2),
    )
    return dict(zip(COLUMNS, values, strict=True))


def main() -> None:
    """Print the table; with the name of a plan and a number of processes, its row."""
    quick = [word for word in sys.argv[1:] if word == "--quick"]
    names = [word for word in sys.argv[1:] if word != "--quick"]
    table = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    if len(names) == 2:
        table.writerow(measured(names[0], int(names[1]), bool(quick)))
        return
    table.writeheader()
    sys.stdout.flush()
    for name in names or PLANS:
        for processes in (1, 2):
            subprocess.run([sys.executable, __file__, name, str(processes), *quick], check=True)


if __name__ == "__main__":
    main()
