"""Time and peak memory of a selection as the epoch grows, each size in a process of its own.

    python benchmarks/selection/scaling.py [--iterations 1000000 ...] > growth.csv

An epoch of log-normal lengths (1 to 20,000) with times that are linear and quadratic in them, and 2 % noise. Timed
are `SeqPointSelector.fit` alone, and with the interval of the total; the making of the epoch is not.
"""

import subprocess
import sys

import click

_SCRIPT = """
import resource, sys, time
import numpy as np
from seqpoint.selection import SelectionLog, SeqPointSelector, estimate_total
n = int(sys.argv[1])
rng = np.random.default_rng(1)
X, y = np.empty((n, 1)), np.empty(n)
for first in range(0, n, 1 << 20):
    size = min(1 << 20, n - first)
    lengths = np.clip(np.rint(rng.lognormal(6.5, 0.9, size)), 1, 20_000)
    X[first : first + size, 0] = lengths
    y[first : first + size] = np.rint((1e6 + 900 * lengths + 0.05 * lengths**2) * rng.normal(1, 0.02, size))
begin = time.perf_counter()
points = SeqPointSelector().fit(X, y)
fitted = time.perf_counter()
total = estimate_total(y[points.representatives_], SelectionLog.of(points, X, y))
done = time.perf_counter()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(f"{n},{fitted - begin:.3f},{done - begin:.3f},{peak:.0f},{points.relative_error_:.6f}")
"""


@click.command()
@click.option("--iterations", multiple=True, type=click.IntRange(1), default=(10**6, 10**7, 10**8))
def main(iterations: tuple[int, ...]) -> None:
    """Print a line of CSV for each size."""
    print("iterations,fit_s,fit_and_interval_s,peak_mib,relative_error", flush=True)
    for count in iterations:
        done = subprocess.run([sys.executable, "-c", _SCRIPT, str(count)], check=True, capture_output=True, text=True)
        print(done.stdout.strip(), flush=True)


if __name__ == "__main__":
    main()
