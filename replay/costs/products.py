"""Matrix products and collectives of the studies, as tasks of the engine.

A product has a duration alone and shares of compute units, caches and memory, from its tiles and its traffic. A
collective is one kernel on compute units, or copies on DMA engines.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, sqrt
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
import numpy as np

from profilers.devices.catalogue import DTYPES, Device, find_device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import typed_table
from profilers.trace.arrays import Floats, Ints
from profilers.trace.kernels import CLASSES
from replay.calibration.parameters import Parameters
from replay.costs.architectures import architecture_of
from replay.costs.collectives import Topology, fastest, links_of
from replay.costs.kernels import KernelCalibration, predict
from replay.costs.kernels.machine import runs_as
from replay.costs.kernels.models import TILES
from replay.graph.graph import COLLECTIVE_KINDS, KernelGraph, TaskKind
from replay.graph.operators import DTYPE_BYTES

#: Cost of a tile's edge, in elements (the prior of `replay.costs.kernels.models`), and parts that the
#: depth is split into.
_EDGE, _MOST_PARTS = 2.0, 16
#: How many of the tiles are large: what libraries take where they fill the device.
_LARGE = 4
#: How sharply the slower of computing and moving rules, the prior of `replay.costs.kernels.models`.
SHARPNESS = 3.0
#: Memory so fast that it never binds, GB/s.
_BOUNDLESS_GBPS = 1e6


@dataclass(frozen=True)
class Product:
    """A matrix product, m x k by k x n, on the compute units that it may use.

    Parameters
    ----------
    m, n, k : int
        Rows, columns and depth.
    device : Device
        Device that it runs on.
    dtype : str
        One of `profilers.devices.DTYPES`.
    units : int, optional
        Compute units that it may run on; by default all of the device.

    Raises
    ------
    InvalidInputError
        A size is below one, or there are more units than the device has, or none.
    """

    m: int
    n: int
    k: int
    device: Device
    dtype: str = "bf16"
    units: int = 0

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k) < 1:
            raise InvalidInputError(f"a product of {self.m} x {self.n} x {self.k}: each size must be 1 or more")
        object.__setattr__(self, "units", self.units or self.device.compute_units)
        if not 1 <= self.units <= self.device.compute_units:
            raise InvalidInputError(f"{self.units} compute units; {self.device.name} has {self.device.compute_units}")

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.m * self.n * self.k

    @property
    def operand_bytes(self) -> tuple[float, float, float]:
        """Of the left operand, the right one, and the result."""
        size = DTYPE_BYTES[self.dtype]
        return float(size * self.m * self.k), float(size * self.k * self.n), float(size * self.m * self.n)

    @property
    def memory_bound(self) -> bool:
        """Whether its FLOP per compulsory byte are below the ridge of the device's peaks."""
        ridge = self.device.flops_per_s(self.dtype) / self.device.memory_bytes_per_s
        return self.flops / sum(self.operand_bytes) < ridge

    @property
    def grid(self) -> tuple[int, int, int]:
        """Rows and columns of a workgroup's tile, and parts of the depth.

        A library tunes them for the whole device, so that fewer units change nothing: the least time in whole waves,
        of large tiles where these fill the device, else of smaller ones and of parts.
        """
        return library_grid((1, self.m, self.n), self.device.compute_units)

    @property
    def workgroups(self) -> int:
        """One for each tile and part of the depth."""
        rows, columns, parts = self.grid
        return _count((1, self.m, self.n), rows, columns) * parts


@lru_cache(maxsize=4096)
def library_grid(sizes: tuple[int, int, int], units: int, *, most_parts: int = _MOST_PARTS) -> tuple[int, int, int]:
    """Return rows and columns of a workgroup's tile, and parts of the depth, as a library tunes them for a device.

    Parameters
    ----------
    sizes : tuple of int
        Products, and rows and columns of each.
    units : int
        Compute units of the device.
    most_parts : int
        Most parts that the depth is split into.

    Examples
    --------
    >>> library_grid((1, 8192, 8192), 108)
    (256, 128, 1)
    """
    if min(_count(sizes, *tile) for tile in TILES[:_LARGE]) >= units:
        return min(((*tile, 1) for tile in TILES[:_LARGE]), key=lambda grid: _cost(sizes, grid, units))
    parts = [2**i for i in range(most_parts.bit_length())]
    fitting = [(*tile, p) for tile in TILES for p in parts if _count(sizes, *tile) * p < 2 * units or p == 1]
    return min(fitting, key=lambda grid: _cost(sizes, grid, units))


def product_ns(product: Product, parameters: Parameters) -> float:
    """Return the duration of a product that runs alone on its units, ns.

    On the whole device as `replay.costs.kernels` says. On fewer units the part of it that is arithmetic takes more
    whole waves, as many as ``ceil(workgroups / units)``; memory traffic takes as long as before. Workgroups of a
    memory-bound product drift apart, so that its arithmetic takes longer in proportion; once it leaves
    `memory_bound_spared_units` idle, its streams disturb each other less (`memory_bound_spared_gain`).

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.costs.shipped import load_parameters
    >>> whole, part = (Product(8192, 8192, 8192, find_device("MI300X"), units=units) for units in (304, 152))
    >>> parameters = load_parameters()
    >>> bool(1.8 < product_ns(part, parameters) / product_ns(whole, parameters) < 2.2)
    True
    """
    fits = parameters.calibration(KernelCalibration)
    (whole, arithmetic), units = _alone_ns(replace(product, units=0), fits), product.device.compute_units
    fewer = ceil(product.workgroups / product.units) / ceil(product.workgroups / units)
    gain = 0.0
    if product.memory_bound:
        fewer = units / product.units
        gain = parameters["memory_bound_spared_gain"] * (
            units - product.units >= parameters["memory_bound_spared_units"]
        )
    moving = max(whole**SHARPNESS - arithmetic**SHARPNESS, 0.0)
    return float((1.0 - gain) * (moving + (arithmetic * fewer) ** SHARPNESS) ** (1 / SHARPNESS))


def product_columns(product: Product, parameters: Parameters) -> dict[str, float]:
    """Return a product as columns of `replay.graph.assembly.Assembly.tasks`.

    Parameters
    ----------
    product : Product
        Product, on the compute units that it may use.
    parameters : Parameters
        With calibrations of kernels and collectives.

    Returns
    -------
    dict
        `duration_ns` is for its own units; `occupies` and `cu` are shares of the whole device: the part that its
        workgroups fill, and the part that arithmetic needs, at least `cu_share_saturating_memory`. `waves` count over
        its own units. `hbm` is a share of the bandwidth that mixed streams reach (`memory_efficiency_mixed`). `l2`, the
        way to memory, is full of its requests: a tuned product keeps as many in flight as hide the latency that it has
        alone, so that whatever others send lengthens its time (Little's law).

    Notes
    -----
    Traffic is that of a blocked product: the workgroups that run at one time compute a nearly square block of the
    result and read its rows and columns of the operands once (Hong and Kung, 1981). The block of one die's units gives
    the traffic of the last-level cache; that of all units, the traffic of memory. An operand whose panel fits the
    last-level cache is read once in all.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.costs.shipped import load_parameters
    >>> columns = product_columns(Product(8192, 8192, 8192, find_device("MI300X")), load_parameters())
    >>> round(columns["cu"], 2), columns["workgroups"], 0 < columns["hbm"] < 0.2
    (1.0, 2048, True)
    """
    device, seconds = product.device, product_ns(product, parameters) / 1e9
    memory, cached, panel = _traffic(product)
    occupies = min(product.workgroups, product.units) / device.compute_units
    arithmetic = _alone_ns(replace(product, units=0), parameters.calibration(KernelCalibration))[1]
    busy = arithmetic / 1e9 / seconds * device.compute_units / product.units
    enough = max(busy, parameters["cu_share_saturating_memory"])
    delivered = device.memory_bytes_per_s * parameters["memory_efficiency_mixed"]
    return {
        "duration_ns": seconds * 1e9,
        "class_": CLASSES.index("gemm"),
        "cu": occupies * min(enough, 1.0),
        "occupies": occupies,
        "hbm": min(memory / seconds / delivered, 1.0),
        "l2": occupies,
        "workgroups": product.workgroups,
        "waves": product.workgroups / product.units,
        "footprint": min(panel / cache_bytes(device), 1.0),
        "hit_share": 1.0 - memory / cached,
    }


#: Number of dimensions of an operator that is a product: batch, m, n and k.
N_DIMS = 4
#: Type that is assumed of a product, by the bytes of its elements, and of one of unknown elements.
DTYPE_OF_SIZE = {DTYPE_BYTES[dtype]: dtype for dtype in ("fp64", "fp32", "bf16", "fp8")}
ASSUMED_DTYPE = "bf16"
#: Assumed of a product of unknown sizes: its rate as a share of the peak, and the tile of a workgroup.
_ASSUMED_RATE, _ASSUMED_TILE = 0.6, 128 * 128
#: Sizes that are not known are multiples of so small a share of their power of two.
_GRAIN_BITS = 3


def product_of_task(
    graph: KernelGraph, row: int, device: Device, *, operand_bytes: float = 0.0, result_bytes: float = 0.0
) -> tuple[Product, bool]:
    """Return the matrix product that a kernel computes, and whether its operator gives the sizes.

    If not, three relations give them: m k from the bytes of the left operand; m n from the bytes of the result, else
    from the number of workgroups, each with a tile of 128 x 128; m n k from the duration at 60 % of the peak. Sizes
    that a missing relation leaves open are taken to be equal.

    Parameters
    ----------
    graph : KernelGraph
        Graph of the kernel.
    row : int
        Row of the kernel.
    device : Device
        Device that it runs on.
    operand_bytes, result_bytes : float
        Bytes of the left operand and of the result; 0 if unknown.
    """
    tasks = graph.tasks
    named = tuple(DTYPES)[tasks.dtype[row]] if tasks.dtype[row] >= 0 else ""
    if tasks.operator[row] >= 0 and len(graph.operators[tasks.operator[row]].dims) == N_DIMS:
        operator = graph.operators[tasks.operator[row]]
        batch, m, n, k = operator.dims
        dtype = named or DTYPE_OF_SIZE.get(operator.element_bytes, ASSUMED_DTYPE)
        return Product(batch * m, n, k, device, runs_as(device, dtype)), True
    dtype = runs_as(device, named or ASSUMED_DTYPE)
    size = DTYPE_BYTES[dtype]
    volume = _ASSUMED_RATE * device.flops_per_s(dtype) * tasks.duration_ns[row] / 1e9 / 2
    left, result = operand_bytes / size, result_bytes / size or float(tasks.workgroups[row] * _ASSUMED_TILE)
    if left and result:
        sizes = (left * result / volume, volume / left, volume / result)
    elif left or result:
        side, other = sqrt(left or result), volume / (left or result)
        sizes = (side, other, side) if left else (side, side, other)
    else:
        sizes = (volume ** (1 / 3),) * 3
    m, n, k = (_coarse(each) for each in sizes)
    return Product(m, n, k, device, dtype), False


def _coarse(size: float) -> int:
    """Return a size rounded to a few binary digits, so that like kernels have like products."""
    grain = 1 << max(round(size).bit_length() - 1 - _GRAIN_BITS, 0)
    return int(max(round(size / grain) * grain, 1))


def cache_bytes(device: Device) -> float:
    """Return the size of the last-level cache."""
    return device.value("llc_mb" if "llc_mb" in device.figures else "l2_mb") * 2.0**20


def _count(sizes: tuple[int, int, int], rows: int, columns: int) -> int:
    return sizes[0] * ceil(sizes[1] / rows) * ceil(sizes[2] / columns)


def _cost(sizes: tuple[int, int, int], grid: tuple[int, int, int], units: int) -> float:
    """Return the cost of a tile's arithmetic in whole waves of the device, in elements of the result."""
    rows, columns, parts = grid
    waves = ceil(_count(sizes, rows, columns) * parts / units)
    return waves * rows * columns * (1 + _EDGE * (1 / rows + 1 / columns)) / parts


def with_figure(device: Device, name: str, value: float) -> Device:
    """Return the device with another value of one of its figures."""
    return replace(device, figures={**device.figures, name: replace(device.figures[name], value=value)})


def with_boundless_memory(product: Product) -> Product:
    """Return the product on a device whose memory never binds."""
    return replace(product, device=with_figure(product.device, "memory_gbps", _BOUNDLESS_GBPS))


def predicted_s(product: Product, fits: KernelCalibration) -> float:
    """Return the duration of a product on the whole device by the kernel model, s."""
    dims = [[1, product.m, product.n, product.k]]
    return float(predict("matmul", dims, product.device, calibration=fits, dtype=product.dtype).seconds[0])


@lru_cache(maxsize=4096)
def _alone_ns(product: Product, fits: KernelCalibration) -> tuple[float, float]:
    """Return the duration of a product on the whole device, and the part of it that is arithmetic."""
    whole, arithmetic = (predicted_s(on, fits) * 1e9 for on in (product, with_boundless_memory(product)))
    return whole, min(arithmetic, whole)


class HardwareTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The devices of a file of scenarios."""

    device: str
    workers: int
    fabric: str
    source: str


Hardware = TypeVar("Hardware", bound=HardwareTable)


def read_hardware(content: Mapping[str, Any], layout: type[Hardware], file: Path) -> tuple[Hardware, Device, Topology]:
    """Return the table ``[hardware]`` of a file of scenarios, its device and its topology.

    Parameters
    ----------
    content : mapping
        Content of the file.
    layout : type
        Struct of the table.
    file : Path
        File, for messages.

    Raises
    ------
    InvalidInputError
        There is no such table, device or fabric.
    """
    table = typed_table(content.get("hardware"), layout, f"{file}: hardware")
    try:
        return table, find_device(table.device), Topology(table.workers, fabric=table.fabric)
    except (InvalidInputError, NotFoundError) as error:
        raise InvalidInputError(f"{file}: hardware: {error}") from error


def _traffic(product: Product) -> tuple[float, float, float]:
    """Return bytes from memory, bytes from the last-level cache, and the panel of an operand that this cache keeps."""
    left, right, result = product.operand_bytes
    apart = architecture_of(product.device.architecture).die_units or (
        product.units if "llc_mb" in product.device.figures else 1
    )
    cached = _blocked(product, min(apart, product.units))[0] + result
    (both, rows, columns) = _blocked(product, product.units)
    size, room = DTYPE_BYTES[product.dtype], cache_bytes(product.device)
    choices = [(both, 0.0)]
    for extent, kept, again, passes in (
        (min(rows, product.m), left, right, ceil(product.m / rows)),
        (min(columns, product.n), right, left, ceil(product.n / columns)),
    ):
        panel = size * extent * product.k
        if panel <= room:
            choices.append((kept + passes * again, panel))
    memory, panel = min(choices)
    return memory + result, max(cached, memory + result), panel


def _blocked(product: Product, units: int) -> tuple[float, float, float]:
    """Return bytes of operands that nearly square blocks of `units` tiles read, and the rows and columns of one."""
    rows, columns, parts = product.grid
    left, right, _ = product.operand_bytes
    high, wide = map(float, block_of_tiles(max(units / parts, 1.0), (rows, columns), (product.m, product.n)))
    return left * ceil(product.n / wide) + right * ceil(product.m / high), high, wide


def block_of_tiles(
    tiles: Floats | float, tile: tuple[Ints | int, Ints | int], sizes: tuple[int, int]
) -> tuple[Floats, Floats]:
    """Return the rows and columns of the nearly square block of the result that some tiles cover.

    Tiles that run at one time read the rows and columns of this block once (Hong and Kung, 1981). If the result is
    narrower than a square block, the block is longer on the other side.

    Parameters
    ----------
    tiles : float or array of float64
        Number of tiles, 1 or more.
    tile : tuple of int or of array of int64
        Rows and columns of a tile.
    sizes : tuple of int
        Rows and columns of the result.

    Examples
    --------
    >>> [tuple(map(float, block_of_tiles(16, (64, 64), sizes))) for sizes in ((8192, 8192), (128, 8192))]
    [(256.0, 256.0), (128.0, 512.0)]
    """
    area = tiles * tile[0] * tile[1]
    high = np.minimum(np.maximum(np.sqrt(area), tile[0]), sizes[0])
    wide = np.minimum(np.maximum(area / high, tile[1]), sizes[1])
    return np.minimum(np.maximum(area / wide, tile[0]), sizes[0]), wide


#: The collectives that are modelled, by the parameter that says how many compute units saturate their links.
_UNITS: Mapping[str, str] = MappingProxyType(
    {
        "all_gather": "collective_units_all_gather",
        "reduce_scatter": "collective_units_all_gather",
        "all_to_all": "collective_units_all_to_all",
    }
)


@dataclass(frozen=True)
class Transfer:
    """A collective, seen from one of its devices.

    Parameters
    ----------
    kind : str
        ``"all_gather"``, ``"all_to_all"`` or ``"reduce_scatter"``.
    size_bytes : float
        One worker's whole buffer: the gathered result, all that a worker sends, or the buffer to reduce.
    topology : Topology
        Group of workers of one node.
    device : Device
        Device of every worker.

    Raises
    ------
    InvalidInputError
        There is no such kind, the size is not above zero, the group has one worker or several nodes.
    """

    kind: str
    size_bytes: float
    topology: Topology
    device: Device

    def __post_init__(self) -> None:
        if self.kind not in _UNITS:
            raise InvalidInputError(f"no transfer is called {self.kind!r}; there are {', '.join(_UNITS)}")
        if not 0 < self.size_bytes < float("inf"):
            raise InvalidInputError(f"a transfer of {self.size_bytes} bytes; give a number above zero")
        if self.topology.n_workers < 2 or self.topology.nodes > 1:
            raise InvalidInputError("a transfer is between two or more workers of one node")

    @property
    def sent_bytes(self) -> float:
        """Bytes that the device sends to all its peers together, and receives from them."""
        n = self.topology.n_workers
        return self.size_bytes * (n - 1) / n

    @property
    def memory_bytes(self) -> float:
        """Bytes that the device's memory reads and writes: all that is sent is read, all that is received is written.

        A reduce-scatter reads the received data and its own shard again, and writes the sum.
        """
        shard = self.size_bytes / self.topology.n_workers
        adding = self.sent_bytes + 2 * shard if self.kind == "reduce_scatter" else 0.0
        return 2 * self.sent_bytes + adding


def kernel_units(kind: str, parameters: Parameters) -> int:
    """Return the number of compute units with which a collective's kernel saturates its links.

    Examples
    --------
    >>> from replay.costs.shipped import load_parameters
    >>> [kernel_units(kind, load_parameters()) for kind in ("all_gather", "all_to_all")]
    [32, 64]
    """
    return round(parameters[_UNITS[kind]])


def kernel_columns(transfer: Transfer, parameters: Parameters) -> dict[str, float]:
    """Return a collective that runs on compute units, as columns of `replay.graph.assembly.Assembly.tasks`.

    It takes the time of the fastest algorithm and protocol (`replay.costs.collectives.fastest`), uses its links whole,
    and needs `kernel_units` all the time. It receives into a buffer and copies from there (`collective_kernel_passes`),
    so that memory, and the way to it (`l2`), carry more than for copies of DMA engines. What streams through the
    last-level cache holds a share of it in proportion to its rate.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> transfer = Transfer("all_gather", 2**30, Topology(8, fabric="mesh"), find_device("MI300X"))
    >>> from replay.costs.shipped import load_parameters
    >>> columns = kernel_columns(transfer, load_parameters())
    >>> bool(columns["link"] == 1.0 and 2.7e6 < columns["duration_ns"] < 2.9e6)
    True
    """
    links = links_of(transfer.device, transfer.topology)
    sizes = np.array([transfer.size_bytes])
    seconds = float(fastest(transfer.kind, transfer.topology, links, sizes)[0][0])
    share = kernel_units(transfer.kind, parameters) / transfer.device.compute_units
    rate = parameters["collective_kernel_passes"] * transfer.memory_bytes / seconds
    columns = _columns(transfer, TaskKind.COLLECTIVE, seconds, rate, parameters)
    return {**columns, "cu": min(share, 1.0), "link": 1.0}


def copy_columns(transfer: Transfer, parameters: Parameters) -> dict[str, object]:
    """Return a collective's copies to its n - 1 peers on DMA engines, each on an engine of its own.

    Columns of `replay.graph.assembly.Assembly.tasks`, without the time of their commands (`dma_command_ns`). A copy
    takes `dma_latency_ns` and its bytes over one peer's share of the links.

    Raises
    ------
    InvalidInputError
        The collective needs arithmetic, which DMA engines do not have.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> transfer = Transfer("all_to_all", 2**30, Topology(8, fabric="mesh"), find_device("MI300X"))
    >>> from replay.costs.shipped import load_parameters
    >>> copy_columns(transfer, load_parameters())["engine"]
    [0, 1, 2, 3, 4, 5, 6]
    """
    if transfer.kind == "reduce_scatter":
        raise InvalidInputError("a reduce_scatter adds, which DMA engines cannot; run it on compute units")
    peers = transfer.topology.n_workers - 1
    port = links_of(transfer.device, transfer.topology).port * parameters["dma_bandwidth_ratio"]
    seconds = parameters["dma_latency_ns"] / 1e9 + transfer.sent_bytes / port
    rate = transfer.memory_bytes / seconds / peers
    columns = _columns(transfer, TaskKind.COPY, seconds, rate, parameters)
    return {**columns, "link": 1.0 / peers, "dma": 1.0, "engine": list(range(peers))}


def _columns(
    transfer: Transfer, kind: TaskKind, seconds: float, rate: float, parameters: Parameters
) -> dict[str, float]:
    """Return the columns of a kernel or a copy that moves `rate` bytes/s of memory."""
    delivered = transfer.device.memory_bytes_per_s * parameters["memory_efficiency_mixed"]
    return {
        "collective": COLLECTIVE_KINDS.index(transfer.kind),
        "bytes": round(transfer.size_bytes),
        "ranks": transfer.topology.n_workers,
        "kind": kind,
        "duration_ns": seconds * 1e9,
        **dict.fromkeys(("hbm", "l2", "footprint"), min(rate / delivered, 1.0)),
    }
