"""Compare kernels of which some waves stand for all with full simulations, and with the stated error.

python benchmarks/memory/sampling.py [ACCESSES]

Prints a line a kernel, device and policy: the error of the time and of the bytes from memory, the stated error, and the
ratio of the times that both simulations took.
"""

import sys
import time

import numpy as np

from profilers.devices import find_device
from replay.memory.simulation import MOST_ACCESSES, simulate
from replay.memory.streams import named_streams
from replay.memory.system import find_policy, memory_system

KERNELS = (
    ("gemm", (4096, 4096, 4096), "fp16"),
    ("gemm", (8192, 2048, 1024), "fp32"),
    ("gemm", (1000, 5000, 3000), "bf16"),
    ("softmax", (20000, 3000), "fp32"),
    ("layer_norm", (30000, 1500), "fp16"),
    ("elementwise", (30_000_000,), "fp32"),
    ("batch_norm", (64, 128, 56, 56), "fp32"),
    ("pooling", (32, 64, 112, 112, 3, 2), "fp32"),
    ("convolution", (32, 64, 56, 56, 128, 3), "fp16"),
    ("attention", (64, 2048, 2048, 128), "fp16"),
    ("embedding", (1_000_000, 128, 200_000), "fp32"),
)
DEVICES = ("V100", "H100", "MI100", "MI300X", "CachePolicy-GPU")
POLICIES = ("Device", "Uncached", "CacheRW-AB-CR-PCby")


def main(accesses: int) -> None:
    """Print the comparison."""
    rows = []
    print(f"{'kernel':44}{'device':17}{'policy':20}{'time %':>8}{'bytes %':>8}{'stated %':>9}{'faster':>8}")
    for kind, shape, dtype in KERNELS:
        streams = named_streams(kind, shape, dtype)[:1]
        for device in DEVICES:
            system = memory_system(find_device(device))
            for policy in POLICIES:
                results, seconds = [], []
                for most in (10**9, accesses):
                    begin = time.process_time()
                    results.append(simulate(streams, system, find_policy(policy), most_accesses=most))
                    seconds.append(time.process_time() - begin)
                whole, sampled = results
                if sampled.simulated_share == 1.0:
                    continue
                errors = [
                    100 * (sampled.seconds / whole.seconds - 1),
                    100 * (sampled.counters["dram_bytes"] / whole.counters["dram_bytes"] - 1),
                    100 * sampled.error,
                ]
                rows.append(errors)
                name = f"{kind} {'x'.join(map(str, shape))} {dtype}"
                faster = seconds[0] / seconds[1]
                print(
                    f"{name:44}{device:17}{policy:20}" + "".join(f"{e:8.1f}" for e in errors) + f"{faster:8.1f}x",
                    flush=True,
                )
    times, sizes, stated = np.abs(np.array(rows)).T
    within = 100 * np.mean(times <= stated)
    print(
        f"{len(rows)} cases: time {np.median(times):.1f} % at the median, {np.quantile(times, 0.9):.1f} % for nine in "
        "ten"
    )
    print(
        f"bytes {np.median(sizes):.1f} and {np.quantile(sizes, 0.9):.1f} %; {within:.0f} % are within the stated error"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else MOST_ACCESSES)
