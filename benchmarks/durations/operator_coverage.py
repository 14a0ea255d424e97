"""Regenerate tests/accuracy/operators.csv: for every real trace, the share of device time whose work is known.

    python benchmarks/durations/operator_coverage.py ../shared/data/traces/kineto > tests/accuracy/operators.csv

Shares, in percent, of the time in kernels that are no collectives: launched by a recorded operator, with shapes, and
with shapes from which `replay.costs.operators` counts FLOP and bytes; of the rest, what the kernel's name and grid
tell. What lacks is other libraries' (FBGEMM's embeddings, custom attention), compiled graphs, and convolutions of
which no stride was recorded.
"""

import csv
import sys
from pathlib import Path

from profilers.errors import SeqPointError
from profilers.ingest.pipeline import CollectOptions, open_trace
from replay.costs.operators import operator_coverage

COLUMNS = ("trace", "kernel_ms", "with_op", "with_shapes", "known", "by_kernel")


def row(path: Path) -> dict[str, str] | None:
    """Return the row of a trace, None of one without kernels."""
    try:
        found = operator_coverage(open_trace(str(path), CollectOptions("whole")))
    except SeqPointError:
        return None
    if not found.kernel_ns:
        return None
    shares = {name: f"{100 * getattr(found, name):.1f}" for name in COLUMNS[2:]}
    return {"kernel_ms": f"{found.kernel_ns / 1e6:.3f}"} | shares


def files(folder: Path) -> list[Path]:
    """Return the traces: all but particle_transformer's, of whose 208 two stand for the rest."""
    several = sorted(folder.rglob("*.json*"))
    kept = [path for path in several if "particle_transformer" not in path.parts]
    return kept + [path for path in several if "particle_transformer" in path.parts][:2]


if __name__ == "__main__":
    root = Path(sys.argv[1])
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for one in files(root):
        if (found := row(one)) is not None:
            writer.writerow({"trace": str(one.relative_to(root)), **found})
