"""`Ring`: alike GPUs under construction, each a device with compute units and a device with memory and a link."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from replay.assembly import Assembly
from replay.graph import Hardware, KernelGraph, TaskKind
from replay.overlap.t3.arbitration import Arbitration, first_come
from replay.overlap.t3.workload import System

__all__ = ["Message", "Ring", "Transfer"]

Ints = npt.NDArray[np.int64]
_ACCESS, _LINK, _OUT, _IN = range(4)  #: streams of a memory: bursts of the product, the link, reads for it, writes
#: Blocks that a sender has read, and a receiver has not yet written, at most.
_BUFFERED = 4
#: Of a message, however small a block is.
_MOST_BLOCKS = 4096


class Message(NamedTuple):
    """What every GPU sends to the next one at one step.

    Parameters
    ----------
    name : str
        Of what crosses the link.
    size_bytes : float
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
    comes, came : array of int64
        By receiver: the first and the last part that is written.
    """

    first: Ints
    left: Ints
    comes: Ints
    came: Ints


@dataclass
class Ring:
    """Tasks of all GPUs of a ring, one of each kind at a time for all of them.

    GPU g is device g; its memory with the link to the next GPU is device gpus + g. All GPUs of a ring do the same at
    the same time, so a ring of one GPU, whose next is itself, stands for one of any number: what comes to it at a
    step is what it sends at that step.

    Parameters
    ----------
    system : System
    gpus : int
        That are simulated.
    arbitration : Arbitration
        Of every memory.
    """

    system: System
    gpus: int
    arbitration: Arbitration = field(default_factory=first_come)
    _work: Assembly = field(default_factory=Assembly)

    def compute(self, name: str, durations_ns: npt.ArrayLike) -> Ints:
        """Let compute units work so long, time after time; return the tasks, shape (times, gpus)."""
        columns: dict[str, npt.ArrayLike] = {"duration_ns": np.repeat(durations_ns, self.gpus), "cu": 1.0}
        return self._tasks((0, 0), name, columns)

    def access(self, name: str, sizes: npt.ArrayLike, cost: float = 1.0, release_ns: float = 0.0) -> Ints:
        """Let compute units read or write memory in bursts at its full bandwidth.

        Parameters
        ----------
        name : str
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
        }
        return self._tasks((self.gpus, _ACCESS), name, {**self.arbitration.product(), **columns})

    def send(self, message: Message, before: Transfer | None = None) -> Transfer:
        """Let each GPU send to the next one, after what it sent before.

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
        self._work.edges(links.ravel(), there.ravel(), lag_ns=lag, from_start=True)
        self._work.edges(there[:-_BUFFERED].ravel(), links[_BUFFERED:].ravel(), lag_ns=lag)
        first = links[0]
        if before is not None:
            self._work.edges(before.left, first)
        if message.reads[1]:
            reads = self._blocks(_OUT, message.reads[0], n, self._memory(message.reads[1], 1.0))
            self._work.edges(reads.ravel(), links.ravel(), from_start=True)
            self._work.edges(links[:-_BUFFERED].ravel(), reads[_BUFFERED:].ravel(), from_start=True)
            first = reads[0]
        return Transfer(first, links[-1], writes[0], writes[-1])

    def wait(self, tasks: Ints, *others: Ints) -> None:
        """Let tasks wait for others of the same GPU, one by one in the same order."""
        for other in others:
            self._work.edges(np.ravel(other), np.ravel(tasks))

    def wait_for_arrival(self, tasks: Ints, transfer: Transfer) -> None:
        """Let tasks wait until all that was sent to their GPU is there."""
        self._work.edges(transfer.came, tasks)
        self._work.edges(np.roll(transfer.left, 1), tasks, lag_ns=self.system.latency_ns)

    def mark(self, name: str) -> Ints:
        """Return tasks that take no time, one a GPU."""
        tasks: Ints = self._tasks((0, 0), name, {"duration_ns": np.zeros(self.gpus), "kind": int(TaskKind.MARK)})[0]
        return tasks

    def graph(self) -> KernelGraph:
        """Return the graph of all GPUs."""
        hardware = Hardware(self.system.device, "user", self.system.device.compute_units, 1.0)
        last = 2 * self.gpus - 1
        note = f"devices {self.gpus} to {last} are the memories of the GPUs, each with the link to the next GPU"
        return self._work.graph(hardware).with_notes([note])

    def _memory(self, size_bytes: float, cost: float) -> dict[str, float]:
        """Return the columns of communication that moves so much of a memory."""
        time = cost * self.system.memory_ns(size_bytes)
        return {**self.arbitration.communication(), "duration_ns": time, "bytes": size_bytes}

    def _blocks(self, stream: int, name: str, n: int, columns: Mapping[str, float]) -> Ints:
        """Append what is split into n blocks, one after the other; return the tasks, shape (n, gpus)."""
        bounds = np.rint(np.linspace(0.0, columns.get("bytes", 0.0), n + 1))
        own: dict[str, npt.ArrayLike] = {
            **columns,
            "duration_ns": np.full(n * self.gpus, columns["duration_ns"] / n),
            "bytes": np.repeat(np.diff(bounds), self.gpus),
            "kind": float(TaskKind.COLLECTIVE),
        }
        blocks = self._tasks((self.gpus, stream), name, own)
        self.wait(blocks[1:], blocks[:-1])
        return blocks

    def _tasks(self, lane: tuple[int, int], name: str, columns: Mapping[str, npt.ArrayLike]) -> Ints:
        """Append tasks on a stream of all GPUs or memories; return them, shape (n, gpus)."""
        first, stream = lane
        lanes = [self._work.lane(device=first + gpu, stream=stream) for gpu in range(self.gpus)]
        times = len(np.asarray(columns["duration_ns"])) // self.gpus
        return self._work.tasks(name, np.tile(lanes, times), columns).reshape(times, self.gpus)
