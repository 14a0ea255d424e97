"""What tasks are called in tables and charts: the class of a kernel, or what the task is."""

import numpy as np
import numpy.typing as npt

from profilers.kernels import CLASSES, COLLECTIVE
from replay.graph import KernelGraph, TaskKind

__all__ = ["HOST", "LABELS", "MEMCPY", "task_labels"]

#: What tasks that are no kernels are called where a kernel has its class.
HOST, MEMCPY = "host", "memory copy"
LABELS: tuple[str, ...] = (*CLASSES, HOST, MEMCPY)


def task_labels(graph: KernelGraph) -> npt.NDArray[np.int64]:
    """Return for each task its index into `LABELS`."""
    tasks = graph.tasks
    label = np.where(tasks.class_ >= 0, tasks.class_, CLASSES.index("other"))
    special = {TaskKind.HOST: HOST, TaskKind.MARK: HOST, TaskKind.COPY: MEMCPY, TaskKind.COLLECTIVE: COLLECTIVE}
    for kind, name in special.items():
        label[tasks.kind == kind] = LABELS.index(name)
    return np.asarray(label)
