"""A sentence on each column of each table that the project prints: what `--explain` and a report show.

`SHARED` holds the columns whose meaning does not depend on the table. `TABLES` holds the others, by the title of the
table. Titles and columns are patterns as file names have them. A test fails on a column without a sentence; to add
a column, add its sentence here.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType

SHARED: Mapping[str, str] = MappingProxyType(
    {
        "rank": "Number of the process of the job; all for the sum of its devices.",
        "device": "Number of the device on its rank, or the name of the device; - if the trace does not number it.",
        "iteration": "Number of the iteration, which --iteration takes.",
        "steps": "Number of steps; each lasts from the completion of the iteration before to its own.",
        "length": "Padded sequence length of the iteration; - if unknown.",
        "weight": "Number of iterations of the run that the selected one stands for.",
        "file": "Name of the file that holds the iteration.",
        "kernel": "Name of the kernels as the profiler wrote it, cut at its end; --json has it in full.",
        "operator": "Name of the operator that launched the kernels itself; its callers are left out.",
        "class": "Class of the kernels, by their names.",
        "direction": "Direction of the copies: host to device (HtoD), device to host (DtoH), on a device, or a memset.",
        "kernels": "Number of kernels.",
        "copies": "Number of copies.",
        "calls": "Number of calls of the operators on the host.",
        "streams": "Number of streams that the kernels ran on, over all devices.",
        "tasks": "Number of host calls, kernels, copies and collectives in the graph.",
        "bytes": "Sum of the bytes; - if the trace has none.",
        "GB/s": "Bytes over time.",
        "time": "Sum of the durations; work that runs side by side counts more than once.",
        "device time": "Sum of the durations of the kernels that the operators launched themselves.",
        "host time": "Time on the host inside these operators and outside the operators that they call.",
        "share %": "Share of the total of the column of times.",
        "median": "Median of the durations.",
        "span": "Time from the first start to the last end of work on the device.",
        "elapsed": "Sum of the step times.",
        "busy": "Time with at least one kernel or copy on the device, waiting collectives included.",
        "busy %": "Busy time as a share of the elapsed time of the steps; of the span if the heading names it.",
        "compute": "Time with at least one kernel that is no collective.",
        "communication": "Time with at least one collective on the device, waiting for peers included; each moment "
        "counts once.",
        "waiting": "Communication in which every collective on the device still waits for another rank to start it.",
        "transfer": "Communication after the last rank of the group has started the collective, so that data can move.",
        "hidden": "Communication beside other work on the device.",
        "exposed": "Communication while nothing but collectives is on the device.",
        "exposed waiting": "Exposed communication in which every collective waits for another rank.",
        "exposed transfer": "Exposed communication in which data can move: the time that hiding it could gain.",
        "copies exposed": "Copies while nothing else is on the device.",
        "median step": "Median of the step times.",
        "median latency": "Median of the latencies.",
        "step time": "Time from the completion of the iteration before to its own, as measured.",
        "latency": "Time from the start of the iteration on the host to its completion.",
        "kernel time": "Sum of the durations of the kernels of the iteration.",
        "communication time": "Sum of the durations of the collectives of the iteration.",
        "copy time": "Sum of the durations of the copies of the iteration.",
        "found by": "Mark by which the iteration was found.",
        "before": "Value before the what-if.",
        "after": "Value after the what-if.",
        "change": "After minus before.",
        "%": "Share of the critical path of the column before it.",
        "cause": "Task or wait on the critical path.",
        "resource": "Host, device, or wait that the critical path goes through.",
        "what-if": "What is changed; a + composes what-ifs.",
        "speed-up": "Step time before over step time after; above 1 the what-if is faster.",
        "low": "Lower end of the interval.",
        "high": "Upper end of the interval.",
        "projected": "Estimated time of the iterations under the what-if.",
        "measured %": "Share of the projected time that the trace measured and the what-if leaves alone.",
        "scaled %": "Share of the projected time that is a measured time multiplied by a ratio, such as that of two "
        "devices.",
        "modelled %": "Share of the projected time that a model gives, such as contention or another number of ranks.",
        "derived %": "Share of the projected time that a model derives from measured times.",
        "assumed %": "Share of the projected time that the user or a default stated, without a measurement.",
        "host %": "Share of the projected time that is spent in calls on the host and between them.",
        "device %": "Share of the projected time that is spent in kernels, collectives and copies.",
        "delays %": "Share of the projected time that is spent between tasks: lags of launches, streams and ranks.",
        "device before": "Time of the unchanged steps with a kernel or copy on a device, mean over the devices.",
        "device after": "Time of the steps under the what-if with a kernel or copy on a device, mean over them.",
        "severity": "fine: figures hold; note: some figures are limited; warning: figures are wrong or lower bounds.",
        "what follows": "Effect on the figures, and what to do.",
        "points": "Number of selected lengths or iterations.",
        "estimate": "Total of the run as the selected iterations estimate it.",
        "error %": "Relative error in per cent of the measured value.",
        "err %": "Mean relative error in per cent of the measured value.",
        "selector": "Rule that selects iterations and their weights.",
        "unit": "Unit of the values.",
        "source": "Where the figure comes from.",
        "package": "Package that brings it.",
        "ours": "What this project says.",
        "bias": "Predicted over measured, as a geometric mean; 1 is unbiased.",
        "held %": "Share of the measurements inside their 90 % interval.",
        "measured": "Measured value.",
        "collective": "Kind of the collective, such as all_reduce.",
        "type": "Data type.",
        "basis": "What the prediction rests on: fitted to this device, or carried over from others; * was fitted.",
        "measurements": "Number of measurements that were fitted.",
        "trace": "Trace, or folder of traces.",
        "fitted": "Whether a parameter was fitted to the value.",
    }
)

TABLES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "Candidates for the sequence length": {
            "--length": "Operator, argument and dimension, as --length takes them.",
            "distinct": "Number of distinct values.",
            "from": "Smallest value.",
            "to": "Largest value.",
            "known in": "Iterations in which the operator has this dimension.",
            "with step time": "Rank correlation with the step time (Spearman), from -1 to 1.",
            "with kernel time": "Rank correlation with the time in kernels (Spearman), from -1 to 1.",
            "alike": "Number of further dimensions with the same values in all iterations.",
        },
        "Outliers*": {
            "reason": "Why no selected iteration stands for this one.",
            "*": "Statistic that is totalled, of the iteration.",
        },
        "SeqPoints*": {"*": "Statistic that is totalled, of the selected iteration."},
        "Points*": {"*": "Statistic that is totalled, of the selected iteration."},
        "Chosen iterations": {
            "lengths in bin": "Sequence lengths that the iteration stands for.",
            "*": "Statistic that is totalled, of the selected iteration.",
        },
        "What-ifs": {
            "interval": "Range that holds the speed-up with the stated confidence.",
            "projected time": "Estimated time of the iterations under the what-if.",
            "evidence": "Shares of the projected time by how they are known.",
        },
        "Quality*": {
            "count": "Name of the count, as in JSON.",
            "n": "Number of events, values or files that are counted.",
            "meaning": "What is counted.",
        },
        "Events": {"kind": "Kind of event.", "rows": "Number of events."},
        "Replay:*": {
            "replayed": "Step time of the unchanged replay; it should be the measured one.",
            "repeated": "Step time in the steady state of the repeated iterations, with which projections compare.",
            "repeated %": "Repeated against measured step time.",
            "busy %": "Share of the step with at least one kernel or copy on the device.",
            "unexplained %": "Share of the critical path that no recorded cause explains.",
        },
        "What tasks wait for*": {
            "kind": "Kind of edge between two tasks.",
            "known": "Whether the profiler recorded the edge, or it is inferred from times.",
            "edges": "Number of edges.",
            "binding": "Number of edges that decided when a task started.",
            "critical": "Number of edges on the critical path.",
            "critical lag": "Time that lags of these edges take on the critical path.",
        },
        "*Chosen tasks*": {
            "count": "Number of the chosen tasks that end in the step.",
            "name": "Name of the chosen tasks, cut at its end; --json has it in full.",
            "time": "Time of the chosen tasks on the device, added up; a collective counts since its rank arrived.",
            "waiting": "The part of the time in which collectives wait for other ranks.",
            "active": "Time with at least one of the chosen tasks on the device.",
            "exposed": "Time with nothing but the chosen tasks on the device.",
            "critical path": "Time of the critical path of the step that is work of the chosen tasks.",
        },
        "*riti*al path by *": {
            "class": "Class of the kernels on the critical path, or the host.",
            "name": "Name of the task on the critical path.",
            "time": "Time on the critical path.",
            "before": "Time on the critical path before the what-if.",
            "after": "Time on the critical path after the what-if.",
        },
        "What sets the pace*": {"time": "Time on the critical path of the step."},
        "The same by *": {
            "rank": "Rank that the critical path goes through.",
            "iteration": "Iteration whose tasks the critical path goes through, relative to the step.",
            "time": "Time on the critical path of the step.",
        },
        "*verlap*": {"copies": "Time with at least one copy on the device."},
        "*usy and idle time of devices*": {
            "busy %": "Share of the step with at least one of its kernels or copies on the device.",
            "exposed waiting %": "Share of the step in which the device only waits in collectives for other ranks.",
            "earlier %": "Share of the step in which only work of earlier iterations is on the device.",
            "host %": "Share of the step in which the device is idle because of calls or waits on the host.",
            "dependency %": "Share of the step in which the device is idle until work of another device ends.",
            "pause %": "Share of the step in lags of up to 10 us between tasks on the device.",
            "unexplained %": "Share of the step in which the device is idle without a recorded cause.",
            "done %": "Share of the step after the last task on the device.",
            "slowed": "Time that contention adds to tasks, summed over tasks.",
        },
        "Ranks that others wait for*": {
            "collectives started last": "Number of collectives that this rank started after all others of their group.",
            "others wait, added up": "Waiting of the other ranks in these collectives, summed over ranks.",
        },
        "Change by *": {
            "kind": "Kind of task.",
            "stream or thread": "Stream of a device, or thread of the host.",
            "before": "Sum of the durations of the tasks before the what-if.",
            "after": "Sum of the durations of the tasks after the what-if.",
            "tasks": "Number of tasks, before and after if they differ.",
            "exposed before": "Time with only tasks of this row active, before the what-if.",
            "exposed after": "Time with only tasks of this row active, after the what-if.",
        },
        "What-ifs: *": {
            "syntax": "How to write the what-if after -w.",
            "effect": "What the what-if changes.",
            "example": "An example for -w.",
        },
        "Against the baselines": {"reason": "Why the selector gives no estimate."},
        "Replayed iterations": {"weight": "Number of iterations of the run that the replayed one stands for."},
        "Arguments": {
            "name": "Name of the argument.",
            "kind": "Kind of value.",
            "meaning": "What the argument sets, and its choices.",
            "default": "Value without the argument.",
        },
        "Differences": {
            "where": "Key of the value in the result.",
            "recorded": "Value in the file.",
            "now": "Value that was computed now.",
        },
        "Where the projected time is spent*": {
            "low": "Lower end of the interval of the device time after.",
            "high": "Upper end of the interval of the device time after.",
        },
        "Not applicable": {"reason": "Why the what-if has no figures: it changes nothing, or cannot be applied."},
        "What-ifs (*": {
            "low": "Lower end of the interval of the speed-up.",
            "high": "Upper end of the interval of the speed-up.",
        },
        "Devices": {
            "name": "Name of the device in the catalogue.",
            "vendor": "Maker of the device.",
            "compute_units": "Number of streaming multiprocessors or compute units.",
            "clock_mhz": "Highest clock in MHz.",
            "fp32_tflops": "Peak rate of 32-bit numbers in TFLOP/s.",
            "fp16_tflops": "Peak rate of 16-bit numbers on matrix units in TFLOP/s.",
            "memory_gbps": "Peak bandwidth of the device's memory in GB/s.",
            "link_gbps": "Bandwidth of the links to other devices of a node in GB/s, one way.",
        },
        "Devices in the *": {"name": "Name of the device as the profiler wrote it."},
        "Readers": {"name": "Name of the reader.", "formats": "Files that it reads."},
        "Selectors": {"name": "Name for --selector.", "what it chooses": "Iterations that it selects."},
        "* a step (*": {
            "part": "Part of the step that is not hidden behind another.",
            "time": "Predicted time.",
        },
        "Validation": {
            "suite": "Name of the suite, as `seqpoint validate SUITE` takes it.",
            "cases": "Number of scored cases.",
            "limits": "Number of limits that apply.",
            "met": "Number of limits that are met.",
            "note": "Files that were read, or why nothing was scored.",
        },
        "Limits": {
            "case": "What is limited.",
            "limit": "Most, or least, that is allowed.",
            "met": "Whether the limit is met.",
        },
        "Replayed against measured times*": {
            "ms": "Elapsed time of the steps in ms.",
            "un- changed": "Largest error of a step of the unchanged replay.",
            "start": "Error of starts of tasks, at worst.",
            "typical delays": "Largest error of a step if each delay is the typical one of its kind.",
            "re- peated": "Median error of the step time in the steady state.",
            "worst": "Largest error of the step time in the steady state.",
            "busy": "Busy share of the elapsed time as measured.",
            "ours": "Busy share of the elapsed time as replayed.",
        },
        "Every check*": {"check": "What is counted.", "by hand": "Value by arithmetic on the tables of the trace."},
        "Figures that differ*": {
            "check": "What is counted.",
            "by hand": "Value by arithmetic on the tables of the trace.",
        },
        "Coverage of 90 % intervals*": {
            "comparison": "Kind of pair: what differs between the two recordings of a job.",
            "intervals": "Number of intervals.",
            "held %": "Share of the measurements inside their interval.",
            "high / low": "Typical width of the intervals: their upper over their lower end.",
            "error %": "Typical error of the projected time.",
            "widen by": "Factor on the width with which nine in ten intervals would hold the measurement.",
            "held out %": "Share inside intervals that were widened by what the other pairs ask for.",
        },
        "Projected against measured times*": {
            "comparison": "Kind of pair: what differs between the two recordings of a job.",
            "case": "Pair of recordings.",
            "measured": "Time of the second recording in us.",
            "ours": "Projected time in us.",
            "low": "Lower end of the interval in us.",
            "high": "Upper end of the interval in us.",
            "inside": "Whether the interval holds the measurement.",
        },
        "Published figures*": {
            "system": "Published system.",
            "what": "Figure of the publication.",
            "published": "Value of the publication.",
            "evidence": "How the publication gives the value.",
            "within": "Whether our value is within the limit.",
        },
        "Files": {"was fitted": "Whether the shipped fits rest on this file.", "file": "Name of the file."},
        "Fits": {
            "device": "Name of the device.",
            "fabric": "How the devices of a node are joined.",
            "workers": "Number of devices in the group.",
            "a node": "Number of these devices in a node.",
            "lines": "Number of linear pieces of the fitted curve.",
            "off by at most, 9 in 10": "Error that nine in ten fitted measurements stay below.",
        },
        "Kernels beside other work*": {
            "kernels": "Kernels that ran beside other work, and also alone.",
            "slowed": "Kernels that took more than 1.1 times as long as alone.",
            "noise": "Error of kernels that ran alone, predicted from other kernels that ran alone, by time.",
            "no con- tention": "Error if each kernel takes as long as alone.",
            "equal shares": "Error if each kernel has half of the device while other work is beside it.",
            "best con- stant": "Error of the one factor with the least error, chosen in hindsight.",
            "shipped": "Error of the shipped parameters.",
            "cali- brated": "Error of the given calibration.",
            "other ranks": "Error of fits to the other ranks of the trace.",
            "other classes": "Error of fits to the other classes of kernels.",
            "other kernels": "Error of fits to four fifths of the kernels, by name and grid.",
        },
        "The same: other measures*": {
            "method": "How kernels are predicted.",
            "90th": "90th percentile of the errors, by time.",
            "alone from beside": "Error of times alone that are inferred from the times beside other work.",
            "slow-down explained": "Median predicted share of the slow-down, of kernels that are slowed.",
            "slowed or not: right": "Share of distinct kernels for which it is right whether they are slowed.",
            "in the interval": "Share of distinct held-out kernels whose slow-down is in its 90 % interval.",
        },
        "Time that contention took*": {
            "kernels": "All kernels but collectives; these by class, and by the work beside them; and collectives.",
            "launches": "Number of kernels with other work beside them.",
            "overlapped": "Time in which other work is beside these kernels.",
            "paired": "Sum of the durations of launches whose kernel also ran alone in the trace.",
            "measured": "Time that these launches took longer than alone, measured; negative if shorter.",
            "unpaired": "Sum of the durations of launches whose isolated duration the engine infers.",
            "modelled": "Time that contention added to these launches, by the model of the engine.",
        },
        "Costs on *": {"cost": "Name of the fitted cost.", "value": "Fitted value."},
        "Parameters *": {
            "parameter": "Name of the parameter.",
            "value": "Fitted value.",
            "range": "Range that holds the parameter with 90 % confidence.",
            "shipped": "Value that the project ships.",
        },
        "Geometric mean*": {
            "total %": "Error of the estimated total, and the largest in brackets.",
            "speed-up %": "Error of the estimated speed-up, and the largest in brackets.",
            "fewer, sequential": "Time of the run over the time of the selected iterations, one after another.",
            "parallel": "Time of the run over that of the longest selected iteration.",
            "covered %": "Share of the totals inside their interval.",
            "+- %": "Half the width of the interval.",
        },
        "Predicted against measured times of steps*": {
            "steps": "Group of measured steps.",
            "n": "Number of steps.",
            "in interval %": "Share of the measurements inside their interval.",
        },
        "Predicted against measured times, in ms": {
            "run": "Model and batch.",
            "took": "Measured time in ms.",
            "90 %": "Interval in ms.",
            "device": "Name of the device.",
        },
        "Predicted against measured*": {
            "rows": "Number of measured sizes.",
            "workers (a node)": "Number of devices, and of those in a node.",
            "left out": "What the scored prediction did not see.",
            "device": "Name of the device.",
        },
        "Error %*": {
            "workers (a node)": "Number of devices, and of those in a node.",
            "left out": "What the scored prediction did not see.",
            "device": "Name of the device.",
            "*": "Mean error in per cent of the measurements of this size.",
        },
        "Errors of passes*": {
            "kernels": "Kernels that are scored, by what the workgroups on a compute unit do to a pass.",
            "n": "Number of kernels.",
            "law": "Rule that predicts a pass from the two known ones.",
            "median %": "Median error of the passes that were predicted.",
            "90th %": "90th percentile of that error.",
            "kernels' medians %": "Median over kernels of the median error of their passes.",
        },
        "Errors of predicted times*": {
            "mechanism": "Resource that the works share.",
            "n": "Number of scenarios.",
            "median": "Median error of the time until all works are done.",
            "90th": "90th percentile of that error.",
            "ends": "Median error of the end of each work.",
            "slow- down": "Median error of the slow-down of each work.",
            "one by one": "Error of a model in which works run one after another.",
            "free": "Error of a model in which works do not slow each other.",
            "held": "Share of the times inside their interval.",
            "takes": "Median difference between takes of a scenario.",
            "at most": "Largest difference between takes of a scenario.",
        },
        "% of ideal*": {
            "carrier": "What carries the transfer: kernels or copy engines.",
            "n": "Number of scenarios.",
            "measured": "Measured share of the ideal speed-up, in per cent.",
            "predicted": "Predicted share of the ideal speed-up, in per cent.",
            "published *": "Shares that others published.",
        },
        "The worst*": {
            "step": "Measured step.",
            "measured ms": "Measured time in ms.",
            "predicted ms": "Predicted time in ms.",
            "interval ms": "Interval of the prediction in ms.",
            "scenario": "Works side by side; * was fitted.",
            "policy": "How the works share the device.",
            "fights for": "Resource that the works share.",
            "us": "Measured time in us.",
            "ours": "Predicted time in us.",
            "takes": "Difference between takes of the scenario.",
        },
        "*": {
            "figure": "Figure of the device's data sheet.",
            "value": "Value of the figure.",
            "certainty": "Whether the figure is published, measured or assumed.",
        },
    }
)


def sentences(title: str, names: Sequence[str]) -> dict[str, str]:
    """Return the sentence on each column of a table; columns without one are left out.

    Parameters
    ----------
    title : str
        Title of the table.
    names : sequence of str
        Headings of its columns.

    Examples
    --------
    >>> sentences("Events", ["kind", "no such column"])
    {'kind': 'Kind of event.'}
    """
    of_table = [columns for pattern, columns in TABLES.items() if fnmatchcase(title, pattern)]
    explained = {name: _sentence(" ".join(name.split()), of_table) for name in names}
    return {name: sentence for name, sentence in explained.items() if sentence}


def _sentence(name: str, of_table: Sequence[Mapping[str, str]]) -> str:
    """Return the sentence on a column: that of its table, the shared one, or that of a pattern of its table."""
    for columns in (*of_table, SHARED):
        if name in columns:
            return columns[name]
    patterns = [(pattern, text) for columns in of_table for pattern, text in columns.items()]
    return next((text for pattern, text in patterns if fnmatchcase(name, pattern)), "")
