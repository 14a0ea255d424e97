"""What rocprofv3 says of memory copies in each of its formats, as columns."""

from typing import Any

import numpy as np
import pyarrow as pa

from profilers.arrays import MISSING, Ints
from profilers.rocm.agents import Agents
from profilers.rocm.block import constant, renamed
from profilers.rocm.words import copy_direction

__all__ = ["copy_columns"]


def copy_columns(words: pa.Array, source: Ints, target: Ints, agents: Agents) -> dict[str, Any]:
    """Return name, direction and device of copies.

    Parameters
    ----------
    words : array of string
        As ``MEMORY_COPY_HOST_TO_DEVICE``.
    source, target : array of int64
        Keys of the agents; where no agent is known to be a GPU, the direction tells which one is.
    agents : Agents
    """
    words = words.fill_null("")
    direction = renamed(words, copy_direction).cast(pa.string())
    device, peers = agents.of_copies(source, target)
    if not agents.known:
        to_device = np.array(direction.to_numpy(zero_copy_only=False) == "HtoD")
        device = np.where(to_device, agents.devices(target), agents.devices(source))
    between = pa.array(peers & np.array(direction.to_numpy(zero_copy_only=False) == "DtoD"))
    peer_to_peer = constant("PtoP", len(words)).cast(pa.string())
    direction = pa.compute.if_else(between, peer_to_peer, direction)
    return {"name": words, "direction": direction.dictionary_encode(), "device": np.where(device < 0, MISSING, device)}
