"""Re-time the kernels of an iteration under a cache policy: seconds, memory, and kernels that differ.

python benchmarks/memory/trace.py [TRACE]

Without a trace, one of 5,000 kernels is synthesised: a transformer of 100 layers on one MI300X.
"""

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from profilers.devices import find_device
from profilers.trace.store import load_trace, save_trace
from replay import workloads
from replay.costs.shipped import load_parameters
from replay.from_trace import build_graph, index_trace
from replay.graph.graph import TaskKind
from replay.memory.graphs import known_operators, simulated_kernels
from replay.what_ifs import parse_what_if

POLICY = "cache_policy:CacheR"


def synthesised(folder: Path) -> Path:
    """Return the trace of a step of a transformer with many layers."""
    model = workloads.Transformer("long", "megatron", 100, 4096, 32, 16384, 51200)
    job = workloads.TrainingJob(model, 2048, 2, 2, workloads.Layout(1, 1, 1, 8, False), False)
    fit, parameters = workloads.load_training(), load_parameters()
    trace = workloads.training_trace(job, find_device("MI300X"), fit=fit, parameters=parameters, lengths=[job.length])
    save_trace(trace, folder / "long.trace")
    return folder / "long.trace"


def main(path: Path) -> None:
    """Print what re-timing takes."""
    parameters, trace = load_parameters(), load_trace(path)
    graph = build_graph(index_trace(trace), [trace.iterations["iteration"][0].as_py()], parameters=parameters)
    kernels = graph.tasks.kind == TaskKind.KERNEL
    what_if = parse_what_if(POLICY)
    begin = time.perf_counter()
    what_if(graph, parameters)
    seconds = time.perf_counter() - begin
    known = simulated_kernels(graph, parameters).known
    distinct = len(np.unique(np.stack([known_operators(graph)[known], graph.tasks.workgroups[known]]), axis=1).T)
    share = graph.tasks.duration_ns[known].sum() / graph.tasks.duration_ns[kernels].sum()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    device = graph.hardware.device
    print(f"{POLICY} on {device.name if device else '?'}: {seconds:.1f} s, {peak:.2f} GiB at the peak")
    print(
        f"{int(kernels.sum())} kernels, {int(known.sum())} simulated ({distinct} that differ), "
        f"{100 * share:.0f} % of the time"
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(synthesised(Path(folder)))
