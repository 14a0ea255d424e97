"""Simulate DRAM: banks with rows, channels with a scheduler, and the time that a sequence of requests takes."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import Ints


@dataclass(frozen=True)
class Traffic:
    """Requests to DRAM, in order. Both are arrays of shape (n,).

    Parameters
    ----------
    address : array of int64
        First byte; a request has the bytes of one access of the DRAM (`Dram.access_bytes`).
    is_write : array of uint8
        1 for a write, 0 for a read.
    """

    address: Ints
    is_write: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True)
class Dram:
    """DRAM of a device: geometry, timing in cycles of its clock, and the order of address bits.

    Parameters
    ----------
    name : str
        Standard, such as ``"HBM2"``.
    channels : int
        Independent channels of the device; pseudo-channels count as channels.
    bank_groups, banks : int
        Bank groups of a channel, and banks of a group.
    rows, row_bytes : int
        Rows of a bank, and bytes of a row.
    access_bytes : int
        Bytes of a request: bus width times burst length.
    clock_hz : float
        Clock of commands.
    burst_cycles : float
        Cycles in which the data of a request occupy the bus of a channel.
    """

    name: str
    channels: int
    bank_groups: int
    banks: int
    rows: int
    row_bytes: int
    access_bytes: int
    clock_hz: float
    burst_cycles: float
