"""Replay every iteration of every real trace: unchanged, with typical delays, and repeated. Write the table of it.

    python benchmarks/identity.py ../shared/data/traces > tests/accuracy/identity.csv

| column | what |
|---|---|
| elapsed_ms | the step times added up, of the rank with the most |
| latencies_ms | the latencies added up instead, over all ranks: what was called the measured time before step times |
| elapsed_error | the sum of the step times against the time between the first and the last completion, worst rank |
| completion_worst | unchanged replay: the worst error of the completion of an iteration, of the elapsed time |
| start_worst | unchanged replay: the worst error of the start of a kernel or copy, of its step time |
| typical_median, typical_worst | every delay at the median of its kind, error of each window |
| steady_median, steady_worst | each window repeated until its period settles, against its measured step times |
| busy_describe, busy_replay | share of the elapsed time that devices work, from the trace and from the replay |
| unexplained | share of the time that is waiting which no recorded event explains |

Errors and shares are in percent, errors without their sign. `seqpoint validate replay` computes the same figures.
"""

import csv
import sys
from pathlib import Path

from profilers.ingest.pipeline import IngestOptions, collect
from seqpoint.validation.replay import median_error, score_replay, worst_error

COLUMNS = (
    *("trace", "iterations", "elapsed_ms", "latencies_ms", "elapsed_error", "completion_worst", "start_worst"),
    *("typical_median", "typical_worst", "steady_median", "steady_worst", "busy_describe", "busy_replay"),
    "unexplained",
)
#: Of the tables that rocprofv3 writes, those that have kernels or copies.
ROCPROFV3 = ("kernel_trace", "kernel_trace_truncated", "counter_collection", "memory_copy_trace")


def cases(root: Path) -> list[tuple[str, list[Path]]]:
    """Return every trace below `root`: the ranks of dlrm8 and nanogpt8 as a job, each particle_transformer as one."""
    kineto = root / "kineto"
    several = {"particle_transformer", "dlrm8", "nanogpt8"}
    files = [f for f in sorted(kineto.rglob("*.gz")) if not several & set(f.parts)]
    files += sorted((root / "nsys").glob("*.sqlite"))
    rocm = root / "rocm"
    files += [rocm / "rocprofv1_gfx906" / "results.db", rocm / "rocprofv1_gfx906" / "results.json"]
    files += [rocm / "rocprofv1_gfx942" / "results.csv", rocm / "rocprofv1_gfx942" / "results.db"]
    files += [rocm / "rocprofv3_csv" / f"{name}.csv" for name in ROCPROFV3]
    files += sorted(rocm.glob("*.gz"))
    traces = [(f.relative_to(root).as_posix(), [f]) for f in files]
    for folder in [*sorted((kineto / "particle_transformer").glob("*")), kineto / "dlrm8", kineto / "nanogpt8"]:
        traces.append((folder.relative_to(root).as_posix(), sorted(folder.glob("*.gz"))))
    return traces


def row(name: str, files: list[Path]) -> dict[str, str]:
    """Return one row of the table; each file of particle_transformer is an iteration of its own."""
    score = score_replay(name, collect(files, IngestOptions("file") if "particle_transformer" in name else None))
    shares = {
        "elapsed_error": score.elapsed_error,
        "completion_worst": score.completion_worst,
        "start_worst": score.start_worst,
        "typical_median": median_error(score.typical),
        "typical_worst": worst_error(score.typical),
        "steady_median": median_error(score.steady),
        "steady_worst": worst_error(score.steady),
        "busy_describe": score.busy_measured,
        "busy_replay": score.busy_replayed,
        "unexplained": score.unexplained,
    }
    return {
        "trace": name,
        "iterations": str(score.iterations),
        "elapsed_ms": f"{score.elapsed_ns / 1e6:.3f}",
        "latencies_ms": f"{score.latency_ns / 1e6:.3f}",
        **{column: f"{100 * share:.3f}" for column, share in shares.items()},
    }


def main() -> None:
    """Write the table to stdout."""
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for name, files in cases(Path(sys.argv[1])):
        writer.writerow(row(name, files))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
