"""Time from a clone to the first advice, in a clean environment with an empty home, as ratios to importing libraries.

    python benchmarks/first_answer.py job.pt.trace.json.gz    # a few minutes: the wheel is built as pip builds it

`imports` is the time of ``import numpy, pandas, pyarrow, numba`` in the same environment, measured beside each command.
The first commands find neither bytecode of ours that pip did not write, nor a folder of machine code. The others are
the median of `--runs`.
"""

import argparse
import csv
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMPORTS = ("-c", "import numpy, pandas, pyarrow, numba")
COLUMNS = ("step", "seconds", "cpu_seconds", "ratio", "cpu_ratio")


def run(*command: str | Path, home: Path) -> tuple[float, float]:
    """Return the seconds that a command takes, by the clock and of processors."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "PYTHON", "XDG_"))}
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([str(word) for word in command], env={**kept, "HOME": str(home)}, capture_output=True, check=True)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rows(trace: Path, runs: int, folder: Path) -> Iterator[dict[str, object]]:
    """Yield a row for each step of a user, from the wheel to the second demo."""
    binaries, home = folder / "venv" / "bin", folder / "home"
    home.mkdir()
    python, command = binaries / "python", binaries / "seqpoint"
    # pip and its cache are the user's: what a registry takes to send the libraries is not measured.
    pip = ("-m", "pip", "-q")
    built = run(sys.executable, *pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT, home=Path.home())
    (wheel,) = folder.glob("seqpoint-*.whl")
    run(sys.executable, "-m", "venv", binaries.parent, home=home)
    installed = run(python, *pip, "install", wheel, home=Path.home())
    run(python, *IMPORTS, home=home)
    imports = [run(python, *IMPORTS, home=home)]
    yield row(f"build, {wheel.stat().st_size / 1e6:.1f} MB", built, imports)
    yield row("install", installed, imports)
    for name, words in (("advise", (trace,)), ("demo", ("-o", folder / "demo"))):
        yield row(f"first {name}", run(command, name, *words, home=home), imports)
        times = []
        for _ in range(runs):
            imports.append(run(python, *IMPORTS, home=home))
            times.append(run(command, name, *words, home=home))
        yield row(name, _median(times), imports)
    yield row("imports", _median(imports), imports)


def row(step: str, seconds: tuple[float, float], imports: list[tuple[float, float]]) -> dict[str, object]:
    """Return what is printed of a step."""
    ratios = [taken / each for taken, each in zip(seconds, _median(imports), strict=True)]
    return dict(zip(COLUMNS, (step, *(f"{value:.2f}" for value in (*seconds, *ratios))), strict=True))


def _median(times: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(wall for wall, _ in times), statistics.median(cpu for _, cpu in times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    writer = csv.DictWriter(sys.stdout, COLUMNS)
    writer.writeheader()
    with tempfile.TemporaryDirectory() as name:
        for line in rows(options.trace.resolve(), options.runs, Path(name)):
            writer.writerow(line)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
