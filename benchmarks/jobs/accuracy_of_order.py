"""Regenerate tests/accuracy/plan_order.csv: whether the plan that is predicted to be faster is.

    python benchmarks/jobs/accuracy_of_order.py ../shared/data/training > tests/accuracy/plan_order.csv

Plans are measured steps of Megatron-LM of one model and batch on as many devices, split or cut otherwise. The spread of
the ratio of two plans (`PLAN_SPREAD` of `replay.workloads.training_fits`) was found on the steps that the shipped costs
were fitted to. Pairs of the other steps are scored: by the predicted chance that the faster one is faster, how often it
was.
"""

import csv
import sys
from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np

from profilers.devices.catalogue import find_device
from replay.costs.shipped import load_parameters
from replay.workloads import load_training, read_steps
from replay.workloads.training_fits import PLAN_SPREAD, likely_faster
from seqpoint.validation.training import StepScore, score_steps

COLUMNS = ("case", "n", "predicted", "measured")
_CHANCES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.99, 1.0)

Plan = tuple[float, float]


def plans_of(scores: Iterable[StepScore]) -> list[list[Plan]]:
    """Return the predicted and measured time of the plans of each model, batch and number of devices."""
    groups = defaultdict[tuple[object, ...], list[Plan]](list)
    for score in scores:
        job, seconds = score.measured.job, score.measured.seconds
        key = (job.model, job.length, job.global_batch, job.layout.devices)
        groups[key].append((score.ratio * seconds, seconds))
    return [plans for plans in groups.values() if len(plans) > 1]


def spread(groups: Iterable[list[Plan]]) -> float:
    """Return the standard deviation of the logarithm of predicted over measured ratios of two plans."""
    errors = [np.log(a[0] / b[0] * b[1] / a[1]) for plans in groups for a, b in combinations(plans, 2)]
    return float(np.sqrt(np.mean(np.square(errors))))


def table(groups: list[list[Plan]]) -> list[dict[str, str]]:
    """Return a row for pairs of each chance, and one for the best of each group."""
    pairs = [sorted(pair) for plans in groups for pair in combinations(plans, 2)]
    chances = np.array([likely_faster(first[0], second[0]) for first, second in pairs])
    right = np.array([first[1] <= second[1] for first, second in pairs])
    rows = []
    for low, high in pairwise(_CHANCES):
        of_bin = (chances >= low) & (chances < high)
        rows.append(
            _row(f"pairs of {low:g} to {high:g}", int(of_bin.sum()), chances[of_bin].mean(), right[of_bin].mean())
        )
    ordered = [sorted(plans) for plans in groups]
    first = np.array([plans[0][1] <= min(time for _, time in plans) for plans in ordered])
    loss = np.array([plans[0][1] / min(time for _, time in plans) - 1 for plans in ordered])
    rows.append(_row("best plan is the fastest", len(groups), float("nan"), first.mean()))
    return [*rows, _row("time that the best plan loses", len(groups), float("nan"), loss.mean())]


def _row(case: str, count: int, predicted: float, measured: float) -> dict[str, str]:
    texts = ["" if np.isnan(value) else f"{value:.3f}" for value in (predicted, measured)]
    return dict(zip(COLUMNS, (case, str(count), *texts), strict=True))


def main(folder: str) -> None:
    """Print the table, and on stderr the spread of the fitted steps."""
    fit = load_training()
    scores = score_steps(read_steps(folder), find_device(fit.device), fit, load_parameters())
    fitted, rest = (plans_of(score for score in scores if score.fitted is which) for which in (True, False))
    spreads = f"{spread(fitted):.3f} on fitted steps, {spread(rest):.3f} on others"
    print(f"spread: {spreads}, {PLAN_SPREAD} shipped", file=sys.stderr)
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table(rest))


if __name__ == "__main__":
    main(str(Path(sys.argv[1])))
