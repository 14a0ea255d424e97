"""Regenerate tests/accuracy/models.csv: predicted against measured times of whole transformers.

    python benchmarks/jobs/accuracy_of_models.py ../shared/data/models > tests/accuracy/models.csv

Every run is predicted with the shipped fits of its device, and as if the device had never been measured. Nothing is
fitted to these runs; the share of operators' spreads that a total's interval keeps (`replay.workloads.architecture`)
was chosen so that nine in ten of them are in their interval.
"""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from replay.costs.shipped import load_parameters
from seqpoint.validation.models import ModelScore, read_models, score_models

COLUMNS = ("case", "runs", "error", "bias", "covered", "limit")


def table(folder: Path) -> list[dict[str, str]]:
    """Return a row a run, then means by device and model, and of all."""
    scores = score_models(read_models(folder), load_parameters())
    rows = [_summary(f"{s.measured.name} {s.measured.device.name} {s.basis}", [s]) for s in scores]
    for basis in ("fitted", "carried"):
        mine = [s for s in scores if s.basis == basis]
        for name in sorted({s.measured.device.name for s in mine}):
            rows.append(_summary(f"all on {name} {basis}", [s for s in mine if s.measured.device.name == name]))
        for name in sorted({s.measured.model.name for s in mine}):
            rows.append(_summary(f"all of {name} {basis}", [s for s in mine if s.measured.model.name == name]))
        rows.append({**_summary(f"all {basis}", mine), "limit": "7" if basis == "carried" else ""})
    return rows


def _summary(case: str, scores: Sequence[ModelScore]) -> dict[str, str]:
    n = len(scores)
    return {
        "case": case,
        "runs": str(n),
        "error": f"{100 * sum(s.error for s in scores) / n:.2f}",
        "bias": f"{sum(s.seconds / s.measured.seconds for s in scores) / n:.3f}",
        "covered": f"{100 * sum(s.covered for s in scores) / n:.1f}",
        "limit": "",
    }


if __name__ == "__main__":
    writer = csv.DictWriter(sys.stdout, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(table(Path(sys.argv[1])))
