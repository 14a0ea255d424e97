"""Regenerate tests/accuracy/ingest.csv: what is read of every real trace, and what Quality says of it.

python benchmarks/ingest/quality.py ../shared/data/traces > tests/accuracy/ingest.csv
"""

import csv
import sys
from pathlib import Path

from profilers.errors import SeqPointError
from profilers.ingest.pipeline import collect

COLUMNS = (
    "kernels",
    "launches",
    "ranks",
    "iterations",
    "external_id_checked",
    "external_id_wrong",
    "orphan_device",
    "stream_overlap",
    "repaired_grid",
    "repaired_work_items",
    "collectives",
    "collectives_matched",
    "dropped",
)


def row(path: Path) -> dict[str, object]:
    """Return one line of the table; a file that cannot be read has the kind of its error as its format."""
    try:
        trace = collect([path])
    except SeqPointError as error:
        return {"format": type(error).__name__}
    counts = trace.meta.quality.counts
    found = {name: counts.get(name, 0) for name in COLUMNS}
    found |= {name: trace.tables[name].num_rows for name in ("kernels", "launches", "iterations")}
    found["ranks"] = len(trace.meta.ranks)
    found["dropped"] = sum(n for name, n in counts.items() if name.startswith("dropped_"))
    return {"format": trace.meta.format, **found}


def table(folder: Path) -> list[dict[str, object]]:
    """Return a line a file; of the one-iteration files of one job, every eighth."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "README.md")
    many = [path for path in files if "particle_transformer" in path.parts]
    chosen = sorted({*files} - {*many} | {*many[::8]})
    return [{"file": path.relative_to(folder).as_posix(), **row(path)} for path in chosen]


if __name__ == "__main__":
    out = csv.DictWriter(sys.stdout, ["file", "format", *COLUMNS], lineterminator="\n", restval="")
    out.writeheader()
    out.writerows(table(Path(sys.argv[1])))
