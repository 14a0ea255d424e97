"""Measure how many bytes of an array are quantised a second on one core: `python benchmarks/formats/quantize_speed.py`.

Values are normal, 4 Mi of them. Rates are bytes of the array over the time of the process, the best of five runs after
one that compiles. MX9 is compared with the same conversion in NumPy alone, whose codes must be equal.
"""

import time
from collections.abc import Callable

import numpy as np

from replay.formats import FORMATS, error_statistics, quantize, unpack

VALUES = 1 << 22
RUNS = 5


def rate(values: np.ndarray, call: Callable[[], object]) -> float:
    """Return the bytes of `values` over the least time of a call, in GB/s."""
    call()
    times = []
    for _ in range(RUNS):
        begin = time.process_time()
        call()
        times.append(time.process_time() - begin)
    return values.nbytes / min(times) / 1e9


def mx9_in_numpy(values: np.ndarray) -> np.ndarray:
    """Return the codes of finite float32 in MX9, computed with whole arrays."""
    pairs = np.abs(values).reshape(-1, 8, 2)
    _, high = np.frexp(pairs.max(axis=2))
    shared = high.max(axis=1, keepdims=True)
    exponent = np.repeat(shared - (high < shared), 2, axis=1)
    whole = np.minimum(np.rint(np.ldexp(pairs.reshape(-1, 16), 7 - exponent)), 127).astype(np.uint8)
    return (whole | np.signbit(values).reshape(-1, 16) * np.uint8(128)).reshape(values.shape)


def main() -> None:
    """Print a table of rates in GB/s, and the ratio of MX9 to NumPy."""
    values = np.random.default_rng(0).standard_normal((1 << 10, VALUES >> 10)).astype(np.float32)
    head = ("format", "quantise", "axis 0", "float64", "dequantise", "pack", "unpack", "errors")
    print(("{:12}" + "{:>11}" * 7).format(*head), " GB/s of the array")
    for name in FORMATS:
        copy, wide = quantize(values, name), values.astype(np.float64)
        data = copy.pack()
        rates = (
            rate(values, lambda name=name: quantize(values, name)),
            rate(values, lambda name=name: quantize(values, name, axis=0)),
            rate(wide, lambda name=name, wide=wide: quantize(wide, name)),
            rate(values, copy.dequantize),
            rate(values, copy.pack),
            rate(values, lambda name=name, data=data: unpack(data, name, values.shape)),
            rate(values, lambda copy=copy: error_statistics(values, copy)),
        )
        print(f"{name:12}" + "".join(f"{each:11.2f}" for each in rates))
    assert (mx9_in_numpy(values) == quantize(values, "mx9").codes).all()
    slow, fast = rate(values, lambda: mx9_in_numpy(values)), rate(values, lambda: quantize(values, "mx9"))
    print(f"MX9: {fast:.2f} GB/s, NumPy alone {slow:.3f} GB/s: {fast / slow:.0f} times as fast")


if __name__ == "__main__":
    main()
