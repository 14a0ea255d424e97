"""What Holistic Trace Analysis says of real traces: the figures that tests/test_analysis_hta.py holds ours against.

    pip install HolisticTraceAnalysis==0.5.0 "pandas<3"
    python benchmarks/replay/hta_agreement.py ../shared/data/traces/kineto > tests/accuracy/hta.csv

Rows: the trace; the annotation that a critical path is limited to, empty for all of the trace; the figure; its value;
the version. Times are HTA's, whole us: where a trace has ns it rounds starts up and ends down. ``path_us`` are when
kernels, copies and fills on HTA's critical path start, after the first of the trace. HTA is given nothing of ours.
"""

import csv
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

COLUMNS = ("trace", "annotation", "figure", "hta", "version")
BREAKDOWNS = (
    "hta/nccl_a100_rank0",
    "hta/multistream_a100_rank0",
    "hta/trace_diff_a100",
    "hta/dlrm128_sampled_rank0",
    "tracelens/other/resnet_act_checkpoint_mi300_rank0",
)
FORWARD = "[param|pytorch.model.alex_net|0|0|0|measure|forward]"
PATHS = (
    ("hta/cuda_event_sync", ""),
    ("hta/cuda_event_sync_multi_stream", ""),
    ("hta/critical_path_alexnet", FORWARD),
    ("hta/critical_path_alexnet", ""),
)
_TIMES = ("idle_time(us)", "compute_time(us)", "non_compute_time(us)", "kernel_time(us)")


def analysis(root: Path, name: str):  # type: ignore[no-untyped-def]
    """Return HTA's analysis of a whole trace; by default it leaves out the last step."""
    from hta.trace_analysis import TraceAnalysis

    return TraceAnalysis(trace_files={0: str(root / f"{name}.json.gz")}, trace_dir="", include_last_profiler_step=True)


def breakdown(root: Path, name: str) -> Iterator[tuple[str, object]]:
    """Yield HTA's temporal breakdown, and its overlap where there is communication."""
    found = analysis(root, name)
    table = found.get_temporal_breakdown(visualize=False)
    for column in _TIMES:
        yield column.replace("_time(us)", "_us"), int(table[column].iloc[0])
    overlap = float(found.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].iloc[0])
    yield "overlap_percent", overlap


def path(root: Path, name: str, annotation: str) -> str:
    """Return when the device's work on HTA's critical path starts, in its order."""
    found = analysis(root, name)
    graph, _ = found.critical_path_analysis(rank=0, annotation=annotation, instance_id=0)
    table, names = found.t.get_trace(0), found.t.symbol_table.get_sym_table()
    on_device = table["stream"].ne(-1) & ~table["name"].map(lambda n: bool(re.search("Sync|Wait Event", names[n])))
    first = int(table["ts"][on_device].min())
    nodes = [graph.node_list[n] for n in graph.critical_path_nodes]
    return " ".join(str(int(node.ts) - first) for node in nodes if node.is_start and on_device[node.ev_idx])


def main() -> None:
    """Write the table to stdout."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    root, release = Path(sys.argv[1]), version("HolisticTraceAnalysis")
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    for name in BREAKDOWNS:
        for figure, value in breakdown(root, name):
            writer.writerow((name, "", figure, value, release))
    for name, annotation in PATHS:
        writer.writerow((name, annotation, "path_us", path(root, name, annotation), release))


if __name__ == "__main__":
    main()
