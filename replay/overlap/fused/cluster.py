"""`Cluster`: devices in nodes, the links that join those of a node, and the adapters that join nodes."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from profilers.devices import Device
from profilers.errors import InvalidInputError
from replay.collectives import Topology, machine_of

__all__ = ["Cluster"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cluster:
    """A group of ranks, one a device, that exchange what they compute.

    The ranks are the same for each other: a destination is told by its offset, which is its node and device counted
    from those of the sender, in a circle. Offset 0 is the sender itself.

    Parameters
    ----------
    device : Device
    topology : Topology
        All nodes, fabric ``"mesh"`` or ``"switch"``.
    adapter_bytes_per_s : float
        What one network adapter sends, one way, after headers.

    Raises
    ------
    InvalidInputError
        Another fabric, or an adapter that sends nothing.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> nodes = Cluster(find_device("MI210"), Topology(8, 4, fabric="mesh", nics=4), 23.5e9)
    >>> nodes.ranks, nodes.network_offsets.tolist(), nodes.peer_offsets.tolist()
    (8, [4, 5, 6, 7], [1, 2, 3])
    >>> int(nodes.receiver(6, 5))
    3
    """

    device: Device
    topology: Topology
    adapter_bytes_per_s: float = 23.5e9

    def __post_init__(self) -> None:
        if self.topology.fabric not in ("mesh", "switch"):
            raise InvalidInputError(f"devices joined in a {self.topology.fabric!r}; give 'mesh' or 'switch'")
        if not self.adapter_bytes_per_s > 0:
            raise InvalidInputError(f"adapters of {self.adapter_bytes_per_s} bytes/s; give more than none")

    @property
    def ranks(self) -> int:
        """Devices of all nodes."""
        return self.topology.n_workers

    @property
    def devices_per_node(self) -> int:
        """Devices of one node."""
        return self.topology.devices_per_node

    @property
    def peer_offsets(self) -> Ints:
        """The other devices of the node."""
        return np.arange(1, self.devices_per_node)

    @property
    def network_offsets(self) -> Ints:
        """The devices of other nodes."""
        return np.arange(self.devices_per_node, self.ranks)

    @cached_property
    def peer_bytes_per_s(self) -> float:
        """What a device sends to one other of its node; over a switch, to all of them together."""
        return machine_of(self.device, self.topology).peer

    @cached_property
    def network_bytes_per_s(self) -> float:
        """What a device sends over the adapters of its node when all its devices send."""
        return self.topology.nics_used * self.adapter_bytes_per_s / self.devices_per_node

    @property
    def network_link(self) -> int:
        """The number, among the links of a device, of its part of the adapters."""
        return max(self.devices_per_node - 1, 1)

    def links(self, offsets: npt.ArrayLike) -> Ints:
        """Return the link that carries what goes to each offset."""
        to = np.asarray(offsets, dtype=np.int64)
        inside = to - 1 if self.topology.fabric == "mesh" else np.zeros_like(to)
        return np.where(to >= self.devices_per_node, self.network_link, inside)

    def bytes_per_s(self, offsets: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return what the link to each offset carries."""
        far = np.asarray(offsets) >= self.devices_per_node
        return np.where(far, self.network_bytes_per_s, self.peer_bytes_per_s)

    def exchange_seconds(self, size: float) -> float:
        """Return what the busiest link of a device takes to carry `size` bytes to every other device."""
        others = np.arange(1, self.ranks)
        return float(np.bincount(self.links(others), size / self.bytes_per_s(others), minlength=1).max())

    def receiver(self, rank: int, offsets: npt.ArrayLike) -> Ints:
        """Return the rank at each offset from `rank`."""
        each, to = self.devices_per_node, np.asarray(offsets, dtype=np.int64)
        node = (rank // each + to // each) % self.topology.nodes
        return np.asarray(node * each + (rank % each + to % each) % each)

    def offset(self, rank: int, receivers: npt.ArrayLike) -> Ints:
        """Return the offset from `rank` to each receiver."""
        each, to = self.devices_per_node, np.asarray(receivers, dtype=np.int64)
        node = (to // each - rank // each) % self.topology.nodes
        return np.asarray(node * each + (to % each - rank % each) % each)
