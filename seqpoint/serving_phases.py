"""What `seqpoint serving` shows: the steps of serving by phase, and the classes of kernels in each."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seqpoint.characterization import Characterization
from seqpoint.kernel_facts import KERNEL_PHASES
from seqpoint.notebook import DataFrame, Result, Table, data_frame
from seqpoint.serving import ServingRow, serving_table
from seqpoint.work_rows import WorkRow, work_table


@dataclass(frozen=True, repr=False)
class ServingPhases(Result):
    """Steps of serving by phase, and where the time of each phase goes.

    Parameters
    ----------
    rows : tuple of ServingRow
        A row for each phase.
    classes : mapping of str to tuple of WorkRow
        Kernels of each phase by class, most time first; shares are of the phase.
    """

    heading = "Serving"

    rows: tuple[ServingRow, ...]
    classes: dict[str, tuple[WorkRow, ...]]

    def summary(self) -> list[str]:
        """Return a sentence for each phase."""
        if self.rows:
            return [row.sentence() for row in self.rows]
        return [
            "no annotation of the trace states the requests of a step; docs/serving.md says how vLLM, SGLang, ATOM and "
            "TensorRT-LLM write them"
        ]

    def table(self) -> DataFrame:
        """Return a row for each phase."""
        return data_frame([row.to_dict() for row in self.rows])

    def tables(self) -> list[Table]:
        """Return the phases, and the classes of kernels in each."""
        of_classes = [
            replace(work_table("class", rows), title=f"Classes by time, {phase}")
            for phase, rows in self.classes.items()
        ]
        return [serving_table(self.rows), *of_classes] if self.rows else []

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint serving --json` prints."""
        classes = {phase: [row.to_dict() for row in rows] for phase, rows in self.classes.items()}
        return {"serving": [row.to_dict() for row in self.rows], "classes": classes}


def serving_phases(whole: Characterization) -> ServingPhases:
    """Return the steps of serving of a trace, and where the time of each phase goes.

    Parameters
    ----------
    whole : Characterization
        The trace by operators.
    """
    classes = {}
    for row in whole.serving:
        mine = np.flatnonzero(whole.facts.phase == KERNEL_PHASES.index(row.phase))
        classes[row.phase] = replace(whole, facts=whole.facts.of_rows(mine)).rows("class")
    return ServingPhases(whole.serving, classes)
