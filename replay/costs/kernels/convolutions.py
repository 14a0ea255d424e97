"""Times of convolutions by algorithm, and the algorithm that is the fastest.

Five algorithms have a physical time each. All of them read images (or gradients) and weights, write the result through
memory, and pay for the starts of their kernels:

- *Implicit GEMM* computes tiles of a product whose windows are never laid out in memory, in whole waves of compute
  units. A gradient of weights splits its depth over workgroups, which add up their parts in FP32.
- *GEMM* calls a matrix product: for all images at once if the kernel is 1 x 1 without stride and padding, else for each
  image in turn, whose windows it first lays out in memory (im2col). A gradient of weights takes the images in turn.
- *Direct* computes outputs on vector units, and needs enough of them to fill the device.
- *Winograd* does the same with fewer multiplications, on whole tiles of the output. Gradients of weights transform both
  operands in memory.
- *FFT* transforms everything in memory.

Boosted trees, fitted to the residuals of each algorithm, hold what these times leave out: unrolling, alignment, and
several kernels of one algorithm. More trees tell which algorithms a library has for a shape.

Winograd: Lavin and Gray, arXiv 1509.09308. Trees: Friedman, Annals of Statistics 29 (2001), 1189. All nodes of a level
have the same split (Prokhorenkova et al., arXiv 1706.09516).
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Bools, Floats
from profilers.trace.compiled import compiled, inlined
from replay.costs.architectures import load_architectures
from replay.costs.kernels.machine import REFERENCE_CLOCK_HZ, Machine

#: Algorithms, by number from 1; 0 is the fastest that applies.
ALGORITHMS = ("implicit GEMM", "GEMM", "direct", "Winograd", "FFT")
#: Forward pass and gradients of images and weights, by number from 1.
DIRECTIONS = ("forward", "data", "weights")
#: Layouts of images, by number from 1: channels before rows and columns, channels last, volumes with channels first.
LAYOUTS = ("NCHW", "NHWC", "NCDHW")
#: Columns of a shape. The geometry is that of the forward pass.
(N, C, D, H, W, K, KD, KH, KW, SD, SH, SW, PD, PH, PW, DD, DH, DW, GROUPS, DIRECTION, LAYOUT, ALGORITHM) = range(22)

#: Rows and columns of the tiles of a product, from which libraries choose.
_TILES = np.array(
    [(256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (32, 32), (16, 64),
     (64, 16), (16, 16)], np.float64
)  # fmt: skip
#: Number of parameters of the model.
_PARAMETERS = 18
#: Most parts of the depth of a gradient of weights, of another implicit GEMM, and of a product.
_PARTS = (64.0, 4.0, 16.0)
#: A device whose matrix units are not this much faster than its vector units counts as one without matrix units.
_MATRIX_RATIO = 1.2


def impossible(dims: Floats) -> tuple[int, str] | None:
    """Return the first shape that no convolution has, and the reason; None if all are possible.

    Parameters
    ----------
    dims : array of float64, shape (n, 22)
        Shapes, in the columns of the model.

    Examples
    --------
    >>> impossible(np.array([[1, 3, 1, 8, 8, 4, 1, 9, 3, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0]], dtype=float))
    (0, 'a kernel of 1 x 9 x 3 is larger than the padded images of 1 x 8 x 8')
    """
    i = int(_first_impossible(np.ascontiguousarray(dims)))
    if i < 0:
        return None
    row = dims[i]
    spans = row[[DD, DH, DW]] * (row[[KD, KH, KW]] - 1) + 1
    padded = row[[D, H, W]] + 2 * row[[PD, PH, PW]]
    if (row % 1 != 0).any():
        return i, "a size is no whole number"
    if row[C] % row[GROUPS] or row[K] % row[GROUPS]:
        return i, f"{row[GROUPS]:.0f} groups do not divide {row[C]:.0f} channels and {row[K]:.0f} filters"
    if (spans > padded).any():
        kernel, images = (" x ".join(f"{size:.0f}" for size in sizes) for sizes in (spans, padded))
        return i, f"a kernel of {kernel} is larger than the padded images of {images}"
    return i, f"directions go from 1 to {len(DIRECTIONS)}, layouts to {len(LAYOUTS)}, algorithms to {len(ALGORITHMS)}"


_NUMBERED = len(DIRECTIONS), len(LAYOUTS), len(ALGORITHMS)


@compiled
def _first_impossible(dims):  # type: ignore[no-untyped-def]
    for i in range(len(dims)):
        row, is_whole = dims[i], True
        for value in row:
            is_whole &= value == np.floor(value)
        small = min(_outputs(row)) < 1
        divided = row[C] % row[GROUPS] == 0 and row[K] % row[GROUPS] == 0
        directions, layouts, algorithms = _NUMBERED
        numbered = row[DIRECTION] <= directions and row[LAYOUT] <= layouts and row[ALGORITHM] <= algorithms
        if small or not is_whole or not divided or not numbered:
            return i
    return -1


@inlined
def _outputs(row):  # type: ignore[no-untyped-def]
    """Return depth, rows and columns of the result of the forward pass."""
    return (
        np.floor((row[D] + 2 * row[PD] - row[DD] * (row[KD] - 1) - 1) / row[SD]) + 1,
        np.floor((row[H] + 2 * row[PH] - row[DH] * (row[KH] - 1) - 1) / row[SH]) + 1,
        np.floor((row[W] + 2 * row[PW] - row[DW] * (row[KW] - 1) - 1) / row[SW]) + 1,
    )


def check_convolutions(dims: Floats) -> None:
    """Raise `InvalidInputError` for the first shape that no convolution has."""
    if (problem := impossible(dims)) is not None:
        raise InvalidInputError(f"dims[{problem[0]}]: {problem[1]}")


def least_convolution_seconds(dims: Floats, element_bytes: int, machine: Machine) -> Floats:
    """Return the least time that memory allows: images and result move once, except what the caches hold.

    Winograd and FFT compute fewer FLOP than a direct convolution, so that peaks set no bound.
    """
    elements = np.empty(len(dims))
    _count(np.ascontiguousarray(dims), elements)
    moved = elements * element_bytes
    return np.asarray(np.maximum(moved - machine.cache_bytes, 0.0) / machine.memory_bytes_per_s)


@compiled
def _count(dims, elements):  # type: ignore[no-untyped-def]
    """Write the elements of the images that a kernel reaches, and of the result."""
    for i in range(len(dims)):
        row = dims[i]
        od, oh, ow = _outputs(row)
        reached = min(row[D], od * row[KD]) * min(row[H], oh * row[KH]) * min(row[W], ow * row[KW])
        elements[i] = row[N] * (reached * row[C] + od * oh * ow * row[K])


@inlined
def _tiled_seconds(grid, product, unit, cost, parts, tiles):  # type: ignore[no-untyped-def]
    """Return the computing time of a product on its best tile, and the parts of its depth."""
    units, rate = unit
    edge, prologue = cost
    m, n, k = product
    best, split = np.inf, 1.0
    for t in range(len(tiles)):
        rows, columns = tiles[t]
        blocks = grid * np.ceil(m / rows) * np.ceil(n / columns) / units
        each = 2 * (rows * columns + edge * (rows + columns)) / rate
        part = 1.0
        while part <= parts:
            seconds = max(np.ceil(blocks * part), 1.0) * each * (k / part + prologue)
            if seconds < best:
                best, split = seconds, part
            if blocks * part >= 2 or k / part < 32:
                break
            part *= 2
    return best, split


@inlined
def _implicit_seconds(row, size, theta, rates, least, tiles):  # type: ignore[no-untyped-def]
    units, matrix, vector, moved_s, fixed, is_amd = rates
    m, n, k, groups, _, _ = size
    way = int(row[DIRECTION])
    # MIOpen's kernels of volumes, and of devices without matrix units, compute on vector units without a split.
    plain = is_amd and (row[LAYOUT] == 3 or matrix < _MATRIX_RATIO * vector)
    rate = (vector if is_amd and row[LAYOUT] == 3 else matrix) / units * theta[1 + way]
    parts = 1.0 if plain else _PARTS[0] if way == 3 else _PARTS[1]
    computing, split = _tiled_seconds(groups, (m, n, k), (units, rate), (theta[5], theta[6]), parts, tiles)
    moving = least + (8 * split * groups * m * n * moved_s if split > 1 else 0.0)
    return fixed + np.hypot(computing, moving) + theta[7] * least * (row[LAYOUT] == 1)


@inlined
def _gemm_seconds(row, size, theta, rates, least, tiles):  # type: ignore[no-untyped-def]
    units, matrix, _, moved_s, fixed, _ = rates
    m, n, k, groups, outputs, element = size
    kernel = row[KD] * row[KH] * row[KW]
    plain = kernel == 1 and row[SD] * row[SH] * row[SW] == 1 and row[PD] + row[PH] + row[PW] == 0
    images, is_weights = row[N], row[DIRECTION] == 3
    calls = 1.0 if plain and not is_weights else images
    if is_weights:
        k /= images
    else:
        n /= images
    rate = matrix / units * theta[9]
    computing, split = _tiled_seconds(
        images * groups / calls, (m, n, k), (units, rate), (theta[5], theta[6]), _PARTS[2], tiles
    )
    moving = least + (calls * 8 * split * groups * m * n * moved_s if split > 1 else 0.0)
    start = calls * theta[8] * fixed / theta[0]
    seconds = fixed + start + np.hypot(calls * computing, moving)
    if not plain:
        seconds += start + 2 * theta[10] * element * outputs * row[C] * kernel * moved_s
    return seconds


@inlined
def _direct_seconds(row, size, theta, rates, least, tiles):  # type: ignore[no-untyped-def]
    units, _, vector, _, fixed, _ = rates
    m, n, k, groups, _, _ = size
    is_forward, is_weights = row[DIRECTION] == 1, row[DIRECTION] == 3
    made = groups * m * n * (64 if is_weights else 1)
    computing = 2 * groups * m * n * k / (vector * (theta[11] if is_forward else theta[13]))
    return fixed + np.hypot(computing * (1 + theta[12] * units * 64 / made), least)


@inlined
def _winograd_seconds(row, size, theta, rates, least, tiles):  # type: ignore[no-untyped-def]
    units, _, vector, _, fixed, _ = rates
    _, _, _, groups, outputs, _ = size
    is_weights = row[DIRECTION] == 3
    if row[KH] * row[KW] == 1 or row[DH] * row[DW] > 1 or row[LAYOUT] != 1:
        return np.inf
    # F(2 x 2, 3 x 3): 16 multiplications for 36, on kernels and outputs of whole tiles.
    high = np.ceil(row[KH] / 3) * 3 if row[KH] > 1 else 1.0
    wide = np.ceil(row[KW] / 3) * 3 if row[KW] > 1 else 1.0
    fewer = (1.5 if row[KH] > 1 and row[SH] == 1 else 1.0) * (1.5 if row[KW] > 1 and row[SW] == 1 else 1.0)
    filters, channels = row[K] / groups, row[C] / groups
    work = 2 * outputs * np.ceil(filters / 8) * 8 * groups * channels * high * wide / fewer
    waves = outputs / 4 * np.ceil(filters / 32) * groups / (32 * units)
    idle = 1.0 if is_weights else np.ceil(waves) / waves
    computing = work / (vector * theta[14]) * idle * (1 + theta[15] / (channels * row[KH] * row[KW]))
    return fixed * (4 if is_weights else 1) + np.hypot(computing, least * (theta[16] if is_weights else 1.0))


@compiled
def _fill(dims, theta, figures, tiles, seconds):  # type: ignore[no-untyped-def]
    """Write the time of each algorithm; infinity if it does not apply, or another one is asked."""
    units, matrix, vector, bandwidth, element, clock, is_amd = figures
    moved_s, fixed = 1 / (bandwidth * theta[1]), theta[0] / clock
    rates = (units, matrix, vector, moved_s, fixed, is_amd > 0)
    for i in range(len(dims)):
        row = dims[i]
        od, oh, ow = _outputs(row)
        groups, asked = row[GROUPS], int(row[ALGORITHM])
        window, filters = row[KD] * row[KH] * row[KW] * row[C] / groups, row[K] / groups
        pixels, inputs = row[N] * od * oh * ow, row[N] * row[D] * row[H] * row[W]
        m, n, k = filters, pixels, window
        if row[DIRECTION] == 2:
            m, n = row[C] / groups, inputs
            k = pixels * filters * window / (m * n)
        elif row[DIRECTION] == 3:
            n, k = window, pixels
        least = element * (inputs * row[C] + pixels * row[K] + row[K] * window) * moved_s
        size = (m, n, k, groups, pixels, element)
        seconds[i] = np.inf
        if asked in (0, 1):
            seconds[i, 0] = _implicit_seconds(row, size, theta, rates, least, tiles)
        if asked in (0, 2):
            seconds[i, 1] = _gemm_seconds(row, size, theta, rates, least, tiles)
        if asked in (0, 3):
            seconds[i, 2] = _direct_seconds(row, size, theta, rates, least, tiles)
        if asked in (0, 4):
            whole = (m, n, k, groups, row[N] * np.ceil(oh / 2) * np.ceil(ow / 2) * 4, element)
            seconds[i, 3] = _winograd_seconds(row, whole, theta, rates, least, tiles)
        if asked in (0, 5) and min(row[KH], row[KW]) >= 5 and row[SH] * row[SW] == 1 and row[LAYOUT] == 1:
            seconds[i, 4] = 4 * fixed + theta[17] * least


def algorithm_seconds(theta: Floats, correction: Floats, dims: Floats, element_bytes: int, machine: Machine) -> Floats:
    """Return the time of each algorithm, s, shape (n, 5); infinity if it does not apply or is not asked.

    Parameters
    ----------
    theta : array of float64, shape (18,)
        Parameters, in the order of `datasets/kernel_models.toml`.
    correction : array of float64
        Trees of `fit_with_trees`; empty without.
    dims : array of float64, shape (n, 22)
        Shapes.
    element_bytes : int
        Bytes of an element.
    machine : Machine
        Rates of the device.
    """
    dims = np.ascontiguousarray(dims)
    clock = machine.clock_hz / REFERENCE_CLOCK_HZ
    rates = machine.compute_units, machine.flops_per_s, machine.packed_flops_per_s, machine.memory_bytes_per_s
    figures = np.array((*rates, float(element_bytes), clock, float(machine.vendor == "AMD")))
    seconds = np.empty((len(dims), len(ALGORITHMS)))
    _fill(dims, theta, figures, _TILES, seconds)
    if len(correction):
        trees = correction.reshape(-1, TREE_NUMBERS)
        bounds = np.searchsorted(trees[:, 0], np.arange(2 * len(ALGORITHMS) + 1))
        splits = trees[:, 1 : 1 + 2 * _LEVELS].astype(np.uint8)
        leaves = (trees[:, 1 + 2 * _LEVELS :] / 1e3).astype(np.float32)
        _correct(_codes_of(dims), splits, leaves, bounds, seconds)
    return seconds


def convolution_seconds(
    theta: Floats, _: tuple[int, int], dims: Floats, element_bytes: int, machine: Machine
) -> Floats:
    """Return the time of the asked or the fastest algorithm without trees, s, shape (n,)."""
    return np.asarray(algorithm_seconds(theta, np.empty(0), dims, element_bytes, machine).min(axis=1))


#: Levels of a tree; numbers of a tree: which residuals it is fitted to, feature and threshold of each level, leaves.
_LEVELS = 4
TREE_NUMBERS = 1 + 2 * _LEVELS + 2**_LEVELS
#: Trees of times and of coverage, and fewest rows of a tree.
_TIME_TREES, _COVER_TREES, _TREE_ROWS = 40, 12, 20
#: Share of a leaf that is taken, rows that a leaf's mean is shrunk by, and largest residual: of times, of coverage.
_TIME_STEP, _COVER_STEP, _RIDGE, _LARGEST, _COVERED = 0.25, 0.4, 12.0, 0.7, 2.0
#: Sizes of a shape that trees ask for, in half powers of two, and others; largest code.
_SIZES, _FEATURES, _CODES = 19, 27, 128


def _codes_of(dims: Floats) -> npt.NDArray[np.uint8]:
    codes = np.empty((len(dims), _FEATURES), np.uint8)
    _encode(dims, codes)
    return codes


@compiled
def _encode(dims, codes):  # type: ignore[no-untyped-def]
    """Write the features of each shape."""
    for i in range(len(dims)):
        row = dims[i]
        od, oh, ow = _outputs(row)
        pixels, kernel = od * oh * ow, row[KD] * row[KH] * row[KW]
        channels, filters = row[C] / row[GROUPS], row[K] / row[GROUPS]
        weights = channels * kernel * row[K]
        sizes = (
            row[N], channels, filters, row[GROUPS], row[D], row[H], row[W], pixels, row[N] * pixels, kernel,
            row[KD], row[KH], row[KW], row[SD] * row[SH] * row[SW], channels * kernel,
            row[N] * pixels * weights / 1024, weights, row[N] * row[D] * row[H] * row[W] * row[C],
            row[N] * pixels * row[K],
        )  # fmt: skip
        for f in range(_SIZES):
            codes[i, f] = min(int(2 * np.log2(sizes[f]) + 0.5) + 1, _CODES - 1) if sizes[f] >= 1 else 0
        codes[i, _SIZES] = min(row[PD] + row[PH] + row[PW], _CODES - 1)
        codes[i, _SIZES + 1] = row[DIRECTION]
        codes[i, _SIZES + 2] = row[LAYOUT]
        codes[i, _SIZES + 3] = row[DD] * row[DH] * row[DW] > 1
        aligned = (row[N], channels, filters, pixels)
        for a in range(4):
            size, power = int(aligned[a]), 0
            while size % 2 == 0 and power < 6:
                size //= 2
                power += 1
            codes[i, _SIZES + 4 + a] = power


def _fitted_trees(dims: Floats, errors: Floats) -> Floats:
    """Return trees that explain what the physical times leave out, and which algorithms were measured for a shape.

    Parameters
    ----------
    dims : array of float64, shape (n, 22)
        Shapes and their algorithms; the rows of a shape that name an algorithm tell which ones the library has. If no
        shape names several, each has all that apply.
    errors : array of float64, shape (n, 5)
        Logarithm of measured over modelled times in the column of the row's algorithm; NaN elsewhere.

    Returns
    -------
    array of float64, shape (n_trees * TREE_NUMBERS,)
        Trees in order: those of the five times, then those of the coverage. Leaves are in thousandths.
    """
    codes, found = _codes_of(np.ascontiguousarray(dims)), []
    for column in range(len(ALGORITHMS)):
        rows = np.isfinite(errors[:, column])
        if (trees := min(_TIME_TREES, int(rows.sum()) // _TREE_ROWS)) > 1:
            residuals = errors[rows, column]
            found.append(_grown(column, codes[rows], residuals, (trees, _TIME_STEP, _LARGEST)))
    named = dims[:, ALGORITHM] > 0
    shapes, first, group = np.unique(dims[named, :ALGORITHM], axis=0, return_index=True, return_inverse=True)
    if named.sum() > len(shapes):
        covered = np.full((len(shapes), len(ALGORITHMS)), -0.5)
        covered[group.reshape(-1), dims[named, ALGORITHM].astype(int) - 1] = 0.5
        trees = min(_COVER_TREES, len(shapes) // _TREE_ROWS)
        for column in range(len(ALGORITHMS) if trees > 1 else 0):
            settings = trees, _COVER_STEP, _COVERED
            found.append(_grown(len(ALGORITHMS) + column, codes[named][first], covered[:, column], settings))
    return np.concatenate(found).ravel() if found else np.empty(0)


def _grown(number: int, codes: npt.NDArray[np.uint8], residuals: Floats, settings: tuple[int, float, float]) -> Floats:
    trees, step, largest = settings
    table = np.zeros((trees, TREE_NUMBERS))
    table[:, 0] = number
    _grow(codes, np.clip(residuals, -10, 10), np.array((step, _RIDGE, largest)), table)
    return table


@compiled
def _grow(codes, residuals, settings, table):  # type: ignore[no-untyped-def]
    """Write trees that each fit what the trees before left; residuals beyond the largest count as the largest."""
    step, ridge, largest = settings
    n, features = codes.shape
    nodes = 2**_LEVELS
    sums, counts, gain = np.zeros((nodes, _CODES)), np.zeros((nodes, _CODES)), np.zeros(_CODES)
    leaf, left, value = np.zeros(n, np.int64), residuals.copy(), np.zeros(n)
    for t in range(len(table)):
        leaf[:] = 0
        for i in range(n):
            value[i] = min(max(left[i], -largest), largest)
        for level in range(_LEVELS):
            best = -1.0
            for f in range(features):
                sums[:], counts[:], gain[:] = 0.0, 0.0, 0.0
                for i in range(n):
                    sums[leaf[i], codes[i, f]] += value[i]
                    counts[leaf[i], codes[i, f]] += 1
                for node in range(2**level):
                    total, rows, below, fewer = sums[node].sum(), counts[node].sum(), 0.0, 0.0
                    for c in range(1, _CODES):
                        below += sums[node, c - 1]
                        fewer += counts[node, c - 1]
                        gain[c] += below**2 / (fewer + ridge) + (total - below) ** 2 / (rows - fewer + ridge)
                c = int(np.argmax(gain))
                if gain[c] > best:
                    best = gain[c]
                    table[t, 1 + 2 * level], table[t, 2 + 2 * level] = f, c
            f, c = int(table[t, 1 + 2 * level]), table[t, 2 + 2 * level]
            for i in range(n):
                leaf[i] = 2 * leaf[i] + (codes[i, f] >= c)
        total, rows = np.zeros(nodes), np.zeros(nodes)
        for i in range(n):
            total[leaf[i]] += value[i]
            rows[leaf[i]] += 1
        leaves = np.round(1e3 * step * total / (rows + ridge))
        table[t, 1 + 2 * _LEVELS :] = leaves
        for i in range(n):
            left[i] -= leaves[leaf[i]] / 1e3


#: An algorithm whose physical time is this many times that of a faster one of the library is not looked at.
_MUCH_SLOWER = 8.0


@compiled
def _correct(codes, splits, leaves, bounds, seconds):  # type: ignore[no-untyped-def]
    """Multiply times by the exponential of their trees, and drop algorithms that a library lacks for the shape."""
    algorithms = seconds.shape[1]
    order, covered = np.zeros(algorithms, np.int64), np.zeros(algorithms)
    for i in range(len(codes)):
        for a in range(algorithms):  # by physical time
            order[a] = a
            b = a
            while b > 0 and seconds[i, order[b]] < seconds[i, order[b - 1]]:
                order[b], order[b - 1] = order[b - 1], order[b]
                b -= 1
        limit, best = np.inf, order[0]
        for place in range(algorithms):
            a = order[place]
            covered[a] = -np.inf
            if seconds[i, a] > limit or seconds[i, a] == np.inf:
                continue
            covered[a] = _sum(codes[i], splits, leaves, bounds[algorithms + a], bounds[algorithms + a + 1])
            if covered[a] >= 0:
                limit = min(limit, _MUCH_SLOWER * seconds[i, a])
            if covered[a] > covered[best]:
                best = a
        for a in range(algorithms):
            if covered[a] >= 0 or a == best:
                seconds[i, a] *= np.exp(_sum(codes[i], splits, leaves, bounds[a], bounds[a + 1]))
            else:
                seconds[i, a] = np.inf


@inlined
def _sum(codes, splits, leaves, first, last):  # type: ignore[no-untyped-def]
    total = 0.0
    for t in range(first, last):
        leaf = 0
        for level in range(_LEVELS):
            leaf = 2 * leaf + (codes[splits[t, 2 * level]] >= splits[t, 2 * level + 1])
        total += leaves[t, leaf]
    return total


def scored(dims: Floats) -> Bools:
    """Return the mask of rows that are measurements of the fastest algorithm, not of one that was named."""
    return np.asarray(dims[:, ALGORITHM] == 0, dtype=np.bool_)


def _training_rows(dims: Floats) -> Bools:
    """Return the mask of rows to fit: rows that name an algorithm, and the fastest row of a shape that names none."""
    _, group = np.unique(dims[:, :ALGORITHM], axis=0, return_inverse=True)
    named = np.bincount(group.reshape(-1), weights=~scored(dims)) > 0
    return np.asarray(~scored(dims) | ~named[group.reshape(-1)], dtype=np.bool_)


def _residual_trees(theta: Floats, dims: Floats, seconds: Floats, element_bytes: int, machine: Machine) -> Floats:
    """Return the trees that correct physical times to measured ones, shape (n_trees * TREE_NUMBERS,).

    A row that names no algorithm counts for the fastest one.
    """
    physical = algorithm_seconds(theta, np.empty(0), dims, element_bytes, machine)
    fastest = physical.argmin(axis=1)
    errors = np.full(physical.shape, np.nan)
    rows = np.arange(len(dims))
    errors[rows, fastest] = np.log(seconds / physical[rows, fastest])
    return _fitted_trees(dims, errors)


def check_trees(numbers: Floats, subject: str) -> None:
    """Check the trees of a calibration file.

    Raises
    ------
    ValueError
        The numbers are no trees.
    """
    whole = len(numbers) % TREE_NUMBERS == 0
    trees = numbers[: len(numbers) // TREE_NUMBERS * TREE_NUMBERS].reshape(-1, TREE_NUMBERS)
    splits = trees[:, 1 : 1 + 2 * _LEVELS]
    ordered = (np.diff(trees[:, 0]) >= 0).all() and ((trees[:, 0] >= 0) & (trees[:, 0] < 2 * len(ALGORITHMS))).all()
    inside = (splits >= 0).all() and (splits[:, ::2] < _FEATURES).all() and (splits[:, 1::2] < _CODES).all()
    small = (np.abs(trees[:, 1 + 2 * _LEVELS :]) <= 1e3).all()
    if not (whole and ordered and inside and small):
        raise ValueError(
            f"the correction of {subject} are no trees of {TREE_NUMBERS} numbers in the order of algorithms"
        )


def fit_with_trees(
    dims: Floats, seconds: Floats, element_bytes: int, machine: Machine, parameters: Callable[[Bools], Floats]
) -> tuple[Floats, Floats, float]:
    """Fit the times of all algorithms.

    Parameters
    ----------
    dims : array of float64, shape (n, 22)
        Shapes; a row that names no algorithm is the fastest of its shape.
    seconds : array of float64, shape (n,)
        Measured durations.
    element_bytes : int
        Bytes of an element.
    machine : Machine
        Rates of the device.
    parameters : callable
        Function of a mask of rows to the parameters that fit them.

    Returns
    -------
    theta, trees : array of float64
        Parameters and trees.
    spread : float
        90 % quantile of the absolute error of the logarithm of the fastest times. Half of the geometries are held out,
        in all directions, both ways.
    """

    def trained(rows: Bools) -> tuple[Floats, Floats]:
        used = np.flatnonzero(rows)[_training_rows(dims[rows])]
        mask = np.zeros(len(dims), dtype=np.bool_)
        mask[used] = True
        applies = algorithm_seconds(np.ones(_PARAMETERS), np.empty(0), dims[mask], element_bytes, machine).min(axis=1)
        mask[used] = np.isfinite(applies)
        theta = parameters(mask)
        return theta, _residual_trees(theta, dims[mask], seconds[mask], element_bytes, machine)

    group = np.unique(dims[:, :DIRECTION], axis=0, return_inverse=True)[1].reshape(-1)
    half = np.random.default_rng(0).permutation(int(group.max()) + 1)[group] % 2 == 0
    spreads = []
    for side in (half, ~half):
        others = ~side & scored(dims)
        if side.sum() > 1 and others.any():
            times = algorithm_seconds(*trained(side), dims[others], element_bytes, machine).min(axis=1)
            spreads.append(float(np.quantile(np.abs(np.log(times / seconds[others])), 0.9)))
    return *trained(np.ones(len(dims), dtype=np.bool_)), float(np.mean(spreads or [1.0]))


def nearest_devices(devices: Sequence[Device], machine: Machine) -> tuple[list[Device], Device | None]:
    """Return the devices of a machine's architecture, and the last one whose architecture is the nearest of its family.

    Of another family there is none.
    """
    order = list(load_architectures())
    alike = [device for device in devices if device.architecture == machine.architecture]
    near: dict[int, Device] = {}
    for device in devices:
        if device.architecture == machine.architecture:
            near[0] = device
        elif machine.family and Machine.of(device).family == machine.family:
            near[abs(order.index(device.architecture) - order.index(machine.architecture))] = device
    return alike, near[min(near)] if near else None
