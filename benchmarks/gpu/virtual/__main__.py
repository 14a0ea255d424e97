"""Write a recording of a virtual GPU: ``python -m benchmarks.gpu.virtual --output DIR``."""

import argparse
import sys
import time
from pathlib import Path

from benchmarks.gpu.virtual.device import DEVICES
from benchmarks.gpu.virtual.recording import record


def main() -> None:
    """Parse, record, and say what was written."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.virtual", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="folder; made where it does not exist")
    parser.add_argument("--scenarios", type=int, help="at most so many, the first of the plan")
    parser.add_argument("--seed", type=int, default=0, help="of the noise (default 0)")
    parser.add_argument("--device", choices=DEVICES, default=next(iter(DEVICES)), help="default: %(default)s")
    given = parser.parse_args()
    began = time.perf_counter()
    count = record(DEVICES[given.device], given.output, scenarios=given.scenarios, seed=given.seed)
    print(f"{given.output}: {count} scenarios on {given.device}, {time.perf_counter() - began:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
