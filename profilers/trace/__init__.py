"""The trace: the shared language of readers, selection and replay.

Read `trace` first (`Trace`, a frozen set of Arrow tables), `quality` (counts of repairs and losses), then `schema`
(the columns of each table) and `store` (a trace as a folder of Parquet files). `steps` has the times of steps,
`kernels` the classes of kernels; `arrays`, `columns` and `compiled` are tools for columns.
"""

from profilers.trace.kernels import CLASSES, classify
from profilers.trace.quality import Quality, QualityNote, quality_notes
from profilers.trace.schema import SCHEMAS, empty_table, make_table
from profilers.trace.steps import StepTimes, job_steps, step_times
from profilers.trace.store import load_trace, save_trace
from profilers.trace.trace import DeviceProperties, Trace, TraceMeta

__all__ = [
    "CLASSES",
    "SCHEMAS",
    "DeviceProperties",
    "Quality",
    "QualityNote",
    "StepTimes",
    "Trace",
    "TraceMeta",
    "classify",
    "empty_table",
    "job_steps",
    "load_trace",
    "make_table",
    "quality_notes",
    "save_trace",
    "step_times",
]
