"""Regenerate tests/accuracy/training.csv: predicted against measured times of training steps.

    python benchmarks/jobs/accuracy_of_training.py ../shared/data/training > tests/accuracy/training.csv

The shipped costs were fitted to a tenth of the steps, chosen by a hash of their configurations; both parts are scored
apart, then the rest by what sets its steps apart.
"""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from profilers.devices.catalogue import find_device
from replay.costs.shipped import load_parameters
from replay.workloads import load_training, read_steps
from seqpoint.validation.training import StepScore, score_steps, training_groups

COLUMNS = ("case", "steps", "error", "worst", "bias", "covered", "limit")


def table(folder: Path) -> list[dict[str, str]]:
    """Return a row for the steps that were fitted, one for all others, and one for each group of those."""
    fit = load_training()
    scores = score_steps(read_steps(folder), find_device(fit.device), fit, load_parameters())
    rest = [one for one in scores if not one.fitted]
    rows = [
        _summary("fitted", [one for one in scores if one.fitted]),
        {**_summary("not fitted", rest), "limit": "8.4"},
    ]
    return rows + [_summary(name, some) for name, some in training_groups(rest).items()]


def _summary(case: str, scores: Sequence[StepScore]) -> dict[str, str]:
    n = len(scores)
    return {
        "case": case,
        "steps": str(n),
        "error": f"{100 * sum(s.error for s in scores) / n:.2f}",
        "worst": f"{100 * max(s.error for s in scores):.1f}",
        "bias": f"{sum(s.ratio for s in scores) / n:.3f}",
        "covered": f"{100 * sum(s.covered for s in scores) / n:.1f}",
        "limit": "",
    }


if __name__ == "__main__":
    writer = csv.DictWriter(sys.stdout, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(table(Path(sys.argv[1])))
