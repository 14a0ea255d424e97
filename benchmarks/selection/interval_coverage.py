"""Coverage of the intervals of totals and speed-ups, on simulated epochs of four shapes.

    python benchmarks/selection/interval_coverage.py [--epochs 2000] > tests/accuracy/selection_coverage.csv

An epoch has 600 iterations. Lengths are skewed (log-normal), of two kinds (bimodal), sorted (uniform, trained from
short to long) or heavy-tailed (Pareto). Times are a polynomial of second degree in the length, with other coefficients
on each of three configurations, and noise of 3 % on all. A selector chooses points on the first configuration. Their
times give the total of the second, and the speed-up of the second over the third. Each epoch is drawn anew.
"""

import sys
from collections.abc import Callable

import click
import numpy as np
import numpy.typing as npt

from seqpoint import selection
from seqpoint.selection.kernels import estimate_drawn_speedup, estimate_drawn_total
from seqpoint.selection.stratified import RandomSelector, StratifiedSelector

Floats = npt.NDArray[np.float64]
_ITERATIONS, _NOISE = 600, 0.03

SHAPES: dict[str, Callable[[np.random.Generator], Floats]] = {
    "skewed": lambda rng: np.clip(rng.lognormal(4, 0.6, _ITERATIONS), 8, 600),
    "bimodal": lambda rng: np.clip(
        np.where(rng.random(_ITERATIONS) < 0.4, 40, 200) + rng.normal(0, 15, _ITERATIONS), 8, 400
    ),
    "sorted": lambda rng: np.sort(rng.uniform(10, 400, _ITERATIONS)),
    "heavy_tail": lambda rng: np.clip(20 * (1 + rng.pareto(2.5, _ITERATIONS)), 8, 2000),
}
SELECTORS: dict[str, Callable[[int], selection.FittedSelector]] = {
    "seqpoint": lambda _: selection.SeqPointSelector(),
    "seqpoint_assisted": lambda _: selection.SeqPointSelector(),
    "seqpoint_assisted_10": lambda _: selection.SeqPointSelector(10, 10, 0.0),
    "stratified": lambda seed: StratifiedSelector(max_points=20, seed=seed),
    "random": lambda seed: RandomSelector(max_points=20, seed=seed),
}


def times(lengths: Floats, rng: np.random.Generator) -> Floats:
    """Return times on a configuration whose coefficients are drawn at random."""
    fixed, linear, square = rng.uniform(0, 200), rng.uniform(5, 20), rng.uniform(0, 0.05)
    return (fixed + linear * lengths + square * lengths**2) * rng.normal(1, _NOISE, lengths.size)


def score(shape: str, name: str, seed: int) -> tuple[bool, bool, float, float]:
    """Return whether each interval holds the truth, the error of the total, and its half-width, for an epoch."""
    rng = np.random.default_rng(seed)
    lengths = np.rint(SHAPES[shape](rng))
    base, second, third = times(lengths, rng), times(lengths, rng), times(lengths, rng)
    fitted = SELECTORS[name](seed + 10**6).fit(lengths[:, None], base)  # type: ignore[attr-defined]
    rows = fitted.representatives_
    if name.startswith("seqpoint"):
        log = selection.SelectionLog.of(fitted, lengths[:, None], base)
        plain = name == "seqpoint"
        total = (selection.estimate_total if plain else selection.assisted_total)(second[rows], log)
        speedup = (selection.estimate_speedup if plain else selection.assisted_speedup)(third[rows], second[rows], log)
    else:
        total = estimate_drawn_total(second[rows], fitted)
        speedup = estimate_drawn_speedup(third[rows], second[rows], fitted)
    truth, ratio = float(second.sum()), float(third.sum() / second.sum())
    return (
        total.low <= truth <= total.high,
        speedup.low <= ratio <= speedup.high,
        abs(total.value / truth - 1),
        total.half_width / truth,
    )


@click.command()
@click.option("--epochs", default=2000, type=click.IntRange(1), show_default=True, help="Epochs of each shape.")
def main(epochs: int) -> None:
    """Print a line of CSV for each shape and selector."""
    print("shape,selector,total_covered,speedup_covered,mean_error,mean_half_width")
    for shape in SHAPES:
        for name in SELECTORS:
            scores = np.array([score(shape, name, seed) for seed in range(epochs)], dtype=np.float64)
            total, speedup, error, half_width = 100 * scores.mean(axis=0)
            print(f"{shape},{name},{total:.1f},{speedup:.1f},{error:.2f},{half_width:.2f}")
            print(f"{shape} {name}", file=sys.stderr)


if __name__ == "__main__":
    main()
