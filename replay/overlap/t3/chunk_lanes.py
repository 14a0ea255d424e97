"""`lanes`: when the stages of a product ran and its chunks were complete, sent and there, to be drawn."""

import numpy as np
import pyarrow as pa

from replay.overlap.t3.outcome import Run

__all__ = ["lanes"]


def lanes(run: Run) -> pa.Table:
    """Return what GPU 0 did, a row for each stage and each step of a chunk.

    Parameters
    ----------
    run : Run

    Returns
    -------
    pyarrow.Table
        `lane`: ``"stages"``; ``"chunks computed"`` with the stages in which a chunk is; ``"chunks come"``, the
        neighbour's partial sum of a chunk, written to memory; ``"reduce-scatter"`` and ``"all-gather"``, what is left
        of them after the product and after the reduce-scatter. `number`: of the stage, or of the chunk in the order
        of production. `start_ns`, `end_ns`.

    Examples
    --------
    >>> from replay.overlap.t3 import find_sublayer, study
    >>> lanes(study(find_sublayer("t_nlg/op/8")).t3)["lane"].unique().to_pylist()
    ['stages', 'chunks computed', 'chunks come', 'reduce-scatter', 'all-gather']
    """
    start, end, parts = run.timeline.start_ns, run.timeline.end_ns, run.parts
    begins, ends = start[parts.begins[:, 0]], end[parts.stages[:, 0]]
    first = np.argmax(run.product.tiles > 0, axis=0)
    rows = [("stages", i, *times) for i, times in enumerate(zip(begins, ends, strict=True))]
    for chunk, stages in enumerate(zip(first, run.product.last_stages(), strict=True)):
        rows.append(("chunks computed", chunk, begins[stages[0]], ends[stages[1]]))
    for chunk, transfers in enumerate(parts.arrivals, 1):
        rows.append(("chunks come", chunk, start[transfers[0].comes[0]], end[transfers[-1].came[0]]))
    over = [end[tasks[0]] for tasks in (parts.product, parts.reduced, parts.gathered)]
    rows += [("reduce-scatter", 0, over[0], over[1]), ("all-gather", 0, over[1], over[2])]
    columns = [list(column) for column in zip(*rows, strict=True)]
    types = (pa.string(), pa.int64(), pa.float64(), pa.float64())
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]
    return pa.table(dict(zip(("lane", "number", "start_ns", "end_ns"), arrays, strict=True)))
