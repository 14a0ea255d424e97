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
from functools import cache
from pathlib import Path

from profilers.ingest.pipeline import CollectOptions, open_trace
from profilers.trace.arrays import integers
from replay.costs.shipped import load_parameters
from replay.from_trace import build_graph, index_trace
from replay.graph.graph import KernelGraph
from replay.what_ifs import change_dtype
from seqpoint.validation.retiming import RetimingScore, retiming_rows, score_retiming

COLUMNS = ("case", "class", "traced", "measured", "retimed", "error", "low", "high", "limit")
MODELS = ("Falconsai_nsfw_image_detection", "Qwen_Qwen1.5-0.5B-Chat", "gaunernst_bert-small-uncased")
PAIRS = (
    *((f"tracelens/h100/{name}.json.gz", f"tracelens/mi300/{name}.json.gz") for name in MODELS),
    ("hta/trace_diff_a100.json.gz", "hta/trace_diff_v100.json.gz"),
)
INFORMATION = ("trace_diff_v100", "trace_diff_v100, fp32->tf32")


@cache
def graphs(path: Path) -> tuple[KernelGraph, ...]:
    """Return the graphs of a trace's iterations; a trace without marks is one."""
    marked = "trace_diff" in path.name
    trace = open_trace(str(path), CollectOptions("auto" if marked else "whole"))
    iterations = sorted(set(integers(trace.iterations, "iteration").tolist()))
    index = index_trace(trace)
    return tuple(build_graph(index, iteration, parameters=load_parameters()) for iteration in iterations)


def scores(folder: Path) -> list[RetimingScore]:
    """Return the score of every pair, there and back."""
    found = []
    for pair in PAIRS:
        for one, other in (pair, pair[::-1]):
            found.append(score_retiming(_case(one), graphs(folder / one), graphs(folder / other)))
    a100, v100 = (graphs(folder / path) for path in PAIRS[-1])
    return [*found, score_retiming(INFORMATION[1], v100, a100, change_dtype("fp32", "tf32"))]


def _case(path: str) -> str:
    return Path(path).name.removesuffix(".json.gz")


def table(folder: Path) -> list[dict[str, str]]:
    """Return the rows of the table."""
    several = scores(folder)
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
