"""Kernels whose caches and memory were measured, as streams: `COUNTED_KERNELS`.

Each function writes the accesses of one kernel from its source and its launch: which bytes each warp loads and stores,
step by step. The kernels are those of the AccelWattch validation suite on a Quadro GV100 whose accesses do not depend
on data and whose layout in memory is known.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import Ints
from replay.memory.accesses import Stream, Tiles, operands

_FLOAT, _HALF = 4, 2
#: Threads of a warp, and bytes of a sector of a line.
_WARP, _SECTOR = 32, 32


@dataclass(frozen=True)
class Touch:
    """Bytes of an array that each workgroup of a step touches.

    Parameters
    ----------
    array : str
        Name of the array.
    offset : array of int64, shape (workgroups,) or (workgroups, n)
        First byte, from the begin of the array.
    width, rows, pitch : array of int64
        Bytes of a row, rows, and bytes between the begins of two rows; they broadcast with `offset`.
    is_write : bool
        Whether the bytes are stored.
    """

    array: str
    offset: npt.ArrayLike
    width: npt.ArrayLike
    rows: npt.ArrayLike = 1
    pitch: npt.ArrayLike = 0
    is_write: bool = False


#: Returns what workgroups touch in a step.
Step = Callable[[Ints], Sequence[Touch]]


def _kernel(
    name: str, sizes: Mapping[str, int], workgroups: int, steps: Sequence[Step], *, threads: int, residency: int
) -> Stream:
    """Return the stream of a kernel whose threads load and store 4 bytes each."""
    arrays = operands(**sizes)
    numbers = {array.name: number for number, array in enumerate(arrays)}

    def tiles(groups: Ints, step: int) -> Tiles:
        several = []
        for touch in steps[step](groups):
            offset, number = np.asarray(touch.offset), numbers[touch.array]
            group = groups[:, None] if offset.ndim == 2 else groups
            address = arrays[number].address + offset
            several.append(
                Tiles.of(
                    group, address, number, width=touch.width, rows=touch.rows, pitch=touch.pitch,
                    is_write=touch.is_write,
                )
            )  # fmt: skip
        return Tiles.joined(*several)

    return Stream(
        name, arrays, workgroups, len(steps), tiles, threads=threads, vector_bytes=_FLOAT, residency=residency
    )


def fwt_batch_1() -> Stream:
    """Return fwtBatch1Kernel: a workgroup transforms 2,048 floats in place."""
    size = 2048 * _FLOAT
    return _kernel(
        "fwtBatch1Kernel",
        {"data": 4096 * size},
        4096,
        [lambda w: [Touch("data", w * size, size)], lambda w: [Touch("data", w * size, size, is_write=True)]],
        threads=512,
        residency=4,
    )


def fwt_batch_2(stride: int = 1 << 21) -> Stream:
    """Return fwtBatch2Kernel: a thread transforms 4 floats in place, which are `stride` floats apart."""
    across = stride // 256

    def touched(w: Ints, *, is_write: bool = False) -> list[Touch]:
        first = (w // across * 4 * stride + w % across * 256) * _FLOAT
        return [Touch("data", first + i * stride * _FLOAT, 256 * _FLOAT, is_write=is_write) for i in range(4)]

    steps: list[Step] = [touched, lambda w: touched(w, is_write=True)]
    return _kernel("fwtBatch2Kernel", {"data": (1 << 23) * _FLOAT}, 8192, steps, threads=256, residency=8)


def dct_8x8() -> Stream:
    """Return CUDAkernel2DCT: a workgroup transforms 32 x 16 pixels of an image of 512 x 512."""
    pitch, width = 512 * _FLOAT, 32 * _FLOAT

    def touched(w: Ints, array: str, *, is_write: bool) -> list[Touch]:
        return [Touch(array, w // 16 * 16 * pitch + w % 16 * width, width, 16, pitch, is_write)]

    steps: list[Step] = [
        lambda w: touched(w, "source", is_write=False),
        lambda w: touched(w, "target", is_write=True),
    ]
    return _kernel("CUDAkernel2DCT", dict.fromkeys(("target", "source"), 512 * pitch), 512, steps, threads=64,
                   residency=32)  # fmt: skip


def histogram_64() -> Stream:
    """Return histogram64Kernel: 4,370 workgroups of 64 threads read 16 bytes a thread in a grid-stride loop."""
    groups, size, turn = 4370, 64 << 20, 64 * 16

    def read(w: Ints, turns: int) -> list[Touch]:
        offset = (turns * groups + w) * turn
        return [Touch("data", offset, np.clip(size - offset, 0, turn))]

    steps: list[Step] = [lambda w, turns=turns: read(w, turns) for turns in range(15)]  # type: ignore[misc]
    steps.append(lambda w: [Touch("histograms", w * 64 * _FLOAT, 64 * _FLOAT, is_write=True)])
    sizes = {"histograms": groups * 64 * _FLOAT, "data": size}
    return _kernel("histogram64Kernel", sizes, groups, steps, threads=64, residency=24)


def sgemm() -> Stream:
    """Return mysgemmNT: 1,024 x 1,056 x 992, all column by column, a workgroup for 128 x 16 of the result."""
    m, n, k, depth = 1024, 1056, 992, 8

    def read(w: Ints, step: int) -> list[Touch]:
        row, column = w % 8 * 128, w // 8 * 16
        return [
            Touch("B", (step * depth * n + column) * _FLOAT, 16 * _FLOAT, depth, n * _FLOAT),
            Touch("A", (step * depth * m + row) * _FLOAT, 128 * _FLOAT, depth, m * _FLOAT),
        ]

    def result(w: Ints, *, is_write: bool) -> list[Touch]:
        offset = (w // 8 * 16 * m + w % 8 * 128) * _FLOAT
        return [Touch("C", offset, 128 * _FLOAT, 16, m * _FLOAT, is_write)]

    steps: list[Step] = [lambda w, step=step: read(w, step) for step in range(k // depth)]  # type: ignore[misc]
    steps += [lambda w: result(w, is_write=False), lambda w: result(w, is_write=True)]
    sizes = {"A": m * k * _FLOAT, "B": n * k * _FLOAT, "C": m * n * _FLOAT}
    return _kernel("mysgemmNT", sizes, 528, steps, threads=128, residency=9)


def srad() -> Stream:
    """Return srad: a thread reads a pixel of an image of 502 x 458 and its four neighbours by tables of indices."""
    rows, columns = 502, 458
    pixels, threads = rows * columns, 512

    def runs(w: Ints, index: Callable[[Ints], Ints], array: str) -> Touch:
        """Return what the 16 warps of each workgroup read of an array that threads index by pixel."""
        begin = np.minimum(w[:, None] * threads + np.arange(threads // _WARP) * _WARP, pixels)
        number = np.minimum(begin[..., None] + np.arange(_WARP), pixels - 1)
        sectors = np.sort(index(number) * _FLOAT // _SECTOR, axis=-1)
        starts = np.flatnonzero(np.diff(sectors, axis=-1, prepend=-2) > 1)
        ends = np.append(starts[1:], sectors.size) - 1
        width = np.zeros(sectors.size, np.int64)
        width[starts] = (sectors.flat[ends] - sectors.flat[starts] + 1) * _SECTOR
        width = np.where(begin[..., None] < pixels, width.reshape(sectors.shape), 0)
        return Touch(array, (sectors * _SECTOR).reshape(len(w), -1), width.reshape(len(w), -1))

    def row(i: Ints) -> Ints:
        return i % rows

    def column(i: Ints) -> Ints:
        return i // rows

    neighbours: list[tuple[str, Callable[[Ints], Ints]]] = [
        ("image", lambda i: i),
        ("north", row),
        ("image", lambda i: np.maximum(row(i) - 1, 0) + rows * column(i)),
        ("south", row),
        ("image", lambda i: np.minimum(row(i) + 1, rows - 1) + rows * column(i)),
        ("west", column),
        ("image", lambda i: row(i) + rows * np.maximum(column(i) - 1, 0)),
        ("east", column),
        ("image", lambda i: row(i) + rows * np.minimum(column(i) + 1, columns - 1)),
    ]
    written = ("dN", "dS", "dW", "dE", "c")
    size = threads * _FLOAT

    def write(w: Ints) -> list[Touch]:
        width = np.clip(pixels * _FLOAT - w * size, 0, size)
        return [Touch(name, w * size, width, is_write=True) for name in written]

    steps: list[Step] = [lambda w, n=n, f=f: [runs(w, f, n)] for n, f in neighbours]  # type: ignore[misc]
    sizes = {"north": rows, "south": rows, "west": columns, "east": columns, "image": pixels}
    sizes |= dict.fromkeys(written, pixels)
    return _kernel("srad", {name: count * _FLOAT for name, count in sizes.items()}, 450, [*steps, write],
                   threads=threads, residency=4)  # fmt: skip


def _layer(w: Ints, array: str, *, is_write: bool = False) -> Touch:
    """Return 16 rows of 16 of the 17 weights of a unit; a warp has two rows, which lie 68 bytes apart."""
    first = (17 * (16 * w + 1) + 1) * _FLOAT
    return Touch(array, first, (17 + 16) * _FLOAT, 8, 2 * 17 * _FLOAT, is_write)


def _units(w: Ints, array: str) -> Touch:
    """Return a value for each of the 16 rows; a warp reads two."""
    return Touch(array, (16 * w + 1) * _FLOAT, 2 * _FLOAT, 8, 2 * _FLOAT)


def layer_forward() -> Stream:
    """Return bpnn_layerforward_CUDA: a workgroup multiplies 16 x 16 weights by inputs and stores the sums over them."""
    weights, units = 65537 * 17 * _FLOAT, 65537 * _FLOAT

    def store(w: Ints) -> list[Touch]:
        sums = Touch("sums", w * 16 * _FLOAT, 2 * _FLOAT, 8, 2 * _FLOAT, is_write=True)
        return [_layer(w, "weights", is_write=True), sums]

    steps: list[Step] = [lambda w: [_units(w, "input")], lambda w: [_layer(w, "weights")], store]
    sizes = {"input": units, "weights": weights, "sums": 4096 * 16 * _FLOAT}
    return _kernel("bpnn_layerforward_CUDA", sizes, 4096, steps, threads=256, residency=8)


def adjust_weights() -> Stream:
    """Return bpnn_adjust_weights_cuda: a thread changes a weight, and loads what it needs again after the store."""
    weights = 65537 * 17 * _FLOAT

    def delta(w: Ints) -> Touch:
        return Touch("delta", _FLOAT + 0 * w, 16 * _FLOAT, 8, 0)

    steps: list[Step] = [
        lambda w: [delta(w), _units(w, "units")],
        lambda w: [_layer(w, "old"), _layer(w, "weights")],
        lambda w: [_layer(w, "weights", is_write=True)],
        lambda w: [delta(w), _units(w, "units"), _layer(w, "old")],
        lambda w: [_layer(w, "old", is_write=True)],
    ]
    sizes = {"delta": 17 * _FLOAT, "units": 65537 * _FLOAT, "weights": weights, "old": weights}
    return _kernel("bpnn_adjust_weights_cuda", sizes, 4096, steps, threads=256, residency=8)


def sobol() -> Stream:
    """Return sobolGPU_kernel: 100 dimensions of 100,000 numbers, each by 512 workgroups in a grid-stride loop."""
    row, turn = 100_000 * _FLOAT, 64 * _FLOAT

    def write(w: Ints, turns: int) -> list[Touch]:
        offset = (turns * 512 + w % 512) * turn
        return [Touch("output", w // 512 * row + offset, np.clip(row - offset, 0, turn), is_write=True)]

    steps: list[Step] = [lambda w: [Touch("directions", w // 512 * 32 * _FLOAT, 32 * _FLOAT)]]
    steps += [lambda w, turns=turns: write(w, turns) for turns in range(4)]  # type: ignore[misc]
    sizes = {"directions": 100 * 32 * _FLOAT, "output": 100 * row}
    return _kernel("sobolGPU_kernel", sizes, 51200, steps, threads=64, residency=32)


def cutlass_gemm(m: int, n: int) -> Stream:
    """Return CUTLASS 1's wmma_gemm_nn: m x n x m, halves by columns, 128 x 128 x 32 a step, the result in floats."""
    tile, depth = 128, 32
    down, columns = m // tile, min(n, tile)

    def read(w: Ints, step: int) -> list[Touch]:
        row, column = w % down * tile, w // down * tile
        return [
            Touch("A", (step * depth * m + row) * _HALF, tile * _HALF, depth, m * _HALF),
            Touch("B", (column * m + step * depth) * _HALF, depth * _HALF, columns, m * _HALF),
        ]

    def write(w: Ints) -> list[Touch]:
        offset = (w // down * tile * m + w % down * tile) * _FLOAT
        return [Touch("C", offset, tile * _FLOAT, columns, m * _FLOAT, is_write=True)]

    steps: list[Step] = [lambda w, step=step: read(w, step) for step in range(m // depth)]  # type: ignore[misc]
    sizes = {"A": m * m * _HALF, "B": m * n * _HALF, "C": m * n * _FLOAT}
    workgroups = down * -(-n // tile)
    return _kernel(f"wmma_gemm_nn {m} x {n} x {m}", sizes, workgroups, [*steps, write], threads=256, residency=1)


def tensor_core_gemm() -> Stream:
    """Return compute_gemm: 4,096 x 4,096 x 4,096 in halves, 80 workgroups, each for every 80th tile of 128 x 128."""
    size, tile, depth = 4096, 128, 64

    def result(w: Ints, array: str, *, is_write: bool) -> list[Touch]:
        offset = (w // 32 * tile * size + w % 32 * tile) * _FLOAT
        return [Touch(array, offset, tile * _FLOAT, tile, size * _FLOAT, is_write)]

    def read(w: Ints, step: int) -> list[Touch]:
        return [
            Touch(array, (number * tile * size + step * depth) * _HALF, depth * _HALF, tile, size * _HALF)
            for array, number in (("A", w // 32), ("B", w % 32))
        ]

    steps: list[Step] = [lambda w: result(w, "C", is_write=False)]
    steps += [lambda w, step=step: read(w, step) for step in range(size // depth)]  # type: ignore[misc]
    steps.append(lambda w: result(w, "D", is_write=True))
    sizes = {"A": size**2 * _HALF, "B": size**2 * _HALF, "C": size**2 * _FLOAT, "D": size**2 * _FLOAT}
    return _kernel("compute_gemm", sizes, 1024, steps, threads=256, residency=1)


#: Streams by the begin of the benchmark's name and by what the kernel's name holds.
COUNTED_KERNELS: Mapping[tuple[str, str], Callable[[], Stream]] = MappingProxyType(
    {
        ("fastWalshTransform", "fwtBatch1Kernel"): fwt_batch_1,
        ("fastWalshTransform", "fwtBatch2Kernel"): fwt_batch_2,
        ("dct8x8", "CUDAkernel2DCT"): dct_8x8,
        ("histogram", "histogram64Kernel"): histogram_64,
        ("parboil-sgemm", "mysgemmNT"): sgemm,
        ("srad_v1", "srad"): srad,
        ("backprop", "layerforward"): layer_forward,
        ("backprop", "adjust_weights"): adjust_weights,
        ("sobolQRNG", "sobolGPU_kernel"): sobol,
        ("cutlass_perf_test_k1", "gemm_kernel"): lambda: cutlass_gemm(2560, 16),
        ("cutlass_perf_test_k2", "gemm_kernel"): lambda: cutlass_gemm(4096, 128),
        ("cutlass_perf_test_k3", "gemm_kernel"): lambda: cutlass_gemm(2560, 512),
        ("cudaTensorCoreGemm", "compute_gemm"): tensor_core_gemm,
    }
)
#: Kernels that have no stream, and why.
LEFT_OUT: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("b+tree", "findRangeK"): "addresses depend on data",
        ("b+tree", "findK"): "addresses depend on data",
        ("parboil-sad", "mb_sad_calc"): "reads a texture, whose layout in memory is not public",
        ("dct8x8", "CUDAkernel1DCT"): "reads a texture, whose layout in memory is not public",
    }
)
