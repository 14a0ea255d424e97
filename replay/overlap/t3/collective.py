"""Ring collectives step by step: reduce-scatter on compute units or near memory, and all-gather."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from replay.overlap.t3.ring import Message, Ring, Transfer

__all__ = [
    "AG_READS",
    "AG_WRITES",
    "RS_READS",
    "RS_WRITES",
    "Part",
    "all_gather",
    "near_memory_reduce_scatter",
    "reduce_scatter",
]

Ints = npt.NDArray[np.int64]

#: Names of tasks that read or write memory.
RS_READS, RS_WRITES, AG_READS, AG_WRITES = "RS reads", "RS writes", "AG reads", "AG writes"


class Part(NamedTuple):
    """What a GPU sends at a step: a buffer over the number of workers.

    Parameters
    ----------
    workers : int
    bytes : float
    """

    workers: int
    bytes: float


def reduce_scatter(ring: Ring, part: Part, after: Ints) -> Ints:
    """Append a reduce-scatter on compute units; return what it ends with, by GPU.

    At each step but the first a GPU reads the partial sum that has come and its own part, and sends the sum; at the
    end it reads both once more and writes the result.

    Parameters
    ----------
    ring : Ring
    part : Part
    after : array of int64, shape (gpus,)
        What each GPU waits for.

    Notes
    -----
    Of a buffer of S bytes, N GPUs read (1 + 2 (N - 2) + 2) S / N = (2 N - 1) S / N each, and write S.
    """
    last = None
    for step in range(part.workers - 1):
        reads = (RS_READS, part.bytes * (1 if step == 0 else 2))
        last = _step(ring, Message("RS", part.bytes, reads, (RS_WRITES, part.bytes)), (after, last))
    read: Ints = ring.access(RS_READS, [2 * part.bytes])[0]
    written: Ints = ring.access(RS_WRITES, [part.bytes])[0]
    if last is not None:
        ring.wait_for_arrival(read, last)
    ring.wait(written, read)
    return written


def near_memory_reduce_scatter(ring: Ring, part: Part, after: Ints) -> Ints:
    """Append a reduce-scatter by copy engines whose writes add to what is in memory; return what it ends with, by GPU.

    Notes
    -----
    Every step reads one chunk, the last needs no reduction: against `reduce_scatter` this saves 3 S / (N B) beside
    (N - 1) S / (N L), a share of 3 L / (B (N - 1)), with L and B the bandwidths of link and memory.
    """
    last = None
    for _ in range(part.workers - 1):
        message = Message("RS", part.bytes, (RS_READS, part.bytes), (RS_WRITES, part.bytes))
        last = _step(ring, message, (after, last))
    return _end(ring, "RS done", (after, last))


def all_gather(ring: Ring, part: Part, after: Ints) -> Ints:
    """Append an all-gather on compute units; return what it ends with, by GPU."""
    last = None
    for _ in range(part.workers - 1):
        message = Message("AG", part.bytes, (AG_READS, part.bytes), (AG_WRITES, part.bytes))
        last = _step(ring, message, (after, last))
    return _end(ring, "AG done", (after, last))


def _step(ring: Ring, message: Message, before: tuple[Ints, Transfer | None]) -> Transfer:
    """Append a step, after tasks and the step before."""
    after, last = before
    sent = ring.send(message, last)
    ring.wait(sent.first, after)
    if last is not None:
        ring.wait_for_arrival(sent.first, last)
    return sent


def _end(ring: Ring, name: str, before: tuple[Ints, Transfer | None]) -> Ints:
    after, last = before
    done = ring.mark(name)
    ring.wait(done, after)
    if last is not None:
        ring.wait_for_arrival(done, last)
    return done
