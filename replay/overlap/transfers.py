"""A collective as the engine sees it: one kernel on compute units, or copies on DMA engines."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from profilers.devices import Device
from profilers.errors import InvalidInputError
from replay.assembly import Assembly
from replay.collectives import Topology, fastest, machine_of
from replay.graph import COLLECTIVE_KINDS, TaskKind
from replay.parameters import Parameters, load_parameters

__all__ = ["Copies", "Transfer", "add_copies", "copy_columns", "kernel_columns", "kernel_units"]

Ints = npt.NDArray[np.int64]
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
        One worker's whole buffer: what was gathered, all that a worker sends, what is reduced.
    topology : Topology
    device : Device

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
        """What the device sends to all its peers together, and receives from them."""
        n = self.topology.n_workers
        return self.size_bytes * (n - 1) / n

    @property
    def memory_bytes(self) -> float:
        """What the device's memory reads and writes: all that is sent is read, all that is received is written.

        A reduce-scatter reads what it received again, and its own part, and writes the sum.
        """
        part = self.size_bytes / self.topology.n_workers
        adding = self.sent_bytes + 2 * part if self.kind == "reduce_scatter" else 0.0
        return 2 * self.sent_bytes + adding


def kernel_units(kind: str, parameters: Parameters | None = None) -> int:
    """Return with how many compute units a collective's kernel saturates its links.

    Examples
    --------
    >>> kernel_units("all_gather"), kernel_units("all_to_all")
    (32, 64)
    """
    return round((parameters or load_parameters())[_UNITS[kind]])


def kernel_columns(transfer: Transfer, parameters: Parameters | None = None) -> dict[str, float]:
    """Return a collective that runs on compute units, as columns of `replay.assembly.Assembly.tasks`.

    It takes the time of the fastest algorithm and protocol (`replay.collectives.fastest`), uses its links whole, and
    needs `kernel_units` all the time. It receives into a buffer and copies from there (`collective_kernel_passes`), so
    that memory, and the way to it (`l2`), carry more than for copies of DMA engines. What streams through the
    last-level cache holds a share of it in proportion to its rate.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> one = Transfer("all_gather", 2**30, Topology(8, fabric="mesh"), find_device("MI300X"))
    >>> columns = kernel_columns(one)
    >>> bool(columns["link"] == 1.0 and 2.7e6 < columns["duration_ns"] < 2.9e6)
    True
    """
    known = parameters or load_parameters()
    machine = machine_of(transfer.device, transfer.topology)
    sizes = np.array([transfer.size_bytes])
    seconds = float(fastest(transfer.kind, transfer.topology, machine, sizes)[0][0])
    share = kernel_units(transfer.kind, known) / transfer.device.compute_units
    return {
        **_common(transfer),
        "kind": TaskKind.COLLECTIVE,
        "duration_ns": seconds * 1e9,
        "cu": min(share, 1.0),
        "link": 1.0,
        **_memory(transfer, known["collective_kernel_passes"] * transfer.memory_bytes / seconds, known),
    }


def copy_columns(transfer: Transfer, parameters: Parameters | None = None) -> dict[str, object]:
    """Return a collective's copies to its n - 1 peers on DMA engines, each on an engine of its own.

    Columns of `replay.assembly.Assembly.tasks`; what they cost before they start (`dma_command_ns`) is not among them,
    see `add_copies`. A copy takes `dma_latency_ns` and its bytes over one peer's share of the links.

    Raises
    ------
    InvalidInputError
        The collective needs arithmetic, which DMA engines do not have.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> one = Transfer("all_to_all", 2**30, Topology(8, fabric="mesh"), find_device("MI300X"))
    >>> copy_columns(one)["engine"]
    [0, 1, 2, 3, 4, 5, 6]
    """
    if transfer.kind == "reduce_scatter":
        raise InvalidInputError("a reduce_scatter adds, which DMA engines cannot; run it on compute units")
    known, peers = parameters or load_parameters(), transfer.topology.n_workers - 1
    port = machine_of(transfer.device, transfer.topology).port * known["dma_bandwidth_ratio"]
    seconds = known["dma_latency_ns"] / 1e9 + transfer.sent_bytes / port
    rate = transfer.memory_bytes / seconds / peers
    return {
        **_common(transfer),
        "kind": TaskKind.COPY,
        "duration_ns": seconds * 1e9,
        "link": 1.0 / peers,
        "dma": 1.0,
        "engine": list(range(peers)),
        **_memory(transfer, rate, known),
    }


@dataclass(frozen=True)
class Copies:
    """Tasks of a collective on DMA engines.

    Parameters
    ----------
    commands : array of int64, shape (n - 1,)
        The host writes them one after another; what the collective waits for, the first of them waits for.
    copies : array of int64, shape (n - 1,)
        The collective is done when all of them are.
    """

    commands: Ints
    copies: Ints


def add_copies(work: Assembly, lane: int, transfer: Transfer, parameters: Parameters | None = None) -> Copies:
    """Add a collective on DMA engines: each copy waits for its command, each command for the one before it.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.engine import simulate
    >>> work = Assembly()
    >>> one = Transfer("all_gather", 2**30, Topology(8, fabric="mesh"), find_device("MI300X"))
    >>> copies = add_copies(work, work.lane(device=0, stream=1), one).copies
    >>> ends = simulate(work.graph())[1][copies]
    >>> (ends[1:] - ends[:-1]).round().tolist()
    [5500.0, 5500.0, 5500.0, 5500.0, 5500.0, 5500.0]
    """
    known, peers = parameters or load_parameters(), transfer.topology.n_workers - 1
    command = {"kind": TaskKind.COPY, "duration_ns": np.full(peers, known["dma_command_ns"])}
    commands = work.tasks(f"{transfer.kind} command", lane, command)
    work.chain(commands)
    copies = work.tasks(f"{transfer.kind} copy", lane, copy_columns(transfer, known))
    work.edges(commands, copies)
    return Copies(commands, copies)


def _common(transfer: Transfer) -> dict[str, float]:
    return {
        "collective": COLLECTIVE_KINDS.index(transfer.kind),
        "bytes": round(transfer.size_bytes),
        "ranks": transfer.topology.n_workers,
    }


def _memory(transfer: Transfer, rate: float, known: Parameters) -> dict[str, float]:
    share = min(rate / (transfer.device.memory_bytes_per_s * known["memory_efficiency_mixed"]), 1.0)
    return {"hbm": share, "l2": share, "footprint": share}
