"""Regenerate tests/accuracy/gpus.csv: scores of the shipped models on GPUs that `python -m benchmarks.gpu` recorded.

    python benchmarks/contention/accuracy_on_gpus.py tests/accuracy

The scores are those of `seqpoint validate contention` and `seqpoint validate selection` on each folder of
`datasets/measured`; nothing was fitted to them.
"""

import csv
import sys
from pathlib import Path

import seqpoint as sp
from profilers.files import dataset_path

COLUMNS = ("device", "suite", "case", "ours", "limit", "met")


def main(tables: Path) -> None:
    """Write the table."""
    with (tables / "gpus.csv").open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        for device in ("h100", "h200"):
            folder = dataset_path(f"measured/{device}")
            for suite, path in (("contention", folder), ("selection", folder / "epochs")):
                for row in sp.validate(suite, path).rows:
                    if row.limit is not None:
                        sign = ">=" if row.least else "<="
                        met = "yes" if row.met else "NO"
                        writer.writerow(
                            (device.upper(), suite, row.case, f"{row.ours:.4g}", f"{sign} {row.limit:g}", met)
                        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
