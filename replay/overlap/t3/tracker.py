"""The tracker: how many tiles a memory controller has to count the updates of at one time."""

import numpy as np
import numpy.typing as npt

from replay.overlap.t3.outcome import Run

__all__ = ["tiles_per_entry", "tracked_tiles"]

Floats = npt.NDArray[np.float64]


def tracked_tiles(run: Run) -> int:
    """Return the most tiles of GPU 0 that have got one of their two updates at one time.

    A tile of a chunk that is added to in memory is updated by the GPU's own workgroup and by the neighbour's partial
    sum. It holds an entry from the first of them to the second. What comes from the neighbour is taken to come tile
    by tile.

    Parameters
    ----------
    run : Run
        With T3: of one without, where no tile is updated twice, 0 are tracked.

    Examples
    --------
    >>> from replay.overlap.t3 import find_sublayer, study
    >>> tracked_tiles(study(find_sublayer("t_nlg/fc2/8")).t3_mca)
    266
    """
    product, parts, timeline = run.product, run.parts, run.timeline
    if not parts.arrivals:
        return 0
    opens, closes = [], []
    for chunk in range(1, product.tiles.shape[1]):
        tiles = product.tiles[:, chunk]
        own = np.repeat(timeline.end_ns[parts.stages[:, 0]], tiles)
        transfers = parts.arrivals[chunk - 1]
        begin, end = timeline.start_ns[transfers[0].comes[0]], timeline.end_ns[transfers[-1].came[0]]
        others = begin + (end - begin) * np.arange(1, len(own) + 1) / len(own)
        opens.append(np.minimum(own, others))
        closes.append(np.maximum(own, others))
    return _most_at_once(np.concatenate(opens), np.concatenate(closes))


def tiles_per_entry(tiles: int, entries: int) -> int:
    """Return how many neighbouring tiles share an entry where there are more tiles than entries.

    An entry then counts the updates of all its tiles. A chunk is complete when all its entries are, no later than
    before: what is lost is the place of a missing update, not time.

    Examples
    --------
    >>> tiles_per_entry(200, 256), tiles_per_entry(500, 256)
    (1, 2)
    """
    return max(1, -(-tiles // entries))


def _most_at_once(opens: Floats, closes: Floats) -> int:
    """Return the most intervals that overlap; one that ends when another begins is over."""
    times = np.concatenate([opens, closes])
    steps = np.repeat([1, -1], [len(opens), len(closes)])
    order = np.lexsort((steps, times))
    return int(np.cumsum(steps[order]).max(initial=0))
