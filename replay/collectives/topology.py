"""Where the workers of a group are, and which links carry what they exchange."""

import operator
from dataclasses import dataclass

from profilers.devices import Device
from profilers.errors import InvalidInputError

__all__ = ["FABRICS", "LINKS", "MOST_BYTES", "MOST_WORKERS", "Topology", "link_bytes_per_s", "raw_link_bytes_per_s"]

#: How the devices of a node are joined: each to each, by a switch, in a ring, or in pairs (a bridge joins two, and what
#: goes further goes over PCIe).
FABRICS = ("mesh", "switch", "ring", "pairs")
#: The slowest kind of link that a group has to cross.
LINKS = ("device", "pcie", "network")
#: More is a number in another unit, or a mistake.
MOST_BYTES, MOST_WORKERS = 2**50, 2**20

#: Share of a link's raw rate that NCCL 2.30 counts on, from its table of GB/s a link (src/graph/topo.h): 20 of 25 on
#: Volta and Ampere, 20.6 of 25 on Hopper, 40.1 of 50 on Blackwell; 48 of 64 measured on the links of MI300X.
_SHARE = {"Hopper": 0.824, "Blackwell": 0.802, "CDNA 3": 0.75, "CDNA 4": 0.75}
_ANY_SHARE = 0.8
#: PCIe by NCCL's table: 12 GB/s on generation 3 with 16 lanes, which carry 16 before headers; twice that a generation.
_PCIE_GBPS = {"Pascal": 12.0, "Volta": 12.0, "Turing": 12.0, "Hopper": 48.0, "Blackwell": 48.0, "CDNA 3": 48.0}
_ANY_PCIE_GBPS = 24.0
_PCIE_SHARE = 0.75


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
        Network adapters of a node for traffic between devices; by default one for two of its devices, as the measured
        nodes behave and many rented ones are built. A DGX A100 or H100 has one a device: say so.

    Raises
    ------
    InvalidInputError
        A number is not whole, or not 1 to 2^20 (0 stands for the default), the group does not fill its nodes, a node
        has fewer devices than the group uses there, or there is no such fabric.

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
        for name in ("n_workers", "devices_per_node", "node_devices", "nics"):
            least = 1 if name == "n_workers" else 0
            object.__setattr__(self, name, _whole(name, getattr(self, name), least))
        if self.devices_per_node == 0:
            object.__setattr__(self, "devices_per_node", self.n_workers)
        if self.node_devices == 0:
            object.__setattr__(self, "node_devices", self.devices_per_node)
        if self.nics == 0:
            object.__setattr__(self, "nics", max(1, self.node_devices // 2))
        if self.fabric not in FABRICS:
            raise InvalidInputError(f"no fabric is called {self.fabric!r}; there are {', '.join(FABRICS)}")
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


def _whole(name: str, value: object, least: int) -> int:
    """Return a whole number, of Python or NumPy."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or not least <= number <= MOST_WORKERS:
        shown = "beyond that" if isinstance(value, int) and abs(value) > MOST_BYTES else f"{value!r:.40}"
        raise InvalidInputError(f"{name} is {shown}; it must be a whole number, 1 to {MOST_WORKERS}")
    return number


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


def raw_link_bytes_per_s(device: Device, link: str) -> float:
    """Return what one device sends over a kind of link, one way, before any header: nothing is faster.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> a100 = find_device("A100-SXM4-80GB")
    >>> raw_link_bytes_per_s(a100, "device") / 1e9, raw_link_bytes_per_s(a100, "pcie") / 1e9
    (300.0, 32.0)
    """
    if link == "device" and "link_gbps" in device.figures:
        return device.value("link_gbps") * 1e9
    return link_bytes_per_s(device, "pcie") / _PCIE_SHARE
