"""The least time that links allow: nothing is faster, whatever the algorithm."""

import numpy as np
import numpy.typing as npt

from profilers.devices import Device
from replay.collectives.algorithms import algorithms_of, busiest_volume, phases_of
from replay.collectives.topology import Topology, raw_link_bytes_per_s

__all__ = ["least_seconds", "least_volume"]

Floats = npt.NDArray[np.float64]

#: Whose switches add up what they pass on (NVLink SHARP, from the third NVSwitch on).
_ADDING = ("Hopper", "Blackwell")


def least_seconds(kind: str, sizes: Floats, topology: Topology, device: Device) -> Floats:
    """Return what the busiest links need for the bytes alone, at their raw rates.

    A network is as fast as what its adapters are plugged into: 16 lanes of PCIe each.

    Parameters
    ----------
    kind : str
    sizes : array of float64, shape (n,)
        Bytes.
    topology : Topology
        Of two workers or more.
    device : Device

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> a100 = find_device("A100-SXM4-80GB")
    >>> float(least_seconds("all_reduce", np.array([32e9]), Topology(4, fabric="pairs"), a100)[0])  # PCIe: 32 GB/s
    1.5
    """
    if topology.link == "network":
        rate = topology.nics_used * raw_link_bytes_per_s(device, "pcie")
    else:
        rate = raw_link_bytes_per_s(device, topology.link)
        if topology.fabric == "mesh" and topology.node_devices > 1:
            rate *= (topology.devices_per_node - 1) / (topology.node_devices - 1)
    return np.asarray(least_volume(kind, topology, device) * sizes / rate)


def least_volume(kind: str, topology: Topology, device: Device) -> float:
    """Return bytes that a device (between nodes: all adapters of a node) sends at least, over the size.

    That of the ring, or of the hierarchy between nodes; of an all-reduce only the buffer itself where switches or
    networks add up (NVLink SHARP, InfiniBand SHARP).

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> [least_volume("all_reduce", Topology(4), find_device(name)) for name in ("A100", "H100")]
    [1.5, 1.0]
    """
    if topology.nodes > 1 and "hierarchical" in algorithms_of(kind, topology):
        volume = phases_of(kind, "hierarchical", topology)[-1].volume
    elif kind == "all_to_all" and topology.nodes == 1:
        volume = (topology.n_workers - 1) / topology.n_workers
    else:
        volume = busiest_volume(kind, topology)
    adds_up = topology.nodes > 1 or (topology.fabric == "switch" and device.architecture in _ADDING)
    return min(volume, 1.0) if kind == "all_reduce" and adds_up else volume
