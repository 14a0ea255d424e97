"""Measure how many line accesses a second the caches simulate on one core: `python benchmarks/memory/caches_speed.py`.

The GPU is that of arXiv 1910.00134. Streams: every line once, tiles that are loaded again from L1, and random lines of
footprints of half and twice the L2 cache. The first call, which compiles, is not counted. The best of five is shown.
"""

import time

import numpy as np

from replay.memory.accesses import Accesses
from replay.memory.caches import Hierarchy
from replay.memory.dram import Dram
from replay.memory.system import Cache, MemorySystem, find_policy

ACCESSES = 2_000_000
GPU = MemorySystem(
    "study", 1.6e9, 64, 64, Cache(16 << 10, 16, 64, 64), Cache(4 << 20, 16, 64, 64, slices=16),
    Dram("HBM2", 16, 4, 4, 1 << 14, 2048, 64, 1e9, 2.0),
)  # fmt: skip


def streams() -> dict[str, np.ndarray]:
    """Return the lines of each stream in order."""
    number, rng = np.arange(ACCESSES), np.random.default_rng(0)
    return {
        "streaming": number,
        "tiles": number % 8192 // 64 * 64 + number % 64 // 4,
        "random, 2 MiB": rng.integers(0, 1 << 15, ACCESSES),
        "random, 8 MiB": rng.integers(0, 1 << 17, ACCESSES),
    }


def seconds(caches: Hierarchy, accesses: Accesses) -> float:
    """Return the processor time of a call."""
    begin = time.process_time()
    caches.access(accesses)
    return time.process_time() - begin


def main() -> None:
    """Print a table: stream, policy, million accesses a second, share of loads that hit in L1 and in L2."""
    unit = (np.arange(ACCESSES) // 4 % GPU.units).astype(np.int32)
    zeros, ones = np.zeros(ACCESSES, np.uint8), np.ones(ACCESSES, np.uint32)
    print(f"{'stream':15} {'policy':20} {'M accesses/s':>12} {'L1 hits':>8} {'L2 hits':>8}")
    for name, line in streams().items():
        accesses = Accesses(line.astype(np.int64), ones, zeros, zeros.astype(np.int16), unit)
        for policy in ("Uncached", "CacheR", "CacheRW-AB-CR", "CacheRW-AB-CR-PCby", "Adaptive"):
            caches = Hierarchy(GPU, find_policy(policy), in_flight=64)
            caches.access(accesses)
            best = min(seconds(caches, accesses) for _ in range(5))
            l1, l2 = caches.counters.l1, caches.counters.l2
            hits = [100 * level.load_hits / max(level.loads, 1) for level in (l1, l2)]
            print(f"{name:15} {policy:20} {ACCESSES / best / 1e6:12.1f} {hits[0]:7.1f}% {hits[1]:7.1f}%")


if __name__ == "__main__":
    main()
