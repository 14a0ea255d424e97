"""How long each analysis of a timeline of a million tasks takes, and its JSON for Perfetto (docs/analysis.md).

    python benchmarks/replay/analysis_speed.py

The graph is that of throughput.py, on four streams; each analysis runs once before it is timed, and then three times.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from throughput import graph_of

from replay.analysis import critical_path, difference, exposure, idle_by_cause, resource_use
from replay.engine.timeline import Timeline, replay
from replay.writers.perfetto import write_perfetto

TASKS, STREAMS, RUNS = 1_000_000, 4, 3


def least(run: Callable[[], object]) -> float:
    """Return the least time of some runs after a first, s."""
    run()
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    """Print a row an analysis."""
    tasks = int(sys.argv[1]) if len(sys.argv) > 1 else TASKS
    line: Timeline = replay(graph_of(tasks, STREAMS))
    print("analysis,tasks,seconds")
    for analysis in (critical_path, exposure, idle_by_cause, resource_use):
        print(f"{analysis.__name__},{tasks},{least(lambda run=analysis: run(line)):.3f}")
    print(f"difference,{tasks},{least(lambda: difference(line, line)):.3f}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "timeline.json"
        print(f"write_perfetto,{tasks},{least(lambda: write_perfetto(file, {'replay': line})):.3f}")
        print(f"write_perfetto_mb,{tasks},{file.stat().st_size / 1e6:.0f}")


if __name__ == "__main__":
    main()
