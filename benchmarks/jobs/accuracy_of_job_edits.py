"""Edit the job of a traced step, and compare with a trace of the edited job.

The traces are of one transformer, an iteration a file, of batches of 4, 8 and 32 and sequences of many lengths (A100,
inference). Each trace is edited to the batch, the length, or both, of another one. Writes the table
`tests/accuracy/job_edits.csv`::

    python benchmarks/jobs/accuracy_of_job_edits.py ../shared/data tests/accuracy/job_edits.csv
"""

import csv
import sys
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import seqpoint as sp
from replay.calibration.parameters import Parameters
from replay.costs.shipped import load_parameters
from replay.from_trace import build_graph
from replay.graph.graph import KernelGraph
from replay.what_ifs import parse_what_if
from replay.workloads.traced_job import find_job

#: Files of each batch, from the first on; the first is the warm-up.
FILES = slice(1, 13)
#: Each trace is edited to so many others of its batch, apart in length.
LENGTHS = 3
Job = tuple[int, int]


def kernel_ns(graph: KernelGraph) -> float:
    """Return the time of all kernels and copies of a graph, ns."""
    return float(graph.tasks.duration_ns[graph.on_device()].sum())


def graphs(folder: Path, parameters: Parameters, files: slice = FILES) -> dict[Job, KernelGraph]:
    """Return a graph for each batch and length."""
    found: dict[Job, KernelGraph] = {}
    for batch in sorted((folder / "traces" / "kineto" / "particle_transformer").glob("batch_*")):
        for path in sorted(batch.glob("*.json.gz"))[files]:
            graph = build_graph(sp.open(path), 0, parameters=parameters)
            sizes = find_job(graph).sizes
            found.setdefault((sizes["batch"], sizes["length"]), graph)
    return found


def edits(jobs: list[Job]) -> Iterator[tuple[Job, Job]]:
    """Yield pairs of jobs: all batches at the lengths that two have, and some lengths of each batch."""
    yield from ((a, b) for a, b in permutations(jobs, 2) if a[1] == b[1])
    for batch in sorted({batch for batch, _ in jobs}):
        mine = sorted(job for job in jobs if job[0] == batch)
        yield from permutations(mine[:: max(len(mine) // LENGTHS, 1)] + mine[-1:], 2)


def table(folder: Path, files: slice = FILES) -> list[dict[str, str]]:
    """Return a row for each edit: the job before and after, times in ms, and the error in percent."""
    parameters = load_parameters()
    known, rows = graphs(folder, parameters, files), []
    for before, after in dict.fromkeys(edits(sorted(known))):
        names = [f"micro_batch:{after[0]}"] * (before[0] != after[0])
        names += [f"sequence_length:{after[1]}"] * (before[1] != after[1])
        if not names:
            continue
        edited = kernel_ns(parse_what_if("+".join(names))(known[before], parameters))
        traced, measured = kernel_ns(known[before]), kernel_ns(known[after])
        rows.append(
            {
                "batch": str(before[0]),
                "length": str(before[1]),
                "edit": "+".join(names),
                "traced_ms": f"{traced / 1e6:.3f}",
                "edited_ms": f"{edited / 1e6:.3f}",
                "measured_ms": f"{measured / 1e6:.3f}",
                "error": f"{100 * (edited / measured - 1):.2f}",
                "limit": "15",
            }
        )
    return rows


def main() -> None:
    """Write the table."""
    folder, target = (Path(argument) for argument in sys.argv[1:])
    rows = table(folder)
    with target.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
