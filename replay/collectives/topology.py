"""Where the workers of a group are, and which links carry what they exchange."""

from dataclasses import dataclass

from profilers.devices import Device
from profilers.errors import InvalidInputError

__all__ = ["FABRICS", "LINKS", "Topology", "link_bytes_per_s"]

#: How the devices of a node are joined: each to each, by a switch, in a ring, or in pairs (a bridge joins two, and what
#: goes further goes over PCIe).
FABRICS = ("mesh", "switch", "ring", "pairs")
#: The slowest kind of link that a group has to cross.
LINKS = ("device", "pcie", "network")

#: Share of a link's raw rate that NCCL 2.30 counts on, from its table of GB/s a link (src/graph/topo.h): 20 of 25 on
#: Volta and Ampere, 20.6 of 25 on Hopper, 40.1 of 50 on Blackwell; 48 of 64 measured on the links of MI300X.
_SHARE = {"Hopper": 0.824, "Blackwell": 0.802, "CDNA 3": 0.75, "CDNA 4": 0.75}
_ANY_SHARE = 0.8
#: PCIe by NCCL's table: 12 GB/s on generation 3 with 16 lanes; twice that a generation.
_PCIE_GBPS = {"Pascal": 12.0, "Volta": 12.0, "Turing": 12.0, "Hopper": 48.0, "Blackwell": 48.0, "CDNA 3": 48.0}
_ANY_PCIE_GBPS = 24.0


@dataclass(frozen=True)
class Topology:
    """A group of workers, one a device.

    Parameters
    ----------
    n_workers : int
    devices_per_node : int, optional
        Of this group; by default all are in one node.
    node_devices : int, optional
        That a node has, whether or not they are in the group; by default those of the group.
    fabric : str
        One of `FABRICS`.
    nics : int, optional
        Network adapters of a node; by default one for two of its devices.

    Raises
    ------
    InvalidInputError
        A number is below one, the group does not fill its nodes, a node has fewer devices than the group uses there, or
        there is no such fabric.

    Examples
    --------
    >>> Topology(16, 8).nodes, Topology(16, 8).link, Topology(8).link
    (2, 'network', 'device')
    >>> Topology(4, fabric="pairs").link, Topology(2, node_devices=4, fabric="pairs").link
    ('pcie', 'device')
    """

    n_workers: int
    devices_per_node: int = 0
    node_devices: int = 0
    fabric: str = "switch"
    nics: int = 0

    def __post_init__(self) -> None:
        if self.devices_per_node == 0:
            object.__setattr__(self, "devices_per_node", self.n_workers)
        if self.node_devices == 0:
            object.__setattr__(self, "node_devices", self.devices_per_node)
        if self.nics == 0:
            object.__setattr__(self, "nics", max(1, self.node_devices // 2))
        if self.fabric not in FABRICS:
            raise InvalidInputError(f"no fabric is called {self.fabric!r}; there are {', '.join(FABRICS)}")
        if min(self.n_workers, self.devices_per_node, self.node_devices, self.nics) < 1:
            raise InvalidInputError(f"{self}: every number must be 1 or more")
        if self.n_workers % self.devices_per_node or self.devices_per_node > self.node_devices:
            raise InvalidInputError(
                f"{self.n_workers} workers, {self.devices_per_node} in each node of {self.node_devices} devices: "
                "workers must fill whole nodes, and a node must have the devices"
            )

    @property
    def nodes(self) -> int:
        """Nodes that the group spans."""
        return self.n_workers // self.devices_per_node

    @property
    def link(self) -> str:
        """The slowest kind of link that the group crosses: one of `LINKS`."""
        if self.nodes > 1:
            return "network"
        return "pcie" if self.fabric == "pairs" and self.n_workers > 2 else "device"

    @property
    def nics_used(self) -> int:
        """Adapters of a node that the group drives: no more than it has devices there."""
        return min(self.nics, self.devices_per_node)


def link_bytes_per_s(device: Device, link: str) -> float:
    """Return what one device sends over a kind of link, one way, after protocol headers.

    Parameters
    ----------
    device : Device
    link : str
        ``"device"`` (of a device without such links: PCIe) or ``"pcie"``.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> a100 = find_device("A100-SXM4-80GB")
    >>> link_bytes_per_s(a100, "device") / 1e9, link_bytes_per_s(a100, "pcie") / 1e9
    (240.0, 24.0)
    """
    if link == "device" and "link_gbps" in device.figures:
        return device.value("link_gbps") * 1e9 * _SHARE.get(device.architecture, _ANY_SHARE)
    return _PCIE_GBPS.get(device.architecture, _ANY_PCIE_GBPS) * 1e9
