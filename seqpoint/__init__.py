"""Trace-driven profiling and what-if projection of GPU jobs.

    import seqpoint as sp

    trace = sp.open("rank*.json.gz")          # trace files of any profiler
    sp.advise(trace)                          # what limits the step, and what to do first
    sp.describe(trace)                        # where the time goes
    points = sp.select(trace, max_points=8)   # the iterations that represent the run
    sp.project(trace, ["overlap:ideal", "scale_device:MI355X"])

The functions are those of `seqpoint.front_door`; they load when they are first used. Read on in `profilers.trace` (what
a trace is), `seqpoint.selection` (SeqPoint), `replay.graph` and `replay.engine` (how a trace is timed anew), and
`replay.what_ifs`.
"""

from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from profilers.errors import SeqPointError
    from profilers.ingest.pipeline import IngestOptions
    from profilers.trace import Trace
    from replay.formats import quantize
    from replay.workloads import Dlrm, InferenceJob, Layout, TrainingJob, Transformer
    from seqpoint.front_door import *
    from seqpoint.installation import doctor
    from seqpoint.job_scaling import scaling
    from seqpoint.kernel_simulation import KernelOptions, simulate_kernel
    from seqpoint.memory_simulation import MemoryOptions
    from seqpoint.opening import survey
    from seqpoint.projecting import ProjectOptions
    from seqpoint.queries import sql
    from seqpoint.selection.selecting import SelectOptions
    from seqpoint.step_analysis import stragglers
    from seqpoint.sweeps import sweep
    from seqpoint.weight_copying import weight_copies

__all__ = [
    "Dlrm",
    "InferenceJob",
    "IngestOptions",
    "KernelOptions",
    "Layout",
    "MemoryOptions",
    "ProjectOptions",
    "SelectOptions",
    "SeqPointError",
    "Trace",
    "TrainingJob",
    "Transformer",
    "advise",
    "analyze",
    "characterize",
    "compare",
    "describe",
    "devices",
    "doctor",
    "estimate",
    "gemms",
    "ingest",
    "iterations",
    "lengths",
    "open",
    "predict",
    "predict_collective",
    "predict_step",
    "project",
    "quantize",
    "readers",
    "replay",
    "report",
    "reproduce",
    "sample_kernels",
    "scaling",
    "select",
    "serve",
    "simulate_gemms",
    "simulate_kernel",
    "simulate_memory",
    "sql",
    "stragglers",
    "survey",
    "sweep",
    "synthesize",
    "validate",
    "weight_copies",
    "what_ifs",
]

#: Modules of the names that are not in `seqpoint.front_door`.
_MODULES = {
    "IngestOptions": "profilers.ingest.pipeline",
    "KernelOptions": "seqpoint.kernel_simulation",
    "MemoryOptions": "seqpoint.memory_simulation",
    "ProjectOptions": "seqpoint.projecting",
    "doctor": "seqpoint.installation",
    "SelectOptions": "seqpoint.selection.selecting",
    "SeqPointError": "profilers.errors",
    "Trace": "profilers.trace",
    "quantize": "replay.formats",
    "sql": "seqpoint.queries",
    "stragglers": "seqpoint.step_analysis",
    "scaling": "seqpoint.job_scaling",
    "simulate_kernel": "seqpoint.kernel_simulation",
    "survey": "seqpoint.opening",
    "sweep": "seqpoint.sweeps",
    "weight_copies": "seqpoint.weight_copying",
    **dict.fromkeys(("Dlrm", "InferenceJob", "Layout", "TrainingJob", "Transformer"), "replay.workloads"),
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used, so that the command line starts quickly; functions check arguments."""
    if name == "__version__":
        return import_module("importlib.metadata").version("seqpoint")
    if name not in __all__:
        raise AttributeError(f"module 'seqpoint' has no attribute {name!r}")
    value = getattr(import_module(_MODULES.get(name, "seqpoint.front_door")), name)
    if isinstance(value, FunctionType) and name != "quantize":  # which checks its arguments, arrays of any library
        value = import_module("seqpoint.arguments").checked(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__all__, "__version__"]
