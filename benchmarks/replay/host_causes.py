"""Host time by cause, and launch queues, of every rank of every real trace. Write the table of it.

    python benchmarks/replay/host_causes.py ../shared/data/traces ../shared/new/traces > tests/accuracy/host_causes.csv

| column | what |
|---|---|
| steps, host_ms | steps of the rank, and their time on the host |
| queue ... unexplained | share of that time by cause, in percent (`replay.from_trace.host_causes.HOST_CAUSES`) |
| longest_queue | most works that waited in a launch queue: the plateau of a queue that was full |
| held | calls that found their queue full |

Ranks without recorded calls have no row. `seqpoint describe` shows the same figures.
"""

import csv
import importlib.util
import sys
from pathlib import Path

from profilers.ingest.pipeline import IngestOptions, collect
from replay.from_trace import index_trace
from replay.from_trace.host_causes import HOST_CAUSES, host_causes

COLUMNS = ("trace", "rank", "steps", "host_ms", *HOST_CAUSES, "longest_queue", "held")


def cases(root: Path) -> list[tuple[str, list[Path]]]:
    """Return the traces below a folder, as `benchmarks/identity.py` does; of particle_transformer a single file."""
    spec = importlib.util.spec_from_file_location("identity", Path(__file__).parents[1] / "identity.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.cases(root) if (root / "nsys").is_dir() else [(f.relative_to(root).as_posix(), [f])
                                                                 for f in sorted(root.rglob("*.json.gz"))]  # fmt: skip
    return [(name, files[:1] if "particle_transformer" in name else files) for name, files in found]


def rows(name: str, files: list[Path]) -> list[dict[str, str]]:
    """Return the rows of a trace."""
    trace = collect(files, IngestOptions("file") if "particle_transformer" in name else None)
    if not trace.iterations.num_rows:
        return []
    return [
        {
            "trace": name,
            "rank": str(row.rank),
            "steps": str(row.steps),
            "host_ms": f"{row.elapsed_ns / 1e6:.3f}",
            **{cause: f"{100 * row.share(cause):.2f}" for cause in HOST_CAUSES},
            "longest_queue": str(row.longest_queue),
            "held": str(row.held),
        }
        for row in host_causes(index_trace(trace))
    ]


def main() -> None:
    """Write the table to stdout."""
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for root in sys.argv[1:]:
        for name, files in cases(Path(root)):
            writer.writerows(rows(name, files))


if __name__ == "__main__":
    main()
