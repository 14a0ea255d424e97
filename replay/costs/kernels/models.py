"""Models of kernel durations from shapes and a device's figures.

`Machine` holds the figures of a device that models read. `MODELS` are rooflines whose efficiencies are fitted, each of
a few parameters with a meaning. `least_seconds` is the bound that a data sheet sets.

*Products* (`matmul`, `batched_matmul`). A kernel computes tiles of the result, and a compute unit works on one at a
time. So the grid takes a whole number of waves, and each tile pays for its prologue. Long rows of the operands (a large
depth) lie far apart in memory, which costs Pascal devices up to three times and others little.

*Rows* (`softmax`, `normalization`). A row that does not fit a block's registers is read again, from the cache while the
rows in flight fit it: PyTorch's kernels read twice for a normalisation, three times for a softmax beyond 1024 columns.
A softmax's row then waits for itself about 3 us: three times for memory and twice for all threads of the block.

*Streams* (`elementwise`). The bytes move at a share of the bandwidth, after a fixed time.

Parameters are fitted in their logarithms. Their priors, in `datasets/kernel_models.toml`, are round numbers from fits
of the six devices that `datasets/fits` rests on, so no device that is left out is wholly unknown to them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import DTYPES, Device
from profilers.errors import InvalidInputError
from profilers.files import dataset_path, read_toml, typed_table
from profilers.trace.arrays import Floats
from profilers.trace.compiled import compiled

#: Architectures that parameters carry over between better than from others: how caches and schedulers are built.
FAMILIES: tuple[tuple[str, ...], ...] = (
    ("Pascal",),
    ("Volta", "Turing", "Ampere", "Ada Lovelace", "Hopper", "Blackwell"),
    ("Vega", "CDNA", "CDNA 2", "CDNA 3", "CDNA 4"),
)

#: J per FLOP of FP32 arithmetic outside matrix units, and the share of the power limit that arithmetic gets: of five
#: values tried (8 to 11.5 pJ), the one with which left-out devices are predicted best on the files that are fitted. A
#: T4 then sustains 63 % of its peak, a P4 86 %, an A100 PCIe 93 %, a V100 PCIe all of it.
_JOULE_PER_FLOP, _POWER_SHARE = 10.2e-12, 0.75
#: Share of that energy in chips of 5 nm, by the foundry's claims (TSMC: 7 nm 60 % less than 16, 5 nm 30 % less than 7).
#: It matters to small cards; no measurement here shows it. An A100's 7 nm at full clock take as much as a T4's 12 nm at
#: half of it.
_ENERGY: dict[str, float] = dict.fromkeys(("Ada Lovelace", "Hopper", "Blackwell", "CDNA 3", "CDNA 4"), 0.3)
#: An SM of 128 FP32 lanes (Ampere's GA10x and later) issues one instruction a cycle to each 32 of them, so that every
#: load costs an FMA: one instruction in five is assumed. Of 64 lanes (Volta, Turing, GA100) other instructions are
#: free, and Pascal issues two at a time.
_ISSUE_SHARE, _WIDE_LANES, _DUAL_ISSUE = 0.8, 100.0, ("Pascal",)
_ALL_WIDE = ("Ada Lovelace", "Hopper", "Blackwell")
#: Share of their peak that matrix units for FP32 sustain: the geometric mean of the shares of the fastest products of 5
#: GFLOP and more in traces of an H100 (BF16, 0.70) and an MI300X (BF16, 0.49), and in published measurements of an A100
#: (FP16, 0.81), over the 0.95 of the sustained rate that kernels reach. It is used for the MI100, not fitted to it.
_MATRIX_SHARE = 0.69
_MATRIX_TYPES = ("tf32", "bf16", "fp16", "fp8")
#: Architectures whose peaks of halves are of vector units.
_NO_MATRIX = ("Pascal", "GCN 5")
#: How sharply the lower of two rates rules.
_SHARPNESS = 12.0


def runs_as(device: Device, dtype: str) -> str:
    """Return the type whose units compute `dtype` on a device: FP32 if the device has no units for it.

    Raises
    ------
    InvalidInputError
        There is no such type.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> runs_as(find_device("V100"), "bf16"), runs_as(find_device("A100"), "fp8")
    ('fp32', 'fp16')
    """
    if dtype not in DTYPES:
        raise InvalidInputError(f"data type {dtype!r} is none of {', '.join(DTYPES)}")
    have = [figure for figure in DTYPES[dtype] if figure in device.figures]
    return have[0].removesuffix("_tflops") if have else dtype


def _is_wide(device: Device) -> bool:
    if device.vendor != "NVIDIA" or device.architecture in _DUAL_ISSUE:
        return False
    if "clock_mhz" not in device.figures:
        return device.architecture in _ALL_WIDE
    lanes = device.value("fp32_tflops") * 1e6 / (2 * device.compute_units * device.value("clock_mhz"))
    return lanes > _WIDE_LANES


def matrix_share(device: Device) -> float:
    """Return the share of their peak that matrix units sustain in types of 16 bits and less, and in TF32.

    The share is that of the best product measured on the device (`bf16_sustained_tflops` of the catalogue), else the
    mean of its vendor's devices.
    """
    return device.measured_matrix_share or device.vendor_matrix_share or _MATRIX_SHARE


@dataclass(frozen=True)
class Machine:
    """A device as the models see it.

    Parameters
    ----------
    name, vendor, architecture : str
        As in the catalogue.
    compute_units : float
        SMs or CUs.
    flops_per_s : float
        Sustained rate: the peak of the data type, or the rate that the power limit allows.
    memory_bytes_per_s, l2_bytes, lds_bytes : float
        Bandwidth; the shared cache; shared memory (LDS) of one compute unit.
    peak_flops_per_s : float
        Peak of the data sheet, which nothing exceeds.
    cache_bytes : float
        Size of all caches between the compute units and memory.
    """

    name: str
    vendor: str
    architecture: str
    compute_units: float
    flops_per_s: float
    memory_bytes_per_s: float
    l2_bytes: float
    lds_bytes: float
    peak_flops_per_s: float
    cache_bytes: float

    @classmethod
    def of(cls, device: Device, dtype: str = "fp32", *, power: bool = True) -> Self:
        """Take the figures of a catalogue's device.

        Parameters
        ----------
        device : Device
            Device of the catalogue.
        dtype : str
            One of `profilers.devices.DTYPES`. The peak is that of the type whose units compute it (`runs_as`), of
            matrix units if the device has them.
        power : bool
            Whether a power limit bounds FP32 arithmetic outside matrix units: a T4 reaches half of its peak.

        Raises
        ------
        InvalidInputError
            The catalogue lacks a figure that is needed; or there is no such data type.
        """
        dtype = runs_as(device, dtype)
        fp32_matrix = dtype == "fp32" and "fp32_matrix_tflops" in device.figures
        peak = sheet = device.flops_per_s(dtype, matrix=True)
        matrix = fp32_matrix or (dtype in _MATRIX_TYPES and device.architecture not in _NO_MATRIX)
        if matrix:
            peak *= _MATRIX_SHARE if fp32_matrix else matrix_share(device)
        if dtype == "fp32" and not matrix:
            peak *= _ISSUE_SHARE if _is_wide(device) else 1.0
            if power and "power_w" in device.figures:
                energy = _JOULE_PER_FLOP * _ENERGY.get(device.architecture, 1.0)
                sustained = _POWER_SHARE * device.value("power_w") / energy
                peak = (peak**-_SHARPNESS + sustained**-_SHARPNESS) ** (-1 / _SHARPNESS)
        return cls(
            device.name,
            device.vendor,
            device.architecture,
            float(device.compute_units),
            peak,
            device.memory_bytes_per_s,
            device.value("l2_mb") * 2**20,
            device.value("lds_kb") * 2**10,
            sheet,
            (device.value("l2_mb") + (device.value("llc_mb") if "llc_mb" in device.figures else 0.0)) * 2**20,
        )

    @property
    def family(self) -> int:
        """Index in `FAMILIES`; -1 for an architecture without a family."""
        return next((i for i, names in enumerate(FAMILIES) if self.architecture in names), -1)


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


@dataclass(frozen=True)
class Model:
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
    """

    parameters: tuple[ModelParameter, ...]
    dims: tuple[str, ...]
    seconds: Callable[[Floats, Tile, Floats, int, Machine], Floats]
    tiles: tuple[Tile, ...] = ((0, 0),)

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
    rates = (machine.compute_units, machine.flops_per_s, machine.memory_bytes_per_s, float(element_bytes), parts)
    tiles = (_TILES if element_bytes > 2 else _HALF_TILES) if tile == (0, 0) else np.array([tile], np.float64)
    _fill_product(np.ascontiguousarray(dims), odd, theta, np.array(rates), tiles, seconds)
    return seconds


_TILES = np.array([(128, 128), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128), (64, 32), (32, 32)], np.float64)
#: Halves fit a compute unit twice.
_HALF_TILES = np.concatenate((np.array([(256, 128), (128, 256)], np.float64), _TILES))


@compiled
def _fill_product(dims, odd, theta, machine, tiles, seconds):  # type: ignore[no-untyped-def]
    start, efficiency, edge, memory, deepest, misaligned, prologue, far, stride, last, sharpness = theta
    units, flops, bandwidth, size, parts = machine
    last = min(last, 1.0)
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
                best = min(best, computing**sharpness + moving**sharpness)
                if share >= 2:
                    break  # more parts only add to what is moved
                split *= 2
        seconds[i] = start + best ** (1 / sharpness)


def _elementwise(theta: Floats, _: Tile, dims: Floats, element_bytes: int, machine: Machine) -> Floats:
    start, memory = theta
    return np.asarray(start + dims[:, 0] * dims[:, 1] * element_bytes / (machine.memory_bytes_per_s * memory))


def _rows(
    theta: Floats, dims: Floats, element_bytes: int, machine: Machine, in_flight: Floats, again: Floats
) -> Floats:
    """`in_flight` rows of a compute unit at a time, each read `again` times more."""
    start, memory, cache, sharpness, latency, misaligned, hit, hit_misaligned = theta
    rows, columns = dims.T
    odd = _misaligned(columns, element_bytes) & (again > 0)
    resident = machine.compute_units * in_flight * columns * element_bytes
    room = cache * (machine.l2_bytes + machine.compute_units * machine.lds_bytes)
    missed = 1 / (1 + (room / resident) ** sharpness)
    passes = 2 + again * (missed + (1 - missed) * np.minimum(np.where(odd, hit_misaligned, hit), 1.0))
    bandwidth = machine.memory_bytes_per_s * memory * (1 - min(misaligned, 0.9) * odd)
    moving = passes * rows * columns * element_bytes / bandwidth
    waiting = rows / (machine.compute_units * in_flight) * latency * (again > 0)
    return np.asarray(start + np.hypot(moving, waiting), dtype=np.float64)


#: Threads that a compute unit holds, and columns that PyTorch's softmax keeps in registers.
_THREADS, _IN_REGISTERS = 2048.0, 1024


def _softmax(theta: Floats, _: Tile, dims: Floats, element_bytes: int, machine: Machine) -> Floats:
    columns = dims[:, 1]
    block = np.where(machine.vendor == "AMD", 1024.0, np.where(columns <= 2 * _IN_REGISTERS + 1, 256.0, 512.0))
    small = columns <= _IN_REGISTERS
    in_flight = np.where(small, 16.0, _THREADS / block)
    return _rows(theta, dims, element_bytes, machine, in_flight, np.where(small, 0.0, 2.0))


def _normalization(theta: Floats, _: Tile, dims: Floats, element_bytes: int, machine: Machine) -> Floats:
    """A block of 128 threads a row, 16 of them on a compute unit."""
    return _rows(theta, dims, element_bytes, machine, np.full(len(dims), 16.0), np.ones(len(dims)))


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


_FORMS: Mapping[str, Callable[[Floats, Tile, Floats, int, Machine], Floats]] = {
    "product": partial(_product, parts=1.0),
    "split product": partial(_product, parts=16.0),
    "stream": _elementwise,
    "softmax": _softmax,
    "normalization": _normalization,
    "waves of rows": _root_mean_square,
}


def _read_models() -> Mapping[str, Model]:
    file, models = dataset_path("kernel_models.toml"), {}
    for kind, content in read_toml(file, "models of kernels").items():
        table = typed_table(content, _ModelTable, f"{file}: {kind}")
        parameters = (ModelParameter(name, p.meaning, p.prior, p.spread) for name, p in table.parameters.items())
        models[kind] = Model(tuple(parameters), table.dims, _FORMS[table.form], table.tiles)
    return MappingProxyType(models)


#: By kind of `replay.graph.Operator`.
MODELS: Mapping[str, Model] = _read_models()


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
    if MODELS[kind].dims == ("batch", "m", "n", "k"):
        return np.asarray(2.0 * dims.prod(axis=1) / machine.peak_flops_per_s)
    # Rows are read and written; streams count their arrays.
    arrays = 1.0 if MODELS[kind].dims == ("elements", "arrays") else 2.0
    moved = np.maximum(dims.prod(axis=1) * arrays * element_bytes - machine.cache_bytes, 0.0)
    return np.asarray(moved / machine.memory_bytes_per_s)
