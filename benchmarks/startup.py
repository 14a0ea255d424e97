"""Time that commands take on a small trace, nearly all of it start-up: the first replay, which compiles, and warm ones.

    python benchmarks/startup.py                                  # a synthetic step of 3,000 tasks, about a minute
    python benchmarks/startup.py --against ../before job.trace    # a trace, and another checkout beside this one

Every run is a process of its own. With another checkout the runs of both alternate, so that both meet the same load.
The first replay starts with an empty `NUMBA_CACHE_DIR`. The others are the median of `--runs`, after a run that is not
counted. `notice` says whether stderr, which is no terminal here, told of the compilation.
"""

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Seconds that the first replay and the warm commands may take.
LIMITS = {"first replay": 10.0, "replay": 1.0, "project": 1.5, "describe": 0.7}
COMMANDS = {"replay": ["replay"], "project": ["project", "-w", "overlap:ideal"], "describe": ["describe"]}
#: A step of this job has 3,000 tasks.
JOB = ("--layers", "13", "--hidden", "1024", "--heads", "16", "--global-batch", "8", "--micro-batch", "4")


def run(checkout: Path, cache: Path, *arguments: str) -> tuple[float, bool]:
    """Return the seconds that a command of a checkout takes, and whether it told of a compilation."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", "from seqpoint.cli import main; main()", *arguments]
    begin = time.perf_counter()
    done = subprocess.run(command, env=environment, cwd=checkout, capture_output=True, text=True, check=True)
    return time.perf_counter() - begin, "compiling" in done.stderr


def rows(checkouts: list[Path], trace: Path, runs: int, folder: Path) -> Iterator[dict[str, object]]:
    """Yield a row for each command: the seconds of each checkout, and the ratio of the first to the second."""
    caches = [folder / f"cache{number}" for number in range(len(checkouts))]
    pairs = list(zip(checkouts, caches, strict=True))
    first = [run(checkout, cache, "replay", str(trace)) for checkout, cache in pairs]
    yield row("first replay", [seconds for seconds, _ in first], told=first[0][1])
    for name, arguments in COMMANDS.items():
        times: list[list[float]] = [[] for _ in checkouts]
        told = False
        for number in range(runs + 1):
            for (checkout, cache), seconds in zip(pairs, times, strict=True):
                took, noticed = run(checkout, cache, *arguments, str(trace))
                if number:
                    seconds.append(took)
                    told |= noticed and checkout == checkouts[0]
        yield row(name, [statistics.median(seconds) for seconds in times], told=told)


def row(name: str, seconds: list[float], *, told: bool) -> dict[str, object]:
    """Return what is printed of one command."""
    other = seconds[1] if len(seconds) > 1 else None
    return {
        "command": name,
        "seconds": f"{seconds[0]:.2f}",
        "limit": LIMITS[name],
        "notice": told,
        "against": "" if other is None else f"{other:.2f}",
        "ratio": "" if other is None else f"{seconds[0] / other:.2f}",
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    checkouts = [ROOT, *([options.against.resolve()] if options.against else [])]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace = options.trace.resolve() if options.trace else folder / "job.trace"
        if options.trace is None:
            run(ROOT, folder / "synthesis", "synthesize", *JOB, "-o", str(trace))
        writer = csv.DictWriter(sys.stdout, ["command", "seconds", "limit", "notice", "against", "ratio"])
        writer.writeheader()
        for line in rows(checkouts, trace, options.runs, folder):
            writer.writerow(line)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
