"""The processes of an export: each one with work on a GPU is a rank."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from profilers.arrays import MISSING, Ints
from profilers.combinations import combinations
from profilers.nsys.tables import Tables, until_damage, whole_numbers
from profilers.schema import OWN_RANK

__all__ = ["Processes", "process_of"]

_PID_BITS = 24


def process_of(identifiers: Ints) -> Ints:
    """Return the process in global process or thread identifiers: its number, and above it the host."""
    return np.where(identifiers == MISSING, MISSING, identifiers >> _PID_BITS)


class Processes:
    """Which process is which rank.

    Parameters
    ----------
    pairs : sequence of (process, device)
        Every pair between which there is work.
    """

    def __init__(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._known = np.unique([process for process, _ in pairs]).astype(np.int64)
        #: Ranks and the devices that they use; one process alone is the rank that its file will be given.
        self.devices = sorted({(self._rank(process), device) for process, device in pairs})
        #: All of them, nothing for one process alone.
        self.ranks = tuple(range(len(self._known))) if len(self._known) > 1 else ()

    @classmethod
    def of(cls, tables: Tables, names: Sequence[str]) -> "Processes":
        """Return the processes that these tables of GPU work name.

        Correlation ids must be told apart by process before the first row is given on, so the tables are read
        twice, the first time for two columns.
        """
        pairs: set[tuple[int, int]] = set()
        for name in names:
            for batch in until_damage(tables.read(name, ["globalPid", "deviceId"])):
                process, device = process_of(whole_numbers(batch["globalPid"])), whole_numbers(batch["deviceId"])
                firsts = combinations(np.stack([process, device]))[1]
                pairs.update(zip(process[firsts].tolist(), device[firsts].tolist(), strict=True))
        return cls([pair for pair in pairs if pair[0] != MISSING])

    def _rank(self, process: int) -> int:
        return int(np.searchsorted(self._known, process)) if len(self._known) > 1 else OWN_RANK

    def rank(self, process: Ints) -> Ints:
        """Return the rank of each process; one without GPU work belongs to the first."""
        if len(self._known) < 2:
            return np.full(len(process), OWN_RANK)
        at = np.minimum(np.searchsorted(self._known, process), len(self._known) - 1)
        return np.where(self._known[at] == process, at, 0)

    def own(self, process: Ints) -> pa.Array:
        """Return whether what a process calls can have caused the work of its rank."""
        return np.isin(process, self._known) | (process == MISSING) | (len(self._known) == 0)
