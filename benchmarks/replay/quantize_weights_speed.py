"""Time of a step of 100 layers under ``quantize_weights``: the what-if, its replay, and the whole projection.

python benchmarks/replay/quantize_weights_speed.py
"""

import time
from collections.abc import Callable

from profilers.devices import find_device
from replay.costs.shipped import load_parameters
from replay.engine import replay
from replay.from_trace import build_graph
from replay.what_ifs import parse_what_if
from replay.workloads import load_training, training_job, training_trace
from seqpoint.projecting import ProjectOptions, project_trace

SIZES = {
    "layers": 100, "hidden": 4096, "heads": 32, "length": 2048, "micro_batch": 1, "global_batch": 1,
    "precision": "bf16",
}  # fmt: skip


def seconds(function: Callable[[], object]) -> float:
    """Return the time of a call, s, the best of three."""
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> None:
    """Print the time of each part."""
    parameters, job = load_parameters(), training_job(SIZES)
    trace = training_trace(job, find_device("MI210"), fit=load_training(), parameters=parameters)
    graph = build_graph(trace, 0, parameters=parameters)
    for maker in ("jit_pim", "pim", "gpu"):
        what_if = parse_what_if(f"quantize_weights:mx9:{maker}")
        changed = what_if(graph, parameters)
        apply_s = seconds(lambda what_if=what_if: what_if(graph, parameters))  # type: ignore[misc]
        replay_s = seconds(lambda changed=changed: replay(changed))  # type: ignore[misc]
        project_s = seconds(lambda what_if=what_if: project_trace(trace, [what_if], ProjectOptions(why=True)))  # type: ignore[misc]
        tasks = len(changed.tasks)
        print(f"{maker}: {tasks} tasks, what-if {apply_s:.3f} s, replay {replay_s:.3f} s, projection {project_s:.2f} s")


if __name__ == "__main__":
    main()
