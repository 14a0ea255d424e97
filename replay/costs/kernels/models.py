"""Models of kernel durations from shapes and a device's figures.

`MODELS` are rooflines whose efficiencies are fitted, each of
a few parameters with a meaning. `least_seconds` is the bound that a data sheet sets.

*Products* (`matmul`, `batched_matmul`). A kernel computes tiles of the result, and a compute unit works on one at a
time. So the grid takes a whole number of waves, and each tile pays for its prologue. Long rows of the operands (a large
depth) lie far apart in memory, which costs Pascal devices up to three times and others little.

*Products of matrix units* (`matrix_matmul`: 16 bits and less). The fastest tile and split of the depth count. A tile
takes the longest of computing, of being fed from the L2 cache, and of the smallest tile, and writes its result. The
device moves all operands from memory meanwhile. A split pays for its sum. The rate at which a unit is fed, and the
smallest tile, go by the unit's peak, and the start by the clock, so that they carry over between generations.
Activations may be quantized before. In the measurements weights come from memory, not from a warm cache: an A100 reads
16 to 32 MB of them at 1.2 TB/s, a B200 at 4.7 TB/s. Rows that are not aligned to 16 bytes take kernels of an older
generation (CUTLASS' `align1` and `align2`), which compute few FLOP a cycle.

*Attention* (`context_attention`, `generation_attention`): see `replay.costs.kernels.attention`.

*Experts* (`experts`): see `replay.costs.kernels.experts`.

*Quantization* (`quantization`, `quantization_scale`): see `replay.costs.kernels.quantization`.

*Rows* (`softmax`, `normalization`). The longer of moving the rows and of computing them rules. A row that does not fit
the registers of its workgroup is read again, from the cache while the rows in flight fit it. Each row takes cycles of
a compute unit, and so does each of its elements. PyTorch's softmax gives short rows to a warp, filled up to a power of
two. Its normalisation of rows that are no multiple of four elements is two kernels without vectors.

*Streams* (`elementwise`). The bytes move after a fixed time, from the L2 cache if they were used just before.

The first parameter of every model is the start. Tables of FP32 operators hold the launch by the host, which is far
longer than the start of a kernel (`replay.costs.kernels.fits.holds_launch`).

Parameters are fitted in their logarithms. Their priors, in `datasets/kernel_models.toml`, are round numbers from fits
of the six devices that `datasets/fits` rests on, so no device that is left out is wholly unknown to them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

import msgspec
import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.files import dataset_path, read_toml, typed_table
from profilers.trace.arrays import Floats
from profilers.trace.compiled import compiled
from replay.costs.kernels.attention import (
    check_attention,
    context_seconds,
    generation_seconds,
    least_attention_seconds,
)
from replay.costs.kernels.convolutions import check_convolutions, convolution_seconds, least_convolution_seconds
from replay.costs.kernels.corrections import Axes
from replay.costs.kernels.experts import check_experts, experts_seconds, least_experts_seconds
from replay.costs.kernels.machine import REFERENCE_CLOCK_HZ, Machine
from replay.costs.kernels.quantization import check_quantizations, least_quantization_seconds, quantization_seconds

Tile = tuple[int, int]


@dataclass(frozen=True)
class ModelParameter:
    """A fitted parameter.

    Parameters
    ----------
    name, meaning : str
        Name of the parameter, and its meaning in words.
    prior : float
        Value without data.
    spread : float
        Standard deviation of its logarithm.
    """

    name: str
    meaning: str
    prior: float
    spread: float


def _accept(_: Floats) -> None:
    """Accept every shape."""


@dataclass(frozen=True)
class KernelModel:
    """Durations of one kind of operator.

    Parameters
    ----------
    parameters : tuple of ModelParameter
        Fitted parameters, in the order of `Fit.values`.
    dims : tuple of str
        Columns that describe an operator.
    seconds : callable
        ``(theta, tile, dims, element_bytes, machine)`` to s, shape (n,); `theta` holds the parameters' values.
    tiles : tuple of Tile
        Rows and columns of the tiles that a fit chooses from.
    correction : Axes
        Axes of the correction of a fit (`replay.costs.kernels.corrections`).
    may_be_zero : tuple of int
        Columns of `dims` that may be 0; all others are 1 or more.
    library : str
        Library that is meant if none is named, of kinds that were measured in several.
    by_units : bool
        Whether fits of devices whose matrix units run asynchronously, or do not, are carried over before those of all.
    types : tuple of str
        Data types that the kind has, on devices with units for them; empty for all.
    least : callable, optional
        ``(dims, element_bytes, machine)`` to the least time that the data sheet allows, s, shape (n,); by default that
        of products or of streams.
    check : callable
        Function of `dims` that raises InvalidInputError for a shape that cannot be.
    optional : tuple of float
        Values of the last columns of `dims` if a shape leaves them out.
    trees : bool
        Whether a fit holds trees of the times of several algorithms (`replay.costs.kernels.convolutions`).
    vendor_libraries : mapping of str to str
        Library that is meant on the devices of a vendor, in place of `library`.
    vendor_values : mapping of str to mapping of str to float
        Parameters of a vendor's devices that have no fit, by name, in place of those of other devices.
    """

    parameters: tuple[ModelParameter, ...]
    dims: tuple[str, ...]
    seconds: Callable[[Floats, Tile, Floats, int, Machine], Floats]
    tiles: tuple[Tile, ...] = ((0, 0),)
    correction: Axes = ()
    may_be_zero: tuple[int, ...] = ()
    library: str = ""
    by_units: bool = False
    types: tuple[str, ...] = ()
    least: Callable[[Floats, int, Machine], Floats] | None = None
    check: Callable[[Floats], None] = _accept
    optional: tuple[float, ...] = ()
    trees: bool = False
    vendor_libraries: Mapping[str, str] = field(default_factory=dict)
    vendor_values: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def prior(self) -> Floats:
        """Logarithms of the priors, shape (n_parameters,)."""
        return np.log([p.prior for p in self.parameters])

    @property
    def spread(self) -> Floats:
        """Standard deviations of the logarithms, shape (n_parameters,)."""
        return np.array([p.spread for p in self.parameters])


def _misaligned(columns: Floats, element_bytes: int) -> npt.NDArray[np.bool_]:
    return np.asarray((columns * element_bytes) % 16 != 0, dtype=np.bool_)


def _product(theta: Floats, tile: Tile, dims: Floats, element_bytes: int, machine: Machine, parts: float) -> Floats:
    """Return the times of products whose depth is split into at most `parts` parts."""
    odd = _misaligned(dims[:, 3], element_bytes) | _misaligned(dims[:, 2], element_bytes)
    seconds = np.empty(len(dims))
    powered = (machine.powered_flops_per_s, machine.powered_byte_s)
    full_clock = min(machine.full_clock_flops_per_s, machine.peak_flops_per_s)
    rates = (machine.compute_units, full_clock, machine.memory_bytes_per_s, float(element_bytes), parts, *powered)
    tiles = (_TILES if element_bytes > 2 else _HALF_TILES) if tile == (0, 0) else np.array([tile], np.float64)
    _fill_product(np.ascontiguousarray(dims), odd, theta, np.array(rates), tiles, seconds)
    return seconds


#: Rows and columns of a tile that one workgroup computes, from which libraries choose; the first four are large.
TILES = (
    *((256, 256), (256, 128), (128, 256), (128, 128)),
    *((128, 64), (64, 128), (64, 64), (128, 32), (32, 128), (64, 32), (32, 32)),
)
_TILES = np.array(TILES[3:], np.float64)
#: Halves fit a compute unit twice.
_HALF_TILES = np.array(TILES[1:], np.float64)


@compiled
def _fill_product(dims, odd, theta, machine, tiles, seconds):  # type: ignore[no-untyped-def]
    start, efficiency, edge, memory, deepest, misaligned, prologue, far, stride, last, sharpness, sum_s = theta
    units, flops, bandwidth, size, parts, powered, byte_s = machine
    last, sharpness = min(last, 1.0), max(sharpness, 1.0)
    for i in range(len(dims)):
        batch, m, n, k = dims[i]
        aligned = 1 - min(misaligned, 0.9) * odd[i]
        moved = size * batch * (m * k + k * n + m * n)
        apart = (k * size / stride) ** 2 * ((m + n) / 4096) ** 0.7
        aligned /= 1 + far * apart / (1 + apart)
        best = np.inf
        for tile in tiles:
            rows, columns = np.ceil(m / tile[0]), np.ceil(n / tile[1])
            speed = flops / units * efficiency / (1 + edge * (1 / tile[0] + 1 / tile[1])) * aligned
            split = 1.0
            while split <= parts:
                depth = np.ceil(k / split / 8) * 8
                depth = np.sqrt(np.sqrt(depth**4 + deepest**4)) + prologue
                share = batch * rows * columns * split / units
                waves = share + last * (np.ceil(share) - share) if share > 1 else 1.0
                computing = waves * 2 * tile[0] * tile[1] * depth / speed
                extra = size * batch * m * n * split if split > 1 else 0.0
                moving = (moved + extra) / (bandwidth * memory)
                # The clock falls to what the power limit leaves; units that wait take little.
                energy = share * units * 2 * tile[0] * tile[1] * k / split / powered + (moved + extra) * byte_s
                whole = (max(computing, energy) ** sharpness + moving**sharpness) ** (1 / sharpness)
                best = min(best, whole + sum_s * (split > 1))
                if share >= 2:
                    break  # more parts only add to what is moved
                split *= 2
        seconds[i] = start + best


def _matrix_product(theta: Floats, _: Tile, dims: Floats, __: int, machine: Machine) -> Floats:
    """Return the times of products of matrix units; the sizes of elements are those of the machine's type."""
    seconds = np.empty(len(dims))
    rates = (
        machine.compute_units,
        machine.flops_per_s,
        machine.memory_bytes_per_s,
        machine.clock_hz / REFERENCE_CLOCK_HZ,
    )
    _fill_matrix_product(
        np.ascontiguousarray(dims), aligned_elements(dims), theta, np.array(rates), np.array(machine.operand_bytes),
        _MATRIX_TILES, seconds,
    )  # fmt: skip
    return seconds


#: Elements to whose multiples the fastest kernels of matrix units need rows aligned.
ALIGNED = 8


def aligned_elements(dims: Floats) -> Floats:
    """Return the power of two, at most `ALIGNED`, of which the rows of all three matrices are multiples."""
    sizes = np.gcd(dims[:, 2].astype(np.int64), dims[:, 3].astype(np.int64))
    return np.gcd(sizes, ALIGNED).astype(np.float64)


#: Tiles of products of matrix units, from which libraries choose.
_MATRIX_TILES = np.array(
    [(256, 256), (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (32, 128), (128, 32),
     (32, 64), (64, 32), (32, 32), (16, 128), (16, 64), (64, 16), (16, 32)], np.float64
)  # fmt: skip
#: Most parts of the depth, the least depth of a part, and bytes that a part of a result moves: FP32, written and read.
_MOST_PARTS, _LEAST_DEPTH, _SPLIT_BYTES = 32.0, 64.0, 8.0


@compiled
def _fill_matrix_product(dims, aligned, theta, machine, sizes, tiles, seconds):  # type: ignore[no-untyped-def]
    start, efficiency, edge, memory, smallest, feed, sum_s, sharpness, last, prologue, write, quantize, odd, pairs = (
        theta
    )
    units, flops, bandwidth, clock = machine
    activation, weight, result = sizes
    last, rate, moved_s = min(last, 1.0), flops / units, 1 / (bandwidth * memory)
    fed_s, least_s = feed / (rate * activation), 2 * smallest**2 / rate
    depth_s, write_s = np.empty(len(tiles)), np.empty(len(tiles))
    for t in range(len(tiles)):
        rows, columns = tiles[t]
        computing = 2 * rows * columns * (1 + edge * (1 / rows + 1 / columns)) / (rate * efficiency)
        depth_s[t] = max(computing, (rows * activation + columns * weight) * fed_s, least_s)
        write_s[t] = rows * columns * result * write * fed_s
    for i in range(len(dims)):
        batch, m, n, k = dims[i]
        # Kernels for rows that are not aligned load few elements at once: a unit computes so many FLOP a cycle.
        unaligned = clock * REFERENCE_CLOCK_HZ * (odd if aligned[i] < 2 else pairs)
        slow = max(rate / unaligned, 1.0) if aligned[i] < ALIGNED else 1.0
        all_moved_s = batch * (m * k * activation + k * n * weight + m * n * result) * moved_s
        part_s = _SPLIT_BYTES * batch * m * n * moved_s
        best, best_computing, best_moving, best_sum = np.inf, 0.0, 0.0, 0.0
        for t in range(len(tiles)):
            grid = batch * np.ceil(m / tiles[t, 0]) * np.ceil(n / tiles[t, 1]) / units
            parts = 1.0
            while parts <= _MOST_PARTS:
                share = grid * parts
                waves = share + last * (np.ceil(share) - share) if share > 1 else 1.0
                computing = waves * (depth_s[t] * slow * (k / parts + prologue) + write_s[t])
                moving, summing = all_moved_s, 0.0
                if parts > 1:
                    moving, summing = all_moved_s + part_s * parts, sum_s
                whole = max(computing, moving) + summing
                if whole < best:
                    best, best_computing, best_moving, best_sum = whole, computing, moving, summing
                if share >= 2 or k / parts < 2 * _LEAST_DEPTH:
                    break  # more parts only add to what is moved
                parts *= 2
        longest = max(best_computing, best_moving)
        other = min(best_computing, best_moving) / longest
        seconds[i] = start / clock + longest * (1 + other**sharpness) ** (1 / sharpness) + best_sum
        seconds[i] += quantize * batch * m * k * moved_s


#: How suddenly a stream that is repeated stops to find itself in the L2 cache, and the share of the cache up to which
#: it does by half: of elementwise operators recorded on an H100, those of 24 MB of its 50 do, and those of 58 do not.
_LEAVES_CACHE, _WARM_SHARE = 6.0, 0.68


def _moving(moved: Floats, machine: Machine, memory: float, feed: float) -> Floats:
    """Return the time of bytes that were used just before, from the L2 cache or from memory.

    The cache feeds `feed` bytes a cycle to each compute unit; memory has `memory` of its bandwidth.
    """
    missed = 1 / (1 + (_WARM_SHARE * machine.l2_bytes / moved) ** _LEAVES_CACHE)
    fed = moved / (machine.compute_units * machine.clock_hz * feed)
    return np.asarray(missed * moved / (machine.memory_bytes_per_s * memory) + (1 - missed) * fed)


def _elementwise(theta: Floats, _: Tile, dims: Floats, element_bytes: int, machine: Machine) -> Floats:
    start, memory, feed = theta
    return np.asarray(start + _moving(dims[:, 0] * dims[:, 1] * element_bytes, machine, memory, feed))


def _slower(moving: Floats, computing: Floats, sharpness: float) -> Floats:
    """Return the time of two streams that overlap but for their `sharpness`."""
    longest = np.maximum(moving, computing)
    other = np.minimum(moving, computing) / longest
    return np.asarray(longest * (1 + other**sharpness) ** (1 / sharpness))


def _rows(
    theta: Floats, dims: Floats, element_bytes: int, machine: Machine, in_flight: Floats, again: Floats, cycles: Floats,
    hit: Floats | None = None,
) -> Floats:  # fmt: skip
    """Return the time of rows that take `cycles` of a unit each; `in_flight` a unit are read `again` times more."""
    _, memory, cache, sharpness, aligned_hit, feed, overlap = theta[:7]
    hit = np.full(len(dims), aligned_hit) if hit is None else hit
    rows, columns = dims.T
    resident = machine.compute_units * in_flight * columns * element_bytes
    room = cache * (machine.l2_bytes + machine.compute_units * machine.lds_bytes)
    missed = 1 / (1 + (room / resident) ** sharpness)
    passes = 1 + again / 2 * (missed + (1 - missed) * np.minimum(hit, 1.0))
    moving = passes * _moving(2 * rows * columns * element_bytes, machine, memory, feed)
    return _slower(moving, rows * cycles / (machine.compute_units * machine.clock_hz), overlap)


#: Threads that a compute unit holds, and columns up to which a workgroup of PyTorch's softmax has 256 of them.
_THREADS, _FEW_COLUMNS = 2048.0, 2049


def _softmax(theta: Floats, tile: Tile, dims: Floats, element_bytes: int, machine: Machine) -> Floats:
    """A warp a row of up to `tile` columns, filled up to a power of two; or a workgroup a row, which is read again."""
    row, column, warp_column, misaligned, hit_misaligned = theta[7:]
    columns = dims[:, 1]
    small = columns <= tile[1]
    block = np.where(machine.vendor == "AMD", 1024.0, np.where(columns <= _FEW_COLUMNS, 256.0, 512.0))
    in_flight, again = np.where(small, 16.0, _THREADS / block), np.where(small, 0.0, 2.0)
    cycles = np.where(small, 2 ** np.ceil(np.log2(columns)) * warp_column, row + columns * column)
    odd = _misaligned(columns, element_bytes) & ~small
    seconds = _rows(
        theta, dims, element_bytes, machine, in_flight, again, cycles, np.where(odd, hit_misaligned, theta[4])
    )
    return np.asarray(theta[0] + seconds / (1 - min(misaligned, 0.9) * odd))


#: Elements that PyTorch's normalisation reads at once: rows of another multiple take two kernels without vectors.
_VECTOR = 4


def _normalization(theta: Floats, _: Tile, dims: Floats, element_bytes: int, machine: Machine) -> Floats:
    """One kernel of a workgroup a row; or one for the moments and one that reads the row again, without vectors."""
    row, column, odd_row, odd_column = theta[7:]
    columns = dims[:, 1]
    odd = columns % _VECTOR > 0
    cycles = np.where(odd, odd_row + columns * odd_column, row + columns * column)
    seconds = _rows(theta, dims, element_bytes, machine, np.full(len(dims), 16.0), np.ones(len(dims)), cycles)
    return np.asarray(theta[0] * (1 + odd) + seconds)


def _root_mean_square(theta: Floats, _: Tile, dims: Floats, element_bytes: int, machine: Machine) -> Floats:
    """A block of 1024 threads a row, two of them on a compute unit: waves of rows that each take their own time."""
    start, memory, row, column = theta
    rows, columns = dims.T
    waves = np.ceil(rows / (2 * machine.compute_units))
    moving = 2 * rows * columns * element_bytes / (machine.memory_bytes_per_s * memory)
    return np.asarray(start + np.maximum(waves * (row + columns * column), moving), dtype=np.float64)


class _ParameterTable(msgspec.Struct, forbid_unknown_fields=True):
    """A parameter of `datasets/kernel_models.toml`; keys as in `ModelParameter`."""

    prior: float
    spread: float
    meaning: str


class _ModelTable(msgspec.Struct, forbid_unknown_fields=True):
    """A model of `datasets/kernel_models.toml`, whose head explains its keys."""

    form: str
    dims: tuple[str, ...]
    parameters: dict[str, _ParameterTable]
    tiles: tuple[Tile, ...] = ((0, 0),)
    correction: tuple[str, ...] = ()
    may_be_zero: tuple[str, ...] = ()
    library: str = ""
    by_units: bool = False
    types: tuple[str, ...] = ()
    optional: dict[str, float] = {}
    trees: bool = False
    vendor_libraries: dict[str, str] = {}
    vendor_values: dict[str, dict[str, float]] = {}


_FORMS: Mapping[str, Callable[[Floats, Tile, Floats, int, Machine], Floats]] = {
    "product": partial(_product, parts=1.0),
    "split product": partial(_product, parts=16.0),
    "matrix product": _matrix_product,
    "quantization": quantization_seconds,
    "quantization scale": partial(quantization_seconds, writes=False),
    "stream": _elementwise,
    "softmax": _softmax,
    "normalization": _normalization,
    "waves of rows": _root_mean_square,
    "context attention": context_seconds,
    "generation attention": generation_seconds,
    "experts": experts_seconds,
    "convolution": convolution_seconds,
}
#: Bounds and checks of forms that have their own.
_LEAST: Mapping[str, Callable[[Floats, int, Machine], Floats]] = {
    **dict.fromkeys(("context attention", "generation attention"), least_attention_seconds),
    "experts": least_experts_seconds,
    **dict.fromkeys(("quantization", "quantization scale"), least_quantization_seconds),
    "convolution": least_convolution_seconds,
}
_CHECKS: Mapping[str, Callable[[Floats], None]] = {
    **dict.fromkeys(("context attention", "generation attention"), check_attention),
    "experts": check_experts,
    **dict.fromkeys(("quantization", "quantization scale"), check_quantizations),
    "convolution": check_convolutions,
}


def _columns(dims: tuple[str, ...], axis: str) -> tuple[int, ...]:
    """Return the columns whose product an axis such as ``m`` or ``sequences*kv_heads`` is."""
    return tuple(dims.index(name) for name in axis.split("*"))


def _read_models() -> Mapping[str, KernelModel]:
    file, models = dataset_path("kernel_models.toml"), {}
    for kind, content in read_toml(file, "models of kernels").items():
        table = typed_table(content, _ModelTable, f"{file}: {kind}")
        parameters = (ModelParameter(name, p.meaning, p.prior, p.spread) for name, p in table.parameters.items())
        corrected = tuple(_columns(table.dims, axis) for axis in table.correction)
        zeros = tuple(map(table.dims.index, table.may_be_zero))
        models[kind] = KernelModel(
            tuple(parameters), table.dims, _FORMS[table.form], table.tiles, corrected, zeros, table.library,
            table.by_units, table.types,
            _LEAST.get(table.form), _CHECKS.get(table.form, _accept),
            tuple(table.optional.values()), table.trees,
            MappingProxyType(table.vendor_libraries), MappingProxyType(table.vendor_values),
        )  # fmt: skip
    return MappingProxyType(models)


#: By kind of `replay.graph.Operator`.
MODELS: Mapping[str, KernelModel] = _read_models()


def least_seconds(kind: str, dims: Floats, element_bytes: int, machine: Machine) -> Floats:
    """Return the least time that peak rate and bandwidth allow, s, shape (n,).

    A product computes ``2 * batch * m * n * k`` FLOP at no more than the peak of its type. Other operators move through
    memory, once, all bytes that do not fit the caches.

    Parameters
    ----------
    kind : str
        One of `MODELS`.
    dims : array of float64, shape (n, n_dims)
        Shapes, in the columns that the model's `dims` name.
    element_bytes : int
        Bytes of an element.
    machine : Machine
        Rates of the device.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> machine = Machine.of(find_device("A100-PCIE-40GB"))
    >>> float(least_seconds("matmul", np.array([[1.0, 1000, 1000, 975]]), 4, machine)[0])
    0.0001
    """
    if (least := MODELS[kind].least) is not None:
        return least(dims, element_bytes, machine)
    if MODELS[kind].dims == ("batch", "m", "n", "k"):
        return np.asarray(2.0 * dims.prod(axis=1) / machine.peak_flops_per_s)
    # Rows are read and written; streams count their arrays.
    element = element_bytes if MODELS[kind].dims == ("elements", "arrays") else 2 * element_bytes
    moved = np.maximum(dims.prod(axis=1) * element - machine.cache_bytes, 0.0)
    return np.asarray(moved / machine.memory_bytes_per_s)


#: Largest dimension of an operator.
LARGEST = 1e15


def checked_shapes(kind: str, dims: npt.ArrayLike) -> Floats:
    """Return the shapes of operators, with the values of columns that may be left out.

    Parameters
    ----------
    kind : str
        One of `MODELS`.
    dims : array-like, shape (n, n_dims)
        Shapes, in the columns that the model's `dims` name.

    Raises
    ------
    InvalidInputError
        The table has other columns, or a dimension is out of range.
    """
    names = MODELS[kind].dims
    try:
        shapes = np.asarray(dims, dtype=np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInputError(f"dims are no table of numbers ({error}); {kind} needs {', '.join(names)}") from error
    optional = MODELS[kind].optional
    if shapes.ndim == 2 and len(names) - len(optional) <= shapes.shape[1] < len(names):
        left_out = optional[shapes.shape[1] - len(names) :]
        shapes = np.column_stack((shapes, np.tile(left_out, (len(shapes), 1))))
    if shapes.ndim != 2 or shapes.shape[1] != len(names):
        raise InvalidInputError(f"dims have shape {shapes.shape}; {kind} needs (n, {len(names)}): {', '.join(names)}")
    least = np.array([0.0 if i in MODELS[kind].may_be_zero else 1.0 for i in range(len(names))])
    bad = np.flatnonzero(~((shapes >= least) & (shapes <= LARGEST)).all(axis=1))
    if len(bad):
        zeros = " and ".join(names[i] for i in MODELS[kind].may_be_zero)
        zero = f" ({zeros} 0 or more)" if zeros else ""
        raise InvalidInputError(
            f"dims[{int(bad[0])}] are {shapes[bad[0]].tolist()}; each must be 1 or more{zero}, and at most "
            f"{LARGEST:.0e}"
        )
    MODELS[kind].check(shapes)
    return shapes
