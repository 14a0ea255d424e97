"""Measure how many requests a second the simulation of DRAM serves on one core.

    python benchmarks/memory/dram_speed.py [PATTERN...]

Patterns are those of the reference; by default a few that are typical. Each is served once before, so that compiling
does not count; the best of five runs is shown. Time is that of the process.
"""

import sys
import time

from replay.memory.dram import Dram, DramSimulator, Traffic, find_dram
from seqpoint.validation.memory import dram_patterns

PATTERNS = (
    "stream_read", "stream_write", "stream_mixed_write25", "copy_block16", "copy_block256", "random_blocks512B",
    "random_blocks4096B", "random_4096MiB",
)  # fmt: skip
RUNS = 5


def seconds(dram: Dram, traffic: Traffic, window: int) -> float:
    """Return the time that it takes to serve requests."""
    simulator = DramSimulator(dram, window=window)
    begin = time.process_time()
    simulator.serve(traffic)
    simulator.finish()
    return time.process_time() - begin


def main(chosen: list[str]) -> None:
    """Print millions of requests a second by pattern, for two windows."""
    patterns = dram_patterns()
    dram = find_dram("HBM2_8Gb_x128").with_mapping("rorabgbachco")
    print(f"{'pattern':24s} {'window 64':>10s} {'window 1024':>12s}  million requests/s")
    for name in chosen or PATTERNS:
        traffic = patterns[name]
        seconds(dram, traffic, 64)
        rates = [len(traffic) / min(seconds(dram, traffic, window) for _ in range(RUNS)) / 1e6 for window in (64, 1024)]
        print(f"{name:24s} {rates[0]:10.1f} {rates[1]:12.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
