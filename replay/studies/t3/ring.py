"""The sub-layers of T3: a product, and a ring reduce-scatter that may run near memory (arXiv 2401.16677).

`Workload` holds the sub-layers and the system that T3 was evaluated on. A `Ring` builds the graph of alike GPUs: each
is a device with compute units and a device with memory and a link. An `Arbitration` says who gets the memory.
`sequential` and `fused` add a product and its reduce-scatter, one after the other or overlapped chunk by chunk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import scipy

from profilers.devices.catalogue import Device, find_device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import read_toml, typed_table, typed_tables
from profilers.trace.arrays import Floats, Ints
from replay.costs.kernels import KernelCalibration, predict
from replay.engine.timeline import Timeline, replay
from replay.graph.assembly import Assembly
from replay.graph.graph import Hardware, KernelGraph, TaskKind
from replay.workloads.architecture import LARGEST, checked_size, read_or_shipped

#: Sizes of a system that are whole numbers of 1 or more.
_SYSTEM_SIZES = ("tile_rows", "tile_columns", "panels_in_group", "slice_depth", "block_bytes")
#: How a cache chooses what it drops: the least recently used, any, or so that it serves best.
REPLACEMENTS = ("lru", "random", "best")
_TABLES = ("system", "sublayers", "models")
#: Workers whose rings are simulated device by device.
_MOST_WORKERS = 256


@dataclass(frozen=True)
class System:
    """A ring of alike GPUs, and how products run on them.

    Parameters
    ----------
    device : Device
        Device with `link_gbps`: its bandwidth to one neighbour.
    latency_ns : float
        Latency of a link.
    tile_rows, tile_columns : int
        Tile of the result that a workgroup computes; a compute unit holds one workgroup.
    panels_in_group : int
        Rows of tiles that workgroups go over column by column before they come to the next.
    slice_depth : int
        Depth of the product for which operands are read at a time.
    block_bytes : int
        In which transfers are read, sent and written.
    replacement : str
        Replacement policy of the last-level cache: one of `REPLACEMENTS`.
    """

    device: Device
    latency_ns: float = 500.0
    tile_rows: int = 128
    tile_columns: int = 128
    panels_in_group: int = 8
    slice_depth: int = 128
    block_bytes: int = 2**18
    replacement: str = "random"

    def __post_init__(self) -> None:
        for name in _SYSTEM_SIZES:
            object.__setattr__(self, name, checked_size(f"system: {name}", getattr(self, name)))
        if self.replacement not in REPLACEMENTS:
            names = ", ".join(REPLACEMENTS)
            raise InvalidInputError(f"system: no replacement is called {self.replacement!r:.60}; there are {names}")
        if not 0 <= self.latency_ns < float("inf"):
            raise InvalidInputError(f"system: a latency of {self.latency_ns} ns; it is finite and not negative")

    def link_ns(self, size_bytes: float) -> float:
        """Return how long a link carries so many bytes, ns, without its latency."""
        return 1e9 * size_bytes / self.device.link_bytes_per_s

    def memory_ns(self, size_bytes: float) -> float:
        """Return how long the memory takes for so many bytes, ns."""
        return 1e9 * size_bytes / self.device.memory_bytes_per_s


@dataclass(frozen=True)
class SubLayer:
    """A product whose result is reduce-scattered and gathered again over tensor-parallel workers; 2-byte elements.

    Parameters
    ----------
    model, name : str
        Such as ``"t_nlg"`` and ``"fc2"``.
    tokens, hidden, factor, workers : int
        The product of a worker is tokens x hidden x (factor * hidden / workers).
    """

    model: str
    name: str
    tokens: int
    hidden: int
    factor: int
    workers: int

    def __post_init__(self) -> None:
        for size, most in (("tokens", LARGEST), ("hidden", LARGEST), ("factor", LARGEST), ("workers", _MOST_WORKERS)):
            object.__setattr__(self, size, checked_size(f"{self.label}: {size}", getattr(self, size), most))
        if self.workers < 2:
            raise InvalidInputError(f"{self.label}: one worker reduces nothing; give 2 or more")
        if self.factor * self.hidden < self.workers:
            raise InvalidInputError(f"{self.label}: more workers than the product is deep; give fewer")

    @property
    def label(self) -> str:
        """For people and tables, such as ``"t_nlg/fc2/8"``."""
        return f"{self.model}/{self.name}/{self.workers}"

    @property
    def depth(self) -> int:
        """Of a worker's part of the product; what does not divide evenly is cut."""
        return self.factor * self.hidden // self.workers

    @property
    def output_bytes(self) -> int:
        """Of the whole result, which every worker has a partial sum of."""
        return 2 * self.tokens * self.hidden


@dataclass(frozen=True)
class Workload:
    """Sub-layers by their labels, in the order of the file, and the system.

    Parameters
    ----------
    system : System
        GPUs of the ring.
    sublayers : mapping of str to SubLayer
        Sub-layers by label.
    """

    system: System
    sublayers: Mapping[str, SubLayer]


def load_workload(path: str | Path | None = None) -> Workload:
    """Read sub-layers from a TOML file in the layout of `datasets/workloads/t3.toml`, by default that one.

    The device is one of the catalogue.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file or device; or it is no such file: the table and the key are named.

    Examples
    --------
    >>> load_workload().sublayers["t_nlg/fc2/8"].depth
    2128
    """
    return read_or_shipped(_read, path, "workloads/t3.toml")


def find_sublayer(label: str, workload: Workload) -> SubLayer:
    """Return a sub-layer by its label.

    Parameters
    ----------
    label : str
        Model, sub-layer and workers, such as ``"t_nlg/fc2/8"``.
    workload : Workload
        Sub-layers to look in.

    Raises
    ------
    NotFoundError
        There is no sub-layer of that label; the message lists them.
    """
    if label not in workload.sublayers:
        raise NotFoundError(f"no sub-layer {label!r:.60}; there are {', '.join(workload.sublayers)}")
    return workload.sublayers[label]


class SystemTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The system in a file of workloads; keys as in `System`."""

    device: str
    latency_ns: int
    tile_rows: int
    tile_columns: int
    panels_in_group: int
    slice_depth: int
    block_bytes: int
    replacement: str
    source: str


class SubLayerTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of sub-layer in a file of workloads: the depth of its product as a multiple of the hidden size."""

    factor: int
    title: str
    source: str


class ModelTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model in a file of workloads, with the numbers of tensor-parallel workers that it runs on."""

    title: str
    hidden: int
    tokens: int
    workers: tuple[int, ...]
    source: str


def _read(file: Path) -> Workload:
    content = read_toml(file, "sub-layers")
    if sorted(content) != sorted(_TABLES):
        raise InvalidInputError(f"{file}: has tables {', '.join(sorted(content))}; give {', '.join(_TABLES)}")
    table = typed_table(content["system"], SystemTable, f"{file}: system")
    kinds = typed_tables(content, "sublayers", SubLayerTable, file)
    models = typed_tables(content, "models", ModelTable, file)
    try:
        device = find_device(table.device)
        sizes = {name: getattr(table, name) for name in ("latency_ns", *_SYSTEM_SIZES)}
        system = System(device, **sizes, replacement=table.replacement)
        sublayers = [
            SubLayer(name, kind, model.tokens, model.hidden, kinds[kind].factor, workers)
            for name, model in models.items()
            for workers in model.workers
            for kind in kinds
        ]
    except InvalidInputError as error:
        raise InvalidInputError(f"{file}: {error}") from error
    return Workload(system, MappingProxyType({sublayer.label: sublayer for sublayer in sublayers}))


@dataclass(frozen=True)
class Arbitration:
    """Shares of a memory controller that accesses ask for; by default all accesses are served alike.

    A controller is a device of the graph of its own. Bandwidth (`hbm`) is shared in proportion to the demand. The
    engine gives out compute units by priority. A controller has none; there they stand for slots of its queue. If
    accesses need slots, those of the product come first, and communication gets the rest.

    Parameters
    ----------
    held : float
        Share of the slots that a burst of the product holds; 0 where nobody needs any.
    needed : float
        Share of the slots that an access of communication needs; 0 where nobody does.
    """

    held: float = 0.0
    needed: float = 0.0


def compute_first(starvation: float) -> Arbitration:
    """Return the arbitration of T3-MCA, T3 with arbitration at the memory: communication takes what the product leaves.

    Parameters
    ----------
    starvation : float
        Share of the bandwidth that all communication together gets beside a burst of the product.

    Raises
    ------
    InvalidInputError
        The share is not within 0 to 1, or one of them: communication would never issue, or the product.

    Notes
    -----
    arXiv 2401.16677: communication issues while the queue of the memory is under a threshold that is set from the
    memory intensity of the product, or after it has waited for a limit. The threshold bounds how many accesses of
    communication stand before a burst when it begins, some ten ns, which shares of bandwidth do not see; the limit is
    the share here.

    Examples
    --------
    >>> compute_first(0.1)
    Arbitration(held=0.9, needed=1.0)
    """
    if not 0 < starvation < 1:
        raise InvalidInputError(f"a starvation share of {starvation}: give more than 0 and less than 1")
    return Arbitration(1.0 - starvation, 1.0)


_ACCESS, _LINK, _OUT, _IN = range(4)  #: streams of a memory: bursts of the product, the link, reads for it, writes
#: Blocks that a sender has read, and a receiver has not yet written, at most.
_BUFFERED = 4
#: Largest number of blocks of a message.
_MOST_BLOCKS = 4096


class Message(NamedTuple):
    """A message of every GPU to the next one, at one step.

    Parameters
    ----------
    name : str
        Name of the task that crosses the link.
    size_bytes : float
        Bytes of the message.
    reads, writes : tuple of str and float
        Name of the task, and bytes of the sender's memory that are read, of the receiver's that are written.
    cost : float
        Time that the memory takes for a byte which is written, over that of a plain write.
    """

    name: str
    size_bytes: float
    reads: tuple[str, float]
    writes: tuple[str, float]
    cost: float = 1.0


class Transfer(NamedTuple):
    """Tasks of one step, shape (gpus,) each.

    Parameters
    ----------
    first, left : array of int64
        By sender: what must wait for the data, and the last part that crosses the link.
    came : array of int64
        By receiver: the last part that is written.
    """

    first: Ints
    left: Ints
    came: Ints


@dataclass
class Ring:
    """Tasks of all GPUs of a ring, one of each kind at a time for all of them.

    GPU g is device g; its memory with the link to the next GPU is device gpus + g. All GPUs of a ring do the same at
    the same time, so a ring of one GPU, whose next is itself, stands for one of any number: at each step
    it receives the message that it sends.

    Parameters
    ----------
    system : System
        GPUs of the ring.
    gpus : int
        Number of GPUs that are simulated.
    arbitration : Arbitration
        Arbitration of every memory.
    """

    system: System
    gpus: int
    arbitration: Arbitration = Arbitration()
    _assembly: Assembly = field(default_factory=Assembly)

    def compute(self, name: str, durations_ns: npt.ArrayLike) -> Ints:
        """Let compute units work so long, time after time; return the tasks, shape (times, gpus)."""
        columns: dict[str, npt.ArrayLike] = {"duration_ns": np.repeat(durations_ns, self.gpus), "cu": 1.0}
        return self._tasks((0, 0), name, columns)

    def access(self, name: str, sizes: npt.ArrayLike, cost: float = 1.0, release_ns: float = 0.0) -> Ints:
        """Let compute units read or write memory in bursts at its full bandwidth.

        Parameters
        ----------
        name : str
            Name of the task.
        sizes : array-like, shape (bursts,)
            Bytes.
        cost : float
            Time of a byte, over that of a plain access.
        release_ns : float
            Not before.

        Returns
        -------
        array of int64, shape (bursts, gpus)
        """
        sizes = np.repeat(np.asarray(sizes, dtype=np.float64), self.gpus)
        columns: dict[str, npt.ArrayLike] = {
            "duration_ns": cost * self.system.memory_ns(1.0) * sizes,
            "bytes": sizes,
            "release_ns": release_ns,
            "hbm": 1.0,
            "cu": self.arbitration.held,
            "priority": 1,
        }
        return self._tasks((self.gpus, _ACCESS), name, columns)

    def send(self, message: Message, before: Transfer | None = None) -> Transfer:
        """Let each GPU send to the next one, after its transfer `before`.

        Notes
        -----
        It goes block by block: read, over the link, written. A block is passed on as it comes, so that the link
        starts with the read of a block and the write a latency after the link; a sender reads no more than four
        blocks ahead, and the link waits for a receiver that lags by four. Reads and writes are bursts at the
        bandwidth of the memory, so what waits beside a burst of the product catches up afterwards, as far as four
        blocks go.
        """
        system = self.system
        n = min(max(1, round(message.size_bytes / system.block_bytes)), _MOST_BLOCKS)
        links = self._blocks(_LINK, message.name, n, {"duration_ns": system.link_ns(message.size_bytes), "link": 1.0})
        writes = self._blocks(_IN, message.writes[0], n, self._memory(message.writes[1], message.cost))
        there, lag = np.roll(writes, -1, axis=1), system.latency_ns  # written by the receiver of each link
        self._assembly.edges(links.ravel(), there.ravel(), lag_ns=lag, from_start=True)
        self._assembly.edges(there[:-_BUFFERED].ravel(), links[_BUFFERED:].ravel(), lag_ns=lag)
        first = links[0]
        if before is not None:
            self._assembly.edges(before.left, first)
        if message.reads[1]:
            reads = self._blocks(_OUT, message.reads[0], n, self._memory(message.reads[1], 1.0))
            self._assembly.edges(reads.ravel(), links.ravel(), from_start=True)
            self._assembly.edges(links[:-_BUFFERED].ravel(), reads[_BUFFERED:].ravel(), from_start=True)
            first = reads[0]
        return Transfer(first, links[-1], writes[-1])

    def wait(self, tasks: Ints, earlier: Ints) -> None:
        """Let tasks wait for earlier ones of the same GPU, one by one in the same order."""
        self._assembly.edges(np.ravel(earlier), np.ravel(tasks))

    def wait_for_arrival(self, tasks: Ints, transfer: Transfer) -> None:
        """Let tasks wait until a transfer to their GPU has arrived."""
        self._assembly.edges(transfer.came, tasks)
        self._assembly.edges(np.roll(transfer.left, 1), tasks, lag_ns=self.system.latency_ns)

    def mark(self, name: str) -> Ints:
        """Return tasks that take no time, one a GPU."""
        tasks: Ints = self._tasks((0, 0), name, {"duration_ns": np.zeros(self.gpus), "kind": int(TaskKind.MARK)})[0]
        return tasks

    def graph(self) -> KernelGraph:
        """Return the graph of all GPUs."""
        hardware = Hardware(self.system.device, "user", self.system.device.compute_units, 1.0)
        last = 2 * self.gpus - 1
        note = f"devices {self.gpus} to {last} are the memories of the GPUs, each with the link to the next GPU"
        return self._assembly.graph(hardware).with_notes([note])

    def _memory(self, size_bytes: float, cost: float) -> dict[str, float]:
        """Return the columns of communication that moves so much of a memory."""
        time = cost * self.system.memory_ns(size_bytes)
        return {"hbm": 1.0, "cu": self.arbitration.needed, "duration_ns": time, "bytes": size_bytes}

    def _blocks(self, stream: int, name: str, n: int, columns: Mapping[str, float]) -> Ints:
        """Append a task that is split into n blocks, one after the other; return the tasks, shape (n, gpus)."""
        bounds = np.rint(np.linspace(0.0, columns.get("bytes", 0.0), n + 1))
        divided: dict[str, npt.ArrayLike] = {
            **columns,
            "duration_ns": np.full(n * self.gpus, columns["duration_ns"] / n),
            "bytes": np.repeat(np.diff(bounds), self.gpus),
            "kind": float(TaskKind.COLLECTIVE),
        }
        blocks = self._tasks((self.gpus, stream), name, divided)
        self.wait(blocks[1:], blocks[:-1])
        return blocks

    def _tasks(self, lane: tuple[int, int], name: str, columns: Mapping[str, npt.ArrayLike]) -> Ints:
        """Append tasks on a stream of all GPUs or memories; return them, shape (n, gpus)."""
        first, stream = lane
        lanes = [self._assembly.lane(device=first + gpu, stream=stream) for gpu in range(self.gpus)]
        times = len(np.asarray(columns["duration_ns"])) // self.gpus
        return self._assembly.tasks(name, np.tile(lanes, times), columns).reshape(times, self.gpus)


#: Names of tasks that read or write memory.
RS_READS, RS_WRITES, AG_READS, AG_WRITES = "RS reads", "RS writes", "AG reads", "AG writes"


def reduce_scatter(ring: Ring, after: Ints, *, workers: int, chunk_bytes: float) -> Ints:
    """Append a reduce-scatter on compute units; return its last tasks, by GPU.

    At each step but the first a GPU reads the partial sum that has come and its own part, and sends the sum; at the
    end it reads both once more and writes the result.

    Parameters
    ----------
    ring : Ring
        Ring under construction; tasks are added to it.
    after : array of int64, shape (gpus,)
        Task that each GPU waits for.
    workers : int
        Workers of the ring, 2 or more.
    chunk_bytes : float
        Bytes that a GPU sends at a step: a buffer over the number of workers.

    Notes
    -----
    With a buffer of S bytes, each of N GPUs reads (1 + 2 (N - 2) + 2) S / N = (2 N - 1) S / N, and writes S.
    """
    message = Message("RS", chunk_bytes, (RS_READS, chunk_bytes), (RS_WRITES, chunk_bytes))
    later = message._replace(reads=(RS_READS, 2 * chunk_bytes))
    last = _steps(ring, after, [message, *[later] * (workers - 2)])
    read: Ints = ring.access(RS_READS, [2 * chunk_bytes])[0]
    written: Ints = ring.access(RS_WRITES, [chunk_bytes])[0]
    ring.wait_for_arrival(read, last)
    ring.wait(written, read)
    return written


def near_memory_reduce_scatter(ring: Ring, after: Ints, *, workers: int, chunk_bytes: float) -> Ints:
    """Append a reduce-scatter by copy engines whose writes add to the memory; return its last tasks, by GPU.

    Notes
    -----
    Every step reads one chunk, and the last needs no reduction. With L and B the bandwidths of link and memory, this
    saves 3 S / (N B) of a `reduce_scatter`, beside (N - 1) S / (N L): a share of 3 L / (B (N - 1)).
    """
    message = Message("RS", chunk_bytes, (RS_READS, chunk_bytes), (RS_WRITES, chunk_bytes))
    return _end(ring, "RS done", after, [_steps(ring, after, [message] * (workers - 1))])


def all_gather(ring: Ring, after: Ints, *, workers: int, chunk_bytes: float) -> Ints:
    """Append an all-gather on compute units; return its last tasks, by GPU."""
    message = Message("AG", chunk_bytes, (AG_READS, chunk_bytes), (AG_WRITES, chunk_bytes))
    return _end(ring, "AG done", after, [_steps(ring, after, [message] * (workers - 1))])


def _steps(ring: Ring, after: Ints, messages: Sequence[Message]) -> Transfer:
    """Append steps, each after the tasks `after` and the arrival of the step before; return the last."""
    sent = ring.send(messages[0])
    ring.wait(sent.first, after)
    for message in messages[1:]:
        before, sent = sent, ring.send(message, sent)
        ring.wait(sent.first, after)
        ring.wait_for_arrival(sent.first, before)
    return sent


def _end(ring: Ring, name: str, after: Ints, arrivals: Sequence[Transfer]) -> Ints:
    """Return marks, one a GPU, after the tasks `after` and the arrivals of transfers."""
    done = ring.mark(name)
    ring.wait(done, after)
    for arrival in arrivals:
        ring.wait_for_arrival(done, arrival)
    return done


#: Tiles of a product, and slices of all its stages, at most: some hundred times the largest that was studied.
_MOST_TILES, _MOST_SLICES = 2**20, 2**20


@dataclass(frozen=True)
class Product:
    """A product on one GPU, stage after stage.

    Parameters
    ----------
    launch_ns : float
        Time before the first stage of the product.
    compute_ns : float
        Time of each stage, without reading operands and writing its part of the result.
    read_bytes : array of float64, shape (stages,)
        Bytes from memory: operands that the last-level cache did not keep.
    written_bytes : array of float64, shape (stages, chunks)
        Bytes of the result, by chunk in the order in which chunks are produced.
    tiles : array of int64, shape (stages, chunks)
        Workgroups, in the same order.
    slices : int
        Number of slices of the depth: each is read, then computed.
    """

    launch_ns: float
    compute_ns: float
    read_bytes: Floats
    written_bytes: Floats
    tiles: Ints
    slices: int = 1

    def last_stages(self) -> Ints:
        """Return for each chunk, in the order of production, the stage of its last workgroups."""
        stages, chunks = np.nonzero(self.tiles)
        last = np.zeros(self.tiles.shape[1], np.int64)
        np.maximum.at(last, chunks, stages)
        return last


def cached_share(footprint: float, replacement: str) -> float:
    """Return which share of accesses hit, of a stream that goes over `footprint` times the size of a cache in circles.

    Parameters
    ----------
    footprint : float
        Bytes that are used again, over the size of the cache.
    replacement : str
        One of `replay.studies.t3.ring.REPLACEMENTS`.

    Notes
    -----
    The least recently used line is always the next that is needed, so no line of a stream that does not fit is kept.
    With random replacement a line survives the F (1 - h) misses of a round with probability (1 - 1/C)^(F (1 - h)).
    So h = exp(-(F/C) (1 - h)), whose root below one is -W(-x exp(-x)) / x for x = F/C. At best a part C/F of the
    stream stays.

    Examples
    --------
    >>> cached_share(0.5, "lru"), [round(cached_share(1.5, name), 3) for name in ("lru", "random", "best")]
    (1.0, [0.0, 0.417, 0.667])
    """
    if footprint <= 1.0:
        return 1.0
    if replacement == "random":
        return float(-scipy.special.lambertw(-footprint * np.exp(-footprint)).real / footprint)
    return 1.0 / footprint if replacement == "best" else 0.0


def product_of(sublayer: SubLayer, system: System, output_in_cache: float, calibration: KernelCalibration) -> Product:
    """Return the product of a sub-layer, its result in one chunk of rows for each worker.

    Parameters
    ----------
    sublayer : SubLayer
        Product and number of workers.
    system : System
        GPUs and their tiles.
    output_in_cache : float
        Share of the result that takes room in the last-level cache from operands that are read again: 1 where it is
        written through it, 0 around it, as T3 does.
    calibration : Calibration
        Fits of kernels that the product is timed by.

    Raises
    ------
    InvalidInputError
        The rows of tiles cannot be divided among the workers, or the product has more than a million tiles, or of
        slices in all its stages.

    Notes
    -----
    Without T3 (the result in the cache) all takes what `replay.costs.kernels` says. Workgroups of a stage run together:
    they read a slice of the operands and compute, slice by slice, and write. Memory is taken to be used in bursts at
    its full bandwidth, beside which nothing is computed; the rest of the time is computing, the same in every
    stage. Rows of the first operand are read once. Columns of the second are read once, and again for every later
    group unless the cache has kept them. The cache also holds the rows of the group and its result.

    Examples
    --------
    >>> from replay.costs.kernels import load_calibration
    >>> workload = load_workload()
    >>> sublayer = find_sublayer("t_nlg/fc2/8", workload)
    >>> product = product_of(sublayer, workload.system, 0.0, load_calibration())
    >>> int(product.tiles.sum()), product.last_stages()[:3].tolist()
    (2176, [3, 6, 10])
    """
    grid = _grid(sublayer, system)
    read = _read_bytes(grid, sublayer, system, output_in_cache)
    memory_ns = system.memory_ns(_read_bytes(grid, sublayer, system, 1.0).sum() + sublayer.output_bytes)
    shape = [[1, sublayer.tokens, sublayer.hidden, sublayer.depth]]
    whole = predict("matmul", shape, system.device, calibration=calibration, dtype="fp16")
    compute_ns = max(float(whole.seconds[0] - whole.start_s) * 1e9 - memory_ns, 0.0) / grid.stages
    sizes = 2.0 * system.tile_rows * grid.widths[grid.column]
    written, tiles = np.zeros((grid.stages, sublayer.workers)), np.zeros((grid.stages, sublayer.workers), np.int64)
    np.add.at(written, (grid.stage, grid.chunk), sizes)
    np.add.at(tiles, (grid.stage, grid.chunk), 1)
    slices = -(-sublayer.depth // system.slice_depth)
    if slices * grid.stages > _MOST_SLICES:
        raise InvalidInputError(
            f"{sublayer.label}: {grid.stages} stages of {slices} slices; at most {_MOST_SLICES:,} in all: "
            "raise slice_depth"
        )
    return Product(1e9 * whole.start_s, compute_ns, read, written, tiles, slices)


@dataclass(frozen=True)
class _Grid:
    """Tiles in the order of their workgroups, shape (tiles,) each; widths of the columns of tiles, in elements."""

    chunk: Ints
    group: Ints
    column: Ints
    panel: Ints
    stage: Ints
    widths: Ints

    @property
    def stages(self) -> int:
        return int(self.stage[-1]) + 1


def _grid(sublayer: SubLayer, system: System) -> _Grid:
    rows = sublayer.workers * system.tile_rows
    if sublayer.tokens % rows:
        raise InvalidInputError(
            f"{sublayer.label}: {sublayer.tokens} tokens are not whole tiles of {system.tile_rows} rows for each of "
            f"{sublayer.workers} workers; take a multiple of {rows}"
        )
    panels, columns = sublayer.tokens // system.tile_rows, -(-sublayer.hidden // system.tile_columns)
    if panels * columns > _MOST_TILES:
        raise InvalidInputError(
            f"{sublayer.label}: {panels} x {columns} tiles; at most {_MOST_TILES:,}: raise tile_rows"
        )
    panel, column = (index.ravel() for index in np.indices((panels, columns)))
    of_chunk = panels // sublayer.workers
    chunk, within = panel // of_chunk, panel % of_chunk // system.panels_in_group
    group = chunk * -(-of_chunk // system.panels_in_group) + within
    order = np.lexsort((panel, column, group))
    widths = np.full(columns, system.tile_columns)
    widths[-1] = sublayer.hidden - (columns - 1) * system.tile_columns
    stage = np.arange(len(order)) // system.device.compute_units
    return _Grid(chunk[order], group[order], column[order], panel[order], stage, widths)


def _read_bytes(grid: _Grid, sublayer: SubLayer, system: System, output_in_cache: float) -> Floats:
    """Return the bytes that each stage reads from memory."""
    row_bytes = 2.0 * sublayer.depth
    _, panels = np.unique(grid.panel, return_index=True)
    passes, columns = np.unique(np.stack([grid.group, grid.column]), axis=1, return_index=True)
    rows_of_group = system.tile_rows * min(system.panels_in_group, len(panels) // sublayer.workers)
    footprint = (sublayer.hidden + rows_of_group) * row_bytes + output_in_cache * 2.0 * rows_of_group * sublayer.hidden
    hits = cached_share(footprint / (system.device.value("l2_mb") * 2**20), system.replacement)
    again = np.where(passes[0] == 0, 1.0, 1.0 - hits)
    read = np.bincount(grid.stage[panels], minlength=grid.stages) * system.tile_rows * row_bytes
    columns_read = np.bincount(grid.stage[columns], grid.widths[grid.column[columns]] * row_bytes * again, grid.stages)
    return np.asarray(read + columns_read, dtype=np.float64)


#: Names of tasks; what is stored to the neighbour moves nothing in the memory of the GPU that computed it.
GEMM_READS, GEMM_WRITES, COMPUTES, STORES = "GEMM reads", "GEMM writes", "GEMM", "GEMM stores to the neighbour"


#: Names of the tasks that read or write the memory of a GPU.
MOVEMENTS: tuple[str, ...] = (GEMM_READS, GEMM_WRITES, RS_READS, RS_WRITES, AG_READS, AG_WRITES)


@dataclass(frozen=True)
class Run:
    """A sub-layer that was simulated one way, with the tasks that end its parts.

    Parameters
    ----------
    product : Product
        Product of the sub-layer.
    timeline : Timeline
        Lanes: the compute units of each GPU; of its memory, bursts of the product, the link, reads for it, and
        writes of arriving data.
    computed, reduced, gathered : array of int64, shape (gpus,)
        The last task of the product, of the reduce-scatter, of the all-gather.
    stages : array of int64, shape (stages, gpus)
        The task after which the result of each stage is in its place.
    arrivals : tuple of tuple of Transfer
        Transfers from the neighbour, chunk by chunk: one, or one for each stage that stores a part of the first.
    """

    product: Product
    timeline: Timeline
    computed: Ints
    reduced: Ints
    gathered: Ints
    stages: Ints
    arrivals: tuple[tuple[Transfer, ...], ...] = ()

    @property
    def product_ns(self) -> float:
        """When the product is over on the last GPU."""
        return float(self.timeline.end_ns[self.computed].max())

    @property
    def reduced_ns(self) -> float:
        """When the reduce-scatter is."""
        return float(self.timeline.end_ns[self.reduced].max())

    @property
    def gathered_ns(self) -> float:
        """When the all-gather is, and all."""
        return float(self.timeline.end_ns[self.gathered].max())

    @property
    def movement_bytes(self) -> Mapping[str, float]:
        """Bytes that one GPU reads and writes in its memory, by `MOVEMENTS`."""
        graph = self.timeline.graph
        gpus = len(graph.devices) // 2
        by_name = np.bincount(graph.tasks.name, weights=graph.tasks.bytes, minlength=len(graph.names)) / gpus
        moved = dict(zip(graph.names, by_name.tolist(), strict=True))
        return MappingProxyType({name: moved.get(name, 0.0) for name in MOVEMENTS})


def sequential(product: Product, ring: Ring) -> Run:
    """Simulate a sub-layer whose product, reduce-scatter and all-gather follow each other, all on compute units.

    Parameters
    ----------
    product : Product
        Its result written through the cache.
    ring : Ring
        Without tasks.
    """
    workers, chunk_bytes = len(product.written_bytes[0]), float(product.written_bytes[:, 0].sum())
    ends, reads = _stages(product, ring)
    writes = ring.access(GEMM_WRITES, product.written_bytes.sum(axis=1))
    ring.wait(writes, ends)
    ring.wait(reads[1:], writes[:-1])
    reduced = reduce_scatter(ring, writes[-1], workers=workers, chunk_bytes=chunk_bytes)
    gathered = all_gather(ring, reduced, workers=workers, chunk_bytes=chunk_bytes)
    return Run(product, replay(ring.graph()), writes[-1], reduced, gathered, writes)


def fused(product: Product, ring: Ring, update_cost: float) -> Run:
    """Simulate a sub-layer whose chunks are reduced near memory as soon as they are complete.

    Each GPU produces the chunks in the order in which it sends them. The first is stored straight to the neighbour. The
    others are added to local memory. A copy engine sends a chunk on when its tiles are complete and the neighbour's
    partial sum has arrived; the last chunk stays. The all-gather follows on compute units.

    Parameters
    ----------
    product : Product
        Its result written around the cache.
    ring : Ring
        Without tasks.
    update_cost : float
        Time of the memory for a byte that is added, over that of a plain write.

    Notes
    -----
    The part of a stage's result that stays is in memory before the next stage reads. What goes to the neighbour leaves
    beside later stages, while the last-level cache holds what two of them have computed; the stage after these waits.
    """
    done, stores = _computed(product, ring, update_cost)
    sizes, complete = product.written_bytes.sum(axis=0), done[product.last_stages()]
    arrivals = [tuple(stores)]
    for chunk, size in enumerate(sizes.tolist()[1:-1], 1):
        message = Message("RS", size, (RS_READS, size), (RS_WRITES, size), update_cost)
        sent = ring.send(message, arrivals[-1][-1])
        ring.wait(sent.first, complete[chunk])
        for arrival in arrivals[-1]:
            ring.wait_for_arrival(sent.first, arrival)
        arrivals.append((sent,))
    reduced = _end(ring, "RS done", done[-1], arrivals[-1])
    gathered = all_gather(ring, reduced, workers=len(sizes), chunk_bytes=float(sizes[-1]))
    return Run(product, replay(ring.graph()), done[-1], reduced, gathered, done, tuple(arrivals))


def _computed(product: Product, ring: Ring, update_cost: float) -> tuple[Ints, list[Transfer]]:
    """Append the stages; return the last task of each, and the stores to the neighbour."""
    ends, reads = _stages(product, ring)
    away, stays = product.written_bytes[:, 0], product.written_bytes[:, 1:].sum(axis=1)
    local = np.flatnonzero(stays)
    writes = ring.access(GEMM_WRITES, stays[local], update_cost)
    ring.wait(writes, ends[local])
    done = ends.copy()
    done[local] = writes
    ring.wait(reads[1:], done[:-1])
    stores: list[Transfer] = []
    for stage in np.flatnonzero(away).tolist():
        message = Message(STORES, float(away[stage]), ("", 0.0), (RS_WRITES, float(away[stage])), update_cost)
        stores.append(ring.send(message, stores[-1] if stores else None))
        ring.wait(stores[-1].first, ends[stage])
        if stage + 3 < len(reads):
            ring.wait(reads[stage + 3], stores[-1].left)
    return done, stores


def _stages(product: Product, ring: Ring) -> tuple[Ints, Ints]:
    """Append reads and arithmetic, slice by slice of the depth; return the last and the first task of each stage."""
    stages, slices = len(product.read_bytes), product.slices
    sizes = np.repeat(product.read_bytes / slices, slices)
    reads = ring.access(GEMM_READS, sizes, release_ns=product.launch_ns).reshape(stages, slices, ring.gpus)
    times = np.full(stages * slices, product.compute_ns / slices)
    computed = ring.compute(COMPUTES, times).reshape(stages, slices, ring.gpus)
    ring.wait(computed, reads)
    ring.wait(reads[:, 1:], computed[:, :-1])
    return computed[:, -1], reads[:, 0]
