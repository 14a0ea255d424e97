"""Regenerate tests/accuracy/retimed.csv: one job on two GPUs, each trace re-timed for the other device.

    python benchmarks/durations/accuracy_of_retiming.py ../shared/data/traces/kineto > tests/accuracy/retimed.csv

Total time of kernels, ms, over the iterations that both traces hold whole (of the V100's, 56 ms of kernels belong to an
iteration that began before). Collectives are left out, since they wait for other ranks. A row of class `total` is the
case; the rows below it are its classes. `low` and `high` are the central 90 % over the ranges of the parameters.

The other trace is used to compare, never to re-time. V100 -> A100 is for information: the V100's products were launched
by compiled functions, whose shapes no trace has, and it cannot tell that the A100 computed most of them in TF32. With
`change_dtype:fp32->tf32` a user who knows says so; the case is in the table once more with it.
"""

import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np

from profilers.errors import InvalidInputError
from profilers.ingest.pipeline import IngestOptions, open_trace
from profilers.trace.arrays import Floats, integers
from profilers.trace.kernels import CLASSES
from replay.calibration.parameters import Parameters
from replay.costs.shipped import load_parameters
from replay.from_trace import build_graph, index_trace
from replay.graph.graph import KernelGraph, TaskKind
from replay.what_ifs import WhatIf, change_dtype, compose, scale_device
from seqpoint.validation.suites import ValidationRow

COLUMNS = ("case", "class", "traced", "measured", "retimed", "error", "low", "high", "limit")
MODELS = ("Falconsai_nsfw_image_detection", "Qwen_Qwen1.5-0.5B-Chat", "gaunernst_bert-small-uncased")
PAIRS = (
    *((f"tracelens/h100/{name}.json.gz", f"tracelens/mi300/{name}.json.gz") for name in MODELS),
    ("hta/trace_diff_a100.json.gz", "hta/trace_diff_v100.json.gz"),
)
INFORMATION = ("trace_diff_v100", "trace_diff_v100, fp32->tf32")


#: Error of a job's total kernel time that is allowed.
LIMIT = 0.15
#: Draws of the parameters for the interval.
_DRAWS = 200
_COLLECTIVE = CLASSES.index("collective")


@dataclass(frozen=True)
class RetimingScore:
    """Total kernel time of a job on a device, from its trace on another and as measured.

    Parameters
    ----------
    case, source, target : str
        What was compared; the devices' names.
    traced_ns, measured_ns, retimed_ns : float
        On the source; on the target; the trace of the source re-timed for the target.
    low_ns, high_ns : float
        Central 90 % of the re-timed total over the ranges of the parameters.
    by_class : mapping of str to (traced, measured, retimed)
        In ns, by class of kernel.
    """

    case: str
    source: str
    target: str
    traced_ns: float
    measured_ns: float
    retimed_ns: float
    low_ns: float
    high_ns: float
    by_class: Mapping[str, tuple[float, float, float]]

    @property
    def error(self) -> float:
        """Re-timed over measured, less one."""
        return self.retimed_ns / self.measured_ns - 1


def score_retiming(
    case: str,
    traced: Sequence[KernelGraph],
    measured: Sequence[KernelGraph],
    then: WhatIf | None = None,
    draws: int = _DRAWS,
) -> RetimingScore:
    """Re-time the graphs of one device for the device of others, and compare their kernels' total time.

    Collectives are left out: they wait for other ranks, and go over links, so that their time is not the device's.
    Copies are no kernels. Only work of whole iterations counts, in its duration alone on the device.

    Parameters
    ----------
    case : str
    traced, measured : sequence of KernelGraph
        The same iterations of one job on two devices, as many of each.
    then : WhatIf, optional
        What else is known to differ on the target, such as a data type.
    draws : int
        Draws of the parameters for the interval.

    Raises
    ------
    InvalidInputError
        There is no graph, there are not as many of each, or a device is not known.
    """
    if not traced or len(traced) != len(measured):
        raise InvalidInputError(f"{case}: {len(traced)} and {len(measured)} iterations; give as many of each device")
    source, target = (graphs[0].hardware.device for graphs in (traced, measured))
    if source is None or target is None:
        raise InvalidInputError(f"{case}: a trace does not say on which device it was recorded")
    what_if = compose(scale_device(target), *([then] if then else []))
    nominal, random = load_parameters(), np.random.default_rng(0)
    new = _totals(traced, what_if, nominal)
    drawn = [_totals(traced, what_if, nominal.drawn(random)).sum() for _ in range(draws)]
    low, high = np.quantile(drawn, (0.05, 0.95)).tolist()
    old, true = _times_by_class(traced), _times_by_class(measured)
    classes = {
        name: (float(old[i]), float(true[i]), float(new[i])) for i, name in enumerate(CLASSES) if old[i] or true[i]
    }
    totals = (float(old.sum()), float(true.sum()), float(new.sum()))
    return RetimingScore(case, source.name, target.name, *totals, low, high, MappingProxyType(classes))


def retiming_rows(scores: Sequence[RetimingScore], information: Sequence[str] = ()) -> list[ValidationRow]:
    """Return a row a score; those whose case is in `information` have no limit."""
    return [
        ValidationRow(
            f"{one.case}: {one.source} -> {one.target}",
            one.measured_ns / 1e6,
            one.retimed_ns / 1e6,
            abs(one.error),
            None if one.case in information else LIMIT,
            source="a pair of traces",
        )
        for one in scores
    ]


def _totals(graphs: Sequence[KernelGraph], what_if: WhatIf, parameters: Parameters) -> Floats:
    return _times_by_class([what_if(graph, parameters) for graph in graphs])


def _times_by_class(graphs: Sequence[KernelGraph]) -> Floats:
    found = np.zeros(len(CLASSES))
    for graph in graphs:
        tasks = graph.tasks
        chosen = (
            (tasks.kind == TaskKind.KERNEL) & tasks.in_iteration & graph.on_device() & (tasks.class_ != _COLLECTIVE)
        )
        found += np.bincount(tasks.class_[chosen], tasks.duration_ns[chosen], len(CLASSES))
    return found


@cache
def graphs(path: Path) -> tuple[KernelGraph, ...]:
    """Return the graphs of a trace's iterations; a trace without marks is one."""
    marked = "trace_diff" in path.name
    trace = open_trace(str(path), IngestOptions("auto" if marked else "whole"))
    iterations = sorted(set(integers(trace.iterations, "iteration").tolist()))
    index = index_trace(trace)
    return tuple(build_graph(index, iteration, parameters=load_parameters()) for iteration in iterations)


def scores(folder: Path, draws: int = _DRAWS) -> list[RetimingScore]:
    """Return the score of every pair, there and back."""
    found = []
    for pair in PAIRS:
        for one, other in (pair, pair[::-1]):
            found.append(score_retiming(_case(one), graphs(folder / one), graphs(folder / other), draws=draws))
    a100, v100 = (graphs(folder / path) for path in PAIRS[-1])
    return [*found, score_retiming(INFORMATION[1], v100, a100, change_dtype("fp32->tf32"), draws)]


def _case(path: str) -> str:
    return Path(path).name.removesuffix(".json.gz")


def table(folder: Path, draws: int = _DRAWS) -> list[dict[str, str]]:
    """Return the rows of the table."""
    several = scores(folder, draws)
    rows = []
    for score, gated in zip(several, retiming_rows(several, INFORMATION), strict=True):
        totals = (score.traced_ns, score.measured_ns, score.retimed_ns)
        limit = "" if gated.limit is None else f"{100 * gated.limit:g}"
        ends = {"low": f"{score.low_ns / 1e6:.3f}", "high": f"{score.high_ns / 1e6:.3f}", "limit": limit}
        rows.append({"case": gated.case, "class": "total", **_times(*totals), **ends})
        rows += [{"case": gated.case, "class": name, **_times(*times)} for name, times in score.by_class.items()]
    return rows


def _times(traced: float, measured: float, retimed: float) -> dict[str, str]:
    error = f"{100 * (retimed / measured - 1):.1f}" if measured else ""
    times = {"traced": traced, "measured": measured, "retimed": retimed}
    return {name: f"{time / 1e6:.3f}" for name, time in times.items()} | {"error": error}


if __name__ == "__main__":
    writer = csv.DictWriter(sys.stdout, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(table(Path(sys.argv[1])))
