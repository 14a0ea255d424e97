"""Charts of selections, timelines, projections, contention, GEMMs and memory, as HoloViews objects for Bokeh.

Each chart has ``save("chart.html")``, which writes one file that opens without a network; `save` does so for charts
that were composed of others.
"""

from seqpoint.plots.contention import (
    error_by_mechanism,
    kernel_slowdowns,
    predicted_against_measured,
    slowdowns_against_measured,
    slowdowns_by_workgroups,
)
from seqpoint.plots.frame import plain_text
from seqpoint.plots.operators import concurrency_map, gemm_efficiency, rank_steps
from seqpoint.plots.projections import (
    changes_by_operator,
    communication_share,
    load_curves,
    memory_by_part,
    pareto_front,
    projection_intervals,
    scaling_times,
)
from seqpoint.plots.saving import save, stacked
from seqpoint.plots.selections import (
    baseline_errors,
    errors_by_points,
    interval_coverage,
    length_histogram,
    statistic_by_iteration,
    statistic_by_length,
)
from seqpoint.plots.simulations import (
    memory_channels,
    memory_row_hits,
    memory_times,
    memory_times_by_operator,
    memory_traffic,
)
from seqpoint.plots.timelines import allocated_memory, before_after, class_breakdown, timeline_lanes

__all__ = [
    "allocated_memory",
    "baseline_errors",
    "before_after",
    "changes_by_operator",
    "class_breakdown",
    "communication_share",
    "concurrency_map",
    "error_by_mechanism",
    "errors_by_points",
    "gemm_efficiency",
    "interval_coverage",
    "kernel_slowdowns",
    "length_histogram",
    "load_curves",
    "memory_by_part",
    "memory_channels",
    "memory_row_hits",
    "memory_times",
    "memory_times_by_operator",
    "memory_traffic",
    "pareto_front",
    "plain_text",
    "predicted_against_measured",
    "projection_intervals",
    "rank_steps",
    "save",
    "scaling_times",
    "slowdowns_against_measured",
    "slowdowns_by_workgroups",
    "stacked",
    "statistic_by_iteration",
    "statistic_by_length",
    "timeline_lanes",
]
