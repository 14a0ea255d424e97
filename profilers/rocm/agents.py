"""The agents of a machine, as rocprofv3 lists them: GPUs get their index among the GPUs, CPUs none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from profilers.arrays import MISSING, Ints
from profilers.rocm.block import narrow
from profilers.trace import DeviceProperties

__all__ = ["Agent", "Agents"]


@dataclass(frozen=True)
class Agent:
    """One agent.

    Parameters
    ----------
    key : int
        What events call it by.
    order : int
        Its place among the agents of the machine.
    gpu : bool
    name : str
    compute_units, memory_bytes : int, optional
    """

    key: int
    order: int
    gpu: bool
    name: str = ""
    compute_units: int | None = None
    memory_bytes: int | None = None


class Agents:
    """Which agent is which device.

    Parameters
    ----------
    found : sequence of Agent
        In any order. Where no agent is a GPU, as in recordings that list none, an agent's own number is its
        device.

    Examples
    --------
    >>> agents = Agents([Agent(7, 0, False), Agent(9, 2, True), Agent(8, 1, True)])
    >>> agents.devices(np.array([8, 9])).tolist(), (agents.devices(np.array([7])) == MISSING).tolist()
    ([0, 1], [True])
    """

    def __init__(self, found: Sequence[Agent]) -> None:
        gpus = sorted((agent for agent in found if agent.gpu), key=lambda agent: (agent.order, agent.key))
        self._gpus = list({agent.key: agent for agent in gpus}.values())
        self._index: Mapping[int, int] = {agent.key: i for i, agent in enumerate(self._gpus)}

    @property
    def known(self) -> bool:
        """Whether the recording lists its GPUs."""
        return bool(self._index)

    def devices(self, keys: Ints) -> Ints:
        """Return the device of each key, `MISSING` for what is no GPU."""
        if not self._index:
            return narrow(keys)
        distinct, which = np.unique(keys, return_inverse=True)
        return np.array([self._index.get(key, int(MISSING)) for key in distinct.tolist()], np.int64)[which]

    def of_copies(self, source: Ints, target: Ints) -> tuple[Ints, np.typing.NDArray[np.bool_]]:
        """Return the device of each copy, its source where that is a GPU, and whether it goes to another GPU."""
        one, other = self.devices(source), self.devices(target)
        peers = (one != MISSING) & (other != MISSING) & (one != other) & bool(self._index)
        return np.where(one == MISSING, other, one), peers

    def properties(self, rank: int) -> tuple[DeviceProperties, ...]:
        """Return what is known of the GPUs."""
        return tuple(
            DeviceProperties(rank, i, agent.name, agent.compute_units or None, agent.memory_bytes or None)
            for i, agent in enumerate(self._gpus)
        )
