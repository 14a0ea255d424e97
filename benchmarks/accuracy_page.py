"""Write the page of accuracy from the tables in `tests/accuracy`.

`python benchmarks/accuracy_page.py > docs/accuracy.md` writes it anew. The README repeats its first table.
"""

import csv
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, geometric_mean, median

ROOT = Path(__file__).parents[1]
TABLES = ROOT / "tests" / "accuracy"

Row = dict[str, str]

#: Mean errors that NeuSight's authors report, on shapes outside its training range; in percent.
NEUSIGHT = {"matmul": 13.9, "batched_matmul": 13.8, "elementwise": 19.3, "softmax": 13.9, "normalization": 56.7}
KINDS = {
    "matmul": "matrix product",
    "batched_matmul": "batched product",
    "elementwise": "elementwise",
    "softmax": "softmax",
    "normalization": "normalisation",
    "gated_activation": "gated activation",
    "rms_normalization": "RMS norm",
    "rotary": "rotary embedding",
    "embedding": "embedding",
    "matrix_matmul": "matrix product",
    "quantization": "quantization",
    "quantization_scale": "scale of quantization",
    "context_attention": "attention, prompts",
    "generation_attention": "attention, new tokens",
    "experts": "experts",
}
SYSTEMS = {
    "c3": "C3 and ConCCL, arXiv 2412.14335",
    "t3": "T3, arXiv 2401.16677",
    "ficco": "FiCCO, arXiv 2512.10236",
    "fused": "fused collectives, arXiv 2305.06942",
    "goldyloc": "GOLDYLOC, arXiv 2409.02227",
    "caching": "GPU cache policies, arXiv 1910.00134",
    "comp_vs_comm": "Computation against communication, arXiv 2302.02825",
    "detailed": "Detailed simulation of PyTorch, arXiv 1811.08933",
    "jitq": "Copies just in time (JIT-Q), arXiv 2311.05034",
    "bert": "BERT characterisation, arXiv 2104.08335",
}
#: Why a published figure is missed, by system and name.
MISSED = {
    ("c3", "dma_overhead_64kb"): "A DMA engine has one rate here, whatever the size of the copy.",
    ("ficco", "ideal_speedup"): "Scenario g11 has a product about as long as its gather, so its ideal is near 2.",
    ("fused", "intra_node_largest"): "Fixed costs dominate our shortest case. The paper's cases are not public.",
    ("fused", "training_128_nodes"): "Its small products took 76 us with a launch of 55 us, and take 24 us now.",
    ("goldyloc", "go_over_default_mean"): "Kernels are dispatched in order here, so they hardly contend for the cache.",
    ("goldyloc", "default_over_sequential"): "Default kernels fill each other's last waves here, perhaps too well.",
    ("bert", "gemms_dominate"): "Of four short sequences in mixed precision, LAMB takes half of the time.",
}
#: Units of published figures; counts have none.
UNITS = {"%": " %", "x": "x"}
#: A link or a name is not broken.
KEEP = {"break_long_words": False, "break_on_hyphens": False}

HEAD = """# Accuracy

Every figure on this page is computed from the tables in [`tests/accuracy`](../tests/accuracy). Those tables are tests:
a change that makes one worse fails. `python benchmarks/accuracy_page.py > docs/accuracy.md` writes this page.

- An **error** is the mean of |predicted / measured - 1| unless a heading says otherwise.
- **Fitted** means that parameters were fitted to other measurements of the same device or job.
- **Carried** means that nothing of the device was measured. Its data sheet and other devices' fits were used.
- **Held** is the share of the measured values inside the stated interval. It should be near the nominal share.
"""


def read(name: str) -> list[Row]:
    """Return the rows of a table in tests/accuracy."""
    return list(csv.DictReader((TABLES / f"{name}.csv").read_text().splitlines()))


def column(rows: Iterable[Row], name: str) -> list[float]:
    """Return the values of a column, without the empty ones."""
    return [float(row[name]) for row in rows if row[name] not in ("", None)]


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(value: float, digits: int = 1) -> str:
    """Return a share or an error with its unit."""
    return f"{value:.{digits}f} %"


def span(values: Sequence[float], digits: int = 1) -> str:
    """Return the least and the greatest of some percentages."""
    return f"{min(values):.{digits}f} to {max(values):.{digits}f} %"


def typical_within(limit: float) -> int:
    """Return the number of traces whose replay with median delays is within a limit, in percent."""
    return sum(value <= limit for value in column(read("identity"), "typical_worst"))


def summary() -> str:
    """Return the table that the README repeats."""
    traces = read("identity")
    seqpoint = [row for row in read("selection") if row["selector"] == "seqpoint"]
    (training,) = [row for row in read("training") if row["case"] == "not fitted"]
    (models,) = [row for row in read("models") if row["case"] == "all carried"]
    steps = {row["case"]: row for row in read("training_steps")}
    totals = [abs(value) for value in column(gated_totals(), "error")]
    gated = [row for row in read("published") if row["met"]]
    met = sum(row["met"] == "yes" for row in gated)
    errors, worst = column(seqpoint, "total_error"), max(column(seqpoint, "total_worst"))
    rows = [
        (
            "Replay; with median delays",
            f"{len(traces)} real traces",
            f"exact; {typical_within(2)} within 2 %",
        ),
        (
            "Total of a run, from SeqPoints",
            f"{len(seqpoint)} recorded epochs",
            f"{percent(geometric_mean(errors))}, worst {percent(worst)}",
        ),
        ("Kernel time on another GPU", f"{len(totals)} real pairs", f"{span(totals)}; {apart()} on one more"),
        ("Transformer, device not measured", f"{models['runs']} real runs", percent(float(models["error"]))),
        ("Step of Megatron-LM", f"{int(training['steps']):,} published steps", percent(float(training["error"]))),
        (
            "Step of other systems",
            f"{steps['MLPerf: left out']['n']} of MLPerf",
            f"{percent(float(steps['MLPerf: left out']['median']))} at the median",
        ),
        (
            "Figures of papers",
            f"{len({row['system'] for row in gated})} systems",
            f"{met} of {len(gated)} within limits",
        ),
        ("Kernels beside other work", *contention_summary()),
        ("Simulated PTX kernels", *detailed_summary()),
        gain_summary(),
    ]
    return grid(("prediction", "data", "error"), rows)


def gain_summary() -> tuple[str, str, str]:
    """Return the data and the median errors of gains of what-ifs, and of what a recording costs."""
    rows = read("pairs")
    groups = [[row for row in rows if (row["change"] == "recording") == is_cost] for is_cost in (False, True)]
    groups[1] = [row for row in groups[1] if "h200" in row["runs"]]  # costs were fitted on the H100
    errors = "; ".join(percent(median(map(gain_error, group))) for group in groups)
    return "Gain of a what-if; recording cost", "; ".join(f"{len(each)} pairs" for each in groups), errors


def gain_error(row: Row) -> float:
    """Return the error of a predicted gain, in percent."""
    return 100 * abs(float(row["predicted"]) / float(row["measured"] or row["traced"]) - 1)


def detailed_summary() -> tuple[str, str]:
    """Return the data and the errors of kernels in PTX: those of benchmarks and Triton, and operators."""
    rows = read("detailed")
    groups = [[abs(float(row["error"])) for row in rows if (row["set"] == "operators") == is_operator]
              for is_operator in (False, True)]  # fmt: skip
    return f"{len(groups[0])} kernels; {len(groups[1])} operators", "; ".join(percent(fmean(each)) for each in groups)


def contention_shortcomings() -> str:
    """Return on which traces the fits to other kernels are no better than no contention."""
    means = {(row["trace"], row["method"]): float(row["mean"]) for row in read("contention") if row["mean"]}
    worse = [
        trace
        for (trace, method), mean in means.items()
        if method == "no contention" and means.get((trace, "fitted to other classes"), 0.0) >= mean
    ]
    names = ", ".join(f"`{trace}`" for trace in worse)
    return (
        f"Contention, fitted to other classes of kernels, is predicted no better than by ignoring it on {names}. "
        "The slow-down of short kernels is explained in part only."
    )


def gain_shortcomings() -> str:
    """Return how many gains of what-ifs are outside their interval, by change."""
    rows = [row for row in read("pairs") if row["inside"] == "no"]
    counts = {
        change: sum(row["change"] == change for row in rows) for change in dict.fromkeys(r["change"] for r in rows)
    }
    listed = ", ".join(f"{count} of {change}" for change, count in counts.items())
    return f"Gains are outside their interval for {len(rows)} of {len(read('pairs'))} measured pairs: {listed}."


def recording_shortcomings() -> str:
    """Return the largest errors and the share of intervals that hold, of works recorded side by side."""
    recorded = [row for row in read("recordings") if (row["mechanism"], row["how"]) == ("all", "shipped")]
    return (
        f"Works side by side on recorded GPUs are off by {span(column(recorded, 'p90'), 0)} at the 90th percentile. "
        f"Their intervals of 90 % hold {span(column(recorded, 'covered'), 0)}."
    )


def contention_summary() -> tuple[str, str]:
    """Return the data and the errors of kernels beside other work: of traces, and medians of recordings."""
    rows = [row for row in read("contention") if not row["remark"]]
    fitted = {row["trace"]: float(row["mean"]) for row in rows if row["method"] == "fitted to other ranks"}
    traces = f"{len(fitted)} real {'trace' if len(fitted) == 1 else 'traces'}"
    recorded = [row for row in read("recordings") if (row["mechanism"], row["how"]) == ("all", "shipped")]
    return f"{traces}; {len(recorded)} GPUs", f"{span(list(fitted.values()))}; {span(column(recorded, 'median'))}"


def gated_totals() -> list[Row]:
    """Return the rows of total kernel time on another device that have a limit."""
    return [row for row in read("retimed") if row["class"] == "total" and row["limit"]]


def apart() -> str:
    """Return the error of total kernel time on another device where no limit applies."""
    (row,) = [
        row for row in read("retimed") if row["class"] == "total" and not row["limit"] and "tf32" not in row["case"]
    ]
    return percent(abs(float(row["error"])))


def in_short() -> str:
    """Return the section with the summary."""
    return f"## In short\n\n{summary()}\n"


def falls_short() -> str:
    """Return the section about misses, and about models without a limit."""
    traces, sampling, retimed = read("identity"), read("kernel_sampling"), read("retimed")
    far = [row for row in traces if float(row["typical_worst"]) > 2]
    unsteady = [row for row in traces if float(row["steady_worst"]) > 2]
    classes = [abs(value) for value in column((r for r in retimed if r["class"] != "total"), "error")]
    missed = [row for row in read("published") if row["met"] == "NO"]
    device_out = [float(row["error"]) for row in read("collectives") if row["case"].endswith("device left out")]
    resampled = column(read("selection"), "resampled_covered")
    (training,) = [row for row in read("training") if row["case"] == "not fitted"]
    lines = [
        contention_shortcomings(),
        recording_shortcomings(),
        f"{len(missed)} published figures are missed: {names(missed, 'name')}.",
        *([f"{names(far)} leaves 2 % when its delays are replaced by medians."] if far else []),
        f"Repeating a window misses the measured steps by more than 2 % for {names(unsteady)}.",
        f"Kernel time on an A100, from the trace of a V100 without shapes, is off by {apart()}, outside its interval.",
        f"On another device a single class of kernels is off by {percent(median(classes), 0)} at the median, "
        f"and by {percent(max(classes), 0)} at worst.",
        f"Collectives of a device or a place that nobody measured are off by {span(device_out, 0)}.",
        f"Single training steps are off by up to {percent(float(training['worst']), 0)}.",
        f"Intervals of a selection, resampled from recorded epochs, hold {span(resampled, 0)} instead of 95 %.",
        f"With a target error of 1 %, totals of other configurations err by {span(other_errors())}: by more than 1 % "
        "where these are noisier.",
        gain_shortcomings(),
        f"Intervals of a kernel sample hold {span(column(sampling, 'ratio_coverage'), 0)} instead of 95 %.",
    ]
    return "## What falls short\n\n" + "\n".join(f"- {line}" for line in lines) + "\n"


def other_errors() -> list[float]:
    """Return the errors for a target of 1 %, of configurations that points were not chosen on, by device and model."""
    rows = [row for row in read("selection_floor") if row["judged_on"] not in ("base", "again")]
    others = grouped((row for row in rows if row["chosen_on"] == "base"), "data", "model")
    return [root_mean_square(several, "1") for several in others.values()]


def names(rows: Iterable[Row], column_name: str = "trace") -> str:
    """Return what some rows are called; of a path, its last part."""
    return ", ".join(f"`{row[column_name].rsplit('/', 1)[-1]}`" for row in rows)


def replay() -> str:
    """Return the section about replaying real traces."""
    rows = read("identity")
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["trace"].split("/")[0], []).append(row)
    several = [row for row in rows if int(row["iterations"]) > 1 and row["steady_worst"] != "0.000"]
    table = grid(
        ("traces of", "traces", "iterations", "unchanged, worst", "median delays, worst", "repeated, worst"),
        (
            (
                group,
                str(len(chosen)),
                str(sum(int(row["iterations"]) for row in chosen)),
                *(percent(max(column(chosen, name)), 3) for name in ("completion_worst", "typical_worst")),
                percent(max(column(chosen, "steady_worst"))),
            )
            for group, chosen in groups.items()
        ),
    )
    busy = max(abs(float(row["busy_describe"]) - float(row["busy_replay"])) for row in rows)
    return f"""## Replay

An unchanged graph returns each completion, since an edge keeps its measured lag. The harder test replaces every lag by
the median of its kind. Repeating a window until its period settles is a prediction, as no trace shows the seam. Nothing
is fitted. The table is [`identity.csv`](../tests/accuracy/identity.csv).

{table}

With median delays {typical_within(2)} of {len(rows)} traces stay within 2 %. Of the {len(several)} repeated windows
with
an error above zero, the median is {percent(median(column(several, "steady_worst")), 2)}. The busy shares of `describe`
and `replay` differ by at most {busy:.1f} points.
"""


def hosts() -> str:
    """Return the section about what hosts do and wait for."""
    rows = read("host_causes")
    causes = ("queue", "synchronisation", "loader", "work", "unexplained")
    chosen = [row for row in rows if int(row["held"])]
    table = grid(
        ("trace", "rank", "host time", "launch queue full", "synchronisation", "work", "plateau", "calls held"),
        (
            (
                row["trace"].removesuffix(".json.gz").removesuffix(".sqlite"),
                row["rank"],
                f"{float(row['host_ms']):.0f} ms",
                *(f"{float(row[name]):.0f} %" for name in ("queue", "synchronisation", "work")),
                row["longest_queue"],
                row["held"],
            )
            for row in chosen
        ),
    )
    largest = {name: sum(max(causes, key=lambda cause: float(row[cause])) == name for row in rows) for name in causes}
    text = ", ".join(f"{name} {count}" for name, count in largest.items() if count)
    return f"""## Hosts

What hosts do and wait for in the steps of {len(rows)} ranks is in
[`host_causes.csv`](../tests/accuracy/host_causes.csv), with the longest launch queue of each. A queue was full on
{len(chosen)} ranks:

{table}

The profiler wrote records of it on all but the A100, whose calls are found by the plateau of the queue. Without the
records of nanogpt1, the plateau gives 127.2 ms, the records 126.8 (`tests/test_host_waits.py`). By largest cause,
ranks are: {text}.
"""


def selection() -> str:
    """Return the section about choosing iterations."""
    rows = read("selection")
    chosen: dict[str, list[Row]] = {}
    for row in rows:
        chosen.setdefault(row["selector"], []).append(row)
    table = grid(
        ("selector", "total, geometric mean", "worst", "speed-up, geometric mean", "worst", "less profiling", "held"),
        (
            (
                name,
                percent(geometric_mean(column(several, "total_error")), 2),
                percent(max(column(several, "total_worst"))),
                percent(geometric_mean(column(several, "speedup_error")), 2),
                percent(max(column(several, "speedup_worst"))),
                f"{geometric_mean(column(several, 'sequential')):,.0f}x",
                f"{fmean(column(several, 'covered')):.0f} %",
            )
            for name, several in chosen.items()
        ),
    )
    noise = column((row for row in rows if row["selector"] == "seqpoint"), "noise_floor")
    parallel = geometric_mean(column((row for row in rows if row["selector"] == "seqpoint"), "parallel"))
    return f"""## Selecting iterations

Three models were trained for whole epochs on a CPU, sorted and shuffled, in five configurations. Points are chosen on
one configuration and judged on the four others. `frequent`, `median`, `worst` and `prior` are the baselines that
[selection.md](selection.md) explains. Intervals are for 95 %. The table is
[`selection.csv`](../tests/accuracy/selection.csv).

{table}

"Less profiling" compares the epoch with the sum of the points. Points profiled in parallel shrink it
{parallel:,.0f} times for SeqPoint. Recording an epoch twice changes its total by {span(noise)}. The settings were
chosen
with these epochs in view. The paper (arXiv 2007.10459) reports 0.11 % and 0.53 % at 345x and 214x, on other models.

{coverage()}

{real_epochs()}
"""


#: Target errors of selection_floor.csv, in percent, and on what recording their points are chosen.
TARGETS = ("5", "2", "1", "0.5")
CHOSEN_ON = {"the same recording": ("itself", ""), "the base": ("base",), "the base, after a pilot": ("pilot",)}


def points_of_total() -> str:
    """Return the section about the scatter of equal lengths and the points that a total takes."""
    rows = [row | {"chosen_on": chosen_on(row)} for row in read("selection_floor")]
    same = [row for row in rows if row["chosen_on"] in CHOSEN_ON["the same recording"] and row["data"] != "A100"]
    recordings = grid(
        ("device", "model", "scatter", "shortest lengths", "longest", "correlation", "12 points, floor", "measured",
         *(f"points for {target} %" for target in TARGETS)),
        (
            (device, model, *(span(column(several, name)) for name in ("scatter", "short", "long")),
             f"{min(column(several, 'correlation')):.1f} to {max(column(several, 'correlation')):.1f}",
             *(percent(fmean(column(several, name))) for name in ("floor_12", "error_12")),
             *(f"{fmean(column(several, f'points_{target}')):.0f}" for target in TARGETS))
            for (device, model), several in grouped(same, "data", "model").items()
        ),
    )  # fmt: skip
    judged = [row for row in rows if row["data"] != "A100" and row["judged_on"] != "again"]
    promise = grid(
        ("device", "model", "points chosen on", *(f"error for {target} %" for target in TARGETS)),
        (
            (device, model, label, *(f"{percent(root_mean_square(several, target))} from {mean_points(several, target)}"
                                     for target in TARGETS))
            for (device, model), all_ways in grouped(judged, "data", "model").items()
            for label, ways in CHOSEN_ON.items()
            for several in [[row for row in all_ways if row["chosen_on"] in ways]]
        ),
    )  # fmt: skip
    times = grid(
        ("trace", "total of", "scatter", "12 points, floor", "measured", "points for 1 %", "error"),
        (
            (row["model"], row["order"].replace("_", " "), *(percent(float(row[name]), 2) for name in NOISE),
             row["points_1"], percent(float(row["error_1"]), 2))
            for row in rows
            if row["data"] == "A100"
        ),
    )  # fmt: skip
    gpu_bound = [row for row in same if row["busy_long"] and float(row["busy_long"]) > 90]
    busiest, quiet = column(gpu_bound, "busy_long"), column(gpu_bound, "long")
    others = [row for row in rows if row["chosen_on"] == "base" and row["judged_on"] != "again"]
    kept = {target: sum(float(row[f"chosen_{target}"]) <= float(target) for row in others) for target in TARGETS}
    return f"""## How many points a total takes

Iterations of equal length differ. `scatter` is their relative standard deviation, weighted by cost. The floor is the
scatter over the square root of 12 points. "Measured" is the root mean square error of 12 points in 200 draws of
iterations of their lengths. The GPUs' epochs are sorted and shuffled, in three configurations; those of the CPU in six.
The table is [`selection_floor.csv`](../tests/accuracy/selection_floor.csv).

{recordings}

12 points err by up to twice the floor: their weights differ, and some stand for several lengths. Numbers of points are
means over orders and configurations.

On the GPUs the scatter is the host's. In traces of the same models kernels run in {span(column(same, "busy_short"), 0)}
of the shortest steps, and the host sets their pace. The longest steps of `language`, base, have kernels in
{span(busiest, 0)} of the time and differ by {span(quiet)}. With half of the width the short ones differ by up to
{percent(max(column(same, "short")), 0)}. The noise of successive iterations is
correlated, as a host is slow for a while.

`--target-error` promises a standard error on a run as noisy as the one that was chosen on:

{promise}

On the same recording the promise holds. On another configuration it holds as far as that is as noisy. Of
{len(others)} single choices on the base, {", ".join(f"{kept[target]} are within {target} %" for target in TARGETS)}.
A standard error holds for two thirds. The error for 1 % is {scatter_law(rows):.2f} % times the scatter there over that
of the base (median). The scatter of `language` grows up to 14 times from the base to another
configuration, and the base cannot tell. The pilot measures 12 pairs of equal lengths on the other configuration first.

Time in kernels scatters less than step time, in traces of a training on an A100 (`particle_transformer`):

{times}
"""


#: Columns of noise in the table of step time and kernel time.
NOISE = ("scatter", "floor_12", "error_12")


def scatter_law(rows: Iterable[Row]) -> float:
    """Return the median error for a target of 1 % over the ratio of the scatters, of points chosen on the base."""
    epochs = grouped(rows, "data", "model", "order")
    return median(
        float(row["error_1"]) / float(row["scatter"]) * float(base["scatter"])
        for several in epochs.values()
        for base in several
        if base["judged_on"] == "base"
        for row in several
        if row["chosen_on"] == "base" and row["judged_on"] != "again"
    )


def chosen_on(row: Row) -> str:
    """Return the recording that points were chosen on; an empty text if it is the base, and judged too."""
    return "" if row["judged_on"] == row["chosen_on"] else row["chosen_on"]


def grouped(rows: Iterable[Row], *names: str) -> dict[tuple[str, ...], list[Row]]:
    """Return the rows by the values of some columns."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups


def root_mean_square(rows: Sequence[Row], target: str) -> float:
    """Return the root mean square over recordings of the error for a target."""
    return fmean(value**2 for value in column(rows, f"error_{target}")) ** 0.5


def mean_points(rows: Sequence[Row], target: str) -> str:
    """Return the mean number of points for a target."""
    return f"{fmean(column(rows, f'points_{target}')):.0f}"


def coverage() -> str:
    """Return the tables of how often intervals of a selection hold the truth in simulation."""
    rows = read("selection_coverage")
    chosen: dict[str, list[Row]] = {}
    for row in rows:
        chosen.setdefault(row["selector"], []).append(row)
    table = grid(
        ("selector", "total held", "speed-up held", "mean error"),
        (
            (
                f"`{name}`",
                span(column(several, "total_covered")),
                span(column(several, "speedup_covered")),
                span(column(several, "mean_error")),
            )
            for name, several in chosen.items()
        ),
    )
    return (
        f"Simulated epochs of {len({row['shape'] for row in rows})} shapes tell how often 95 % intervals hold "
        "([`selection_coverage.csv`](../tests/accuracy/selection_coverage.csv)). Their cost is quadratic in the "
        f"length, as the intervals assume.\n\n{table}"
    )


def real_epochs() -> str:
    """Return the table of selections on the particle transformer's traces."""
    rows = read("selection_traces")
    halves = [name for name in rows[0] if "_from_" in name and name.endswith("_regression")]
    table = grid(
        ("trace", "iterations", "points", "own total", "other half, regression, worst"),
        (
            (
                row["trace"],
                row["iterations"],
                row["points"],
                percent(float(row["own_points"]), 3),
                percent(max(float(row[name]) for name in halves)),
            )
            for row in rows
        ),
    )
    return (
        "Traces of a training with varying lengths on an A100 "
        f"([`selection_traces.csv`](../tests/accuracy/selection_traces.csv)), error of the kernel time:\n\n{table}"
    )


def kernels() -> str:
    """Return the section about choosing kernels."""
    rows = read("kernel_sampling")
    table = grid(
        (
            *("scored on", "traces", "fewer kernels", "error, median", "worst", "held"),
            *("uniform sample", "first of each name and grid", "clusters"),
        ),
        (
            (
                label,
                str(len(chosen)),
                f"{min(column(chosen, 'fewer')):.0f} to {max(column(chosen, 'fewer')):.0f}x",
                percent(median(column(chosen, "ratio_error")), 2),
                percent(max(column(chosen, "ratio_error")), 2),
                span(column(chosen, "ratio_coverage"), 0),
                *(percent(median(column(chosen, f"{name}_error"))) for name in ("uniform", "sieve", "pka")),
            )
            for label, kind in (("the other half of the iterations", "half"), ("another device", "device"))
            for chosen in [[row for row in rows if row["scored"] == kind]]
        ),
    )
    return f"""## Selecting kernels

A sample is planned on one half of a real trace, for 1 % at 95 %, and scored on times that it has not seen. The last
three columns are simpler rules on the same traces, median error. The table is
[`kernel_sampling.csv`](../tests/accuracy/kernel_sampling.csv).

{table}

On other workloads GCL-Sampler's authors report 259x fewer kernels at 0.37 %. For PKA they report 129x at 20.90 %, for
Sieve 95x at 4.10 %, and for STEM+ROOT 57x at 0.38 %.
"""


def operators() -> str:
    """Return the section about durations of operators."""
    rows = [row | dict(zip(("kind", "device"), row["case"].split(" ")[:2], strict=True)) for row in single_kernels()]
    fp32 = [row for row in rows if " fp32 " in row["case"]]
    means = {row["case"].rsplit(":", 1)[0]: row["error"] for row in read("kernel_durations") if ": mean" in row["case"]}
    table = grid(
        ("FP32", "fitted", "carried", "worst device, carried", "held, fitted", "held, carried", "NeuSight's own"),
        (
            (
                KINDS[kind],
                percent(float(means[f"{kind}, fitted"])),
                percent(float(means[f"{kind}, carried"])),
                worst_device([row for row in fp32 if row["kind"] == kind and "carried" in row["case"]]),
                *(
                    span(column((r for r in fp32 if r["kind"] == kind and basis in r["case"]), "covered"), 0)
                    for basis in ("fitted", "carried")
                ),
                percent(figure),
            )
            for kind, figure in NEUSIGHT.items()
        ),
    )
    return f"""## Durations of operators

Measured FP32 operators of five NVIDIA GPUs and an MI100, most of them outside the fitted range of shapes. Carried fits
are those of the other five devices, and their means are over all six. The means of own fits are over P100, V100 and
A100. A T4 and a P4 were hotter in the fitted tables than in the scored ones: their products take 1.3 and 2.5 times as
long there.
Intervals are for 90 %. The table is [`kernel_durations.csv`](../tests/accuracy/kernel_durations.csv).

{table}

The form of the models was chosen with these devices in view. So was the energy of a FLOP under a power limit: of 19 to
23 pJ, 22 is the best for products of the three limited cards. NeuSight's figures are its authors', on other
shapes.

{half_precision(rows)}

{framework_operators()}

{framework_attention()}

{relatives()}

{convolutions()}
"""


def relatives() -> str:
    """Return the tables of devices that are predicted from relatives, and of the recordings."""
    rows = [dict(zip(("kind", "device", "dtype", "how"), row["case"].split(" ", 3), strict=True)) | row for row in (
        {**row, "case": row["case"].replace("RTX PRO 6000 Server", "RTX_PRO_6000")} for row in read("relatives")
    )]  # fmt: skip

    def score(row: Row) -> tuple[str, str, str]:
        return percent(float(row["error"])), f"{float(row['bias']):.2f}", percent(float(row["covered"]))

    def mean(some: Sequence[Row], figure: str) -> str:
        counts = [int(row["rows"]) for row in some]
        return percent(sum(n * float(row[figure]) for n, row in zip(counts, some, strict=True)) / sum(counts))

    recorded = {how: [row for row in rows if row["how"] == how] for how in ("nothing recorded", "other recording")}
    copied = {(row["kind"], row["device"], row["dtype"]): row["copy"] for row in recorded["other recording"]}
    by_key = {(row["kind"], row["device"], row["dtype"]): row for row in recorded["other recording"]}
    devices = dict.fromkeys(row["device"] for row in recorded["nothing recorded"])
    head = ("operator", "device", "type", "nothing recorded", "bias", "held", "other recording", "bias", "held", "copy")
    first = [
        (KINDS[key[0]], key[1], key[2], *score(row), *score(by_key[key]), percent(float(copied[key])))
        for row in recorded["nothing recorded"]
        for key in [(row["kind"], row["device"], row["dtype"])]
    ]
    for device in devices:
        parts = [[row for row in recorded[how] if row["device"] == device] for how in recorded]
        cells = [(mean(part, "error"), "", mean(part, "covered")) for part in parts]
        first.append(("all", device, "", *cells[0], *cells[1], ""))
    second = [
        (
            KINDS[row["kind"]], row["device"].replace("_", " "), row["dtype"],
            row["relation"], *score(row), percent(float(row["copy"])) if row["copy"] else "", row["copied"],
        )
        for row in rows
        if row["how"] == "left out"
    ]  # fmt: skip
    left_out = ("operator", "device", "type", "relatives", "carried", "bias", "held", "best copy", "from")
    return f"""### Devices that nobody measured

Operators that the project recorded on an H100 and an H200: products of random sizes, half of which are not aligned,
and rows and streams, launched again and again. *Nothing recorded* is predicted without the recordings: FP32 from FP32
tables of other devices, which hold launches, and products in BF16 from TensorRT-LLM's. *Other recording* is predicted
by fits of the other device's recording alone. A *copy* is the other device's time, times the ratio of the roofs.

{grid(head, first)}

The rates of rows that are not aligned, and what a softmax and a normalisation cost beside their bytes, were chosen in
view of the H100's recording. So was what intervals add for operators whose kernels nobody measured.

Each device left out of the shipped fits. *Relatives*: `family` is of the same maker, for computing or for graphics as
the device; `other` is not. The best copy is the best of all devices, which nobody knows beforehand. The table is
[`relatives.csv`](../tests/accuracy/relatives.csv).

{grid(left_out, second)}

Two things were seen on the RTX PRO 6000 and an A40. Generations of one maker differ in attention of new tokens.
Graphics cards sustain nine tenths of their peak."""


def convolutions() -> str:
    """Return the table of convolutions."""
    cases = {tuple(row["case"].split(" ")): row for row in read("convolutions")}
    heads = ("device", "type", "other shapes", "bias", "held", "good choice", "carried", "bias", "held", "good choice")

    def cells(row: Row) -> tuple[str, ...]:
        errors = percent(float(row["error"])), f"{float(row['bias']):.2f}", percent(float(row["covered"]))
        return *errors, percent(float(row["choice"]))

    keys = [key[:3] for key in cases if key[3:] == ("all", "halves")]
    table = grid(
        heads,
        (
            (
                device.replace("-", " "),
                dtype,
                *cells(cases[device, dtype, library, "all", "halves"]),
                *cells(cases[device, dtype, library, "all", "carried"]),
            )
            for device, dtype, library in keys
        ),
    )
    return f"""Convolutions in all directions, by MIOpen's records (MI) and DeepBench's sheets (others). *Other shapes*
is one half of the geometries, predicted from the other half. *Good choice* is the share whose predicted algorithm took
at most 15 % longer than the fastest; an algorithm that was not measured counts as a bad one. DeepBench names it forward
only. Directions are apart in [`convolutions.csv`](../tests/accuracy/convolutions.csv).

{table}"""


def framework_operators() -> str:
    """Return the table of operators inside inference frameworks."""
    cases = [(row["case"].split(" "), row) for row in read("framework_operators") if "attention" not in row["case"]]
    by_case = {tuple(case[:3]): {} for case, _ in cases}
    for (*key, library, basis), row in cases:
        by_case[*key][f"{library} {basis}"] = row

    def cells(row: Row | None) -> tuple[str, str, str]:
        if row is None:
            return "", "", ""
        return percent(float(row["error"])), f"{float(row['bias']):.2f}", percent(float(row["covered"]))

    def others(rows: Mapping[str, Row], basis: str) -> str:
        others = [row for name, row in rows.items() if not name.startswith("trtllm ") and name.endswith(basis)]
        return span(column(others, "error"), 0) if others else ""

    heads = (
        "operator",
        "device",
        "type",
        "other shapes",
        "bias",
        "held",
        "carried",
        "bias",
        "held",
        "other frameworks",
        "carried",
    )
    table = grid(
        heads,
        (
            (
                KINDS[kind],
                device.partition("-")[0],
                dtype,
                *cells(rows.get("trtllm halves")),
                *cells(rows.get("trtllm carried")),
                others(rows, "fitted"),
                others(rows, "carried"),
            )
            for (kind, device, dtype), rows in by_case.items()
        ),
    )
    return f"""Operators inside inference frameworks, as AIConfigurator measured them. The fits are of TensorRT-LLM,
which calls NVIDIA's libraries. *Other shapes* is one half of the shapes, predicted from the other half. *Other
frameworks* is the error of the same fits on SGLang and vLLM, whose own FP8 and NVFP4 kernels differ. INT8, weight-only
types and NVFP4 were measured on one device each, so they are carried from fits of another type. Experts are fitted for
each framework and backend, and quantization for each framework; the last column is the range of those others, carried
over. The table is
[`framework_operators.csv`](../tests/accuracy/framework_operators.csv).

{table}"""


def framework_attention() -> str:
    """Return the table of attention inside inference frameworks."""
    rows = {tuple(row["case"].split(" ")): row for row in read("framework_operators") if "attention" in row["case"]}
    libraries = {"trtllm": "TensorRT-LLM", "vllm": "vLLM", "sglang": "SGLang"}

    def cells(case: tuple[str, ...], library: str) -> tuple[str, ...]:
        if (*case, library, "halves") not in rows:
            return ("",) * 4
        half, carried = (rows[*case, library, basis] for basis in ("halves", "carried"))
        return (percent(float(half["error"])), percent(float(carried["error"])), f"{float(carried['bias']):.2f}",
                percent(float(carried["covered"])))  # fmt: skip

    heads = ["attention of", "device", "type"]
    heads += [f"{library}{what}" for library in libraries.values() for what in ("", ", carried", ", bias", ", held")]
    table = grid(
        heads,
        (
            ({"context_attention": "prompts", "generation_attention": "new tokens"}[kind], device.partition("-")[0],
             dtype, *(cell for library in libraries for cell in cells((kind, device, dtype), library)))
            for kind, device, dtype in dict.fromkeys(case[:3] for case in rows)
        ),
    )  # fmt: skip
    return f"""Attention is fitted for each framework apart. The first figure of a framework is the error of one half of
the shapes, predicted from the other half. *Carried* is the error of a device that was left out, with its bias and the
share of times in the 90 % interval. Only the fits of the nearest devices are carried: those of H100 and B200 to each
other, and both to A100. Frameworks take other kernels on each device, so that those of SGLang in FP8 differ by half.

{table}"""


def single_kernels() -> list[Row]:
    """Return the rows of kernel_durations.csv that are no means."""
    return [row for row in read("kernel_durations") if row["rows"]]


def worst_device(rows: Sequence[Row]) -> str:
    """Return the device with the greatest error, and the error."""
    worst = max(rows, key=lambda row: float(row["error"]))
    return f"{worst['device']} {percent(float(worst['error']))}"


def half_precision(rows: Sequence[Row]) -> str:
    """Return the table of FP16 operators."""
    groups = (("halves of vidur", "other sizes"), ("other files", "another model"), ("carried", "another device"))
    fp16 = [row for row in rows if " fp16 " in row["case"]]
    table = grid(
        ("FP16, A100 and A40", *(f"fitted to {label}" for _, label in groups)),
        (
            (
                KINDS[kind],
                *(mean_of(row for row in fp16 if row["kind"] == kind and key in row["case"]) for key, _ in groups),
            )
            for kind in dict.fromkeys(row["kind"] for row in fp16)
            if any(row["kind"] == kind and "carried" in row["case"] for row in fp16)
        ),
    )
    return (
        "Operators of three published FP16 profiles, mean error. Only products carry over to another device."
        f"\n\n{table}"
    )


def mean_of(rows: Iterable[Row]) -> str:
    """Return the mean error of some rows."""
    return percent(fmean(column(rows, "error")))


def bert() -> str:
    """Return the section about the parts of BERT-Large."""
    rows = read("bert")
    limited = {row["case"]: row for row in rows if row["limit"]}
    shares = [row for row in rows if row["case"].endswith((", fitted", ", carried"))]
    devices = sorted({row["case"].split(", ")[2] for row in shares})

    def error(device: str, basis: str) -> str:
        alike = [row for row in shares if row["case"].split(", ")[2:] == [device, basis]]
        return percent(fmean(float(row["error"]) for row in alike if float(row["measured"]) >= 0.05))

    table = grid(
        ("device", "fitted", "carried"),
        [(device, *(error(device, basis) for basis in ("fitted", "carried"))) for device in devices],
    )
    ratios = []
    for name, title in (
        ("precision", "mixed over full precision"),
        ("phases", "phase 1 over phase 2"),
        ("devices", "most over fewest devices, each device"),
    ):
        alike = column([row for row in rows if row["case"].startswith(f"{name}: ")], "error")
        found = f"{sum(each <= 15 for each in alike)} of {len(alike)}"
        ratios.append((title, percent(float(limited[f"ratios of {name}: median"]["error"])), found))
    mean = percent(float(limited["shares of 5% and more, each device left out: mean"]["error"]))
    return f"""## Parts of BERT-Large

Shares of the operators of a layer in its time, FP32, inference and training of 512 tokens. The error is that of
shares of 5 % and more; its mean over devices that are left out is {mean}.

{table}

Throughput of pre-training with LAMB, published by NVIDIA for four frameworks, V100 and A100, 1 to 512 GPUs. The
error is that of ratios; nothing was fitted to them.

{grid(("ratio of throughput", "median error", "within 15 %"), ratios)}

PyTorch and PaddlePaddle leave out padding in phase 2, so that their ratios of phases are not scored. TensorFlow gains
less from mixed precision than the others on the same GPUs. The table is [`bert.csv`](../tests/accuracy/bert.csv);
`seqpoint validate bert` prints it.
"""


def models() -> str:
    """Return the section about whole transformers."""
    rows = {row["case"]: row for row in read("models") if row["case"].startswith("all ")}
    cases = [case.removesuffix(" fitted") for case in rows if case.endswith(" fitted")]
    table = grid(
        ("", "runs", "fitted", "held", "carried", "held"),
        (
            (
                case.removeprefix("all on ").removeprefix("all of "),
                rows[f"{case} fitted"]["runs"],
                *(
                    percent(float(rows[f"{case} {basis}"][name]), digits)
                    for basis in ("fitted", "carried")
                    for name, digits in (("error", 1), ("covered", 0))
                ),
            )
            for case in cases
        ),
    )
    return f"""## Whole transformers

Measured FP32 runs of BERT, GPT, OPT and Switch transformers, inference and training, on six GPUs. The time is the
sum of
the operators. Intervals are for 90 %. The table is [`models.csv`](../tests/accuracy/models.csv).

{table}

NeuSight reports 10.0 % on 12 devices. The P4 of these runs was twice as slow as that of the scored products. That the
Switch transformer is gated, as T5 1.1 is, was chosen in view of its six runs.
"""


def collectives() -> str:
    """Return the section about collectives."""
    rows = [row for row in read("collectives") if row["rows"]]
    ways = ("fitted", "sizes left out", "workers left out", "device left out")
    labels = ("own fit", "sizes left out", "number of workers left out", "device left out")
    places = {
        "A100, NCCL from PyTorch": lambda row: "A100-SXM4-80GB (switch)," in row["case"] or "(pairs)" in row["case"],
        **{
            f"{name}, NCCL in a node": lambda row, name=name: (
                f"{name}-" in row["case"] and "(switch, nccl)" in row["case"]
            )
            for name in ("A100", "H100", "B200")
        },
        "all-reduces of inference frameworks": lambda row: "custom" in row["case"],
        "A100 over Slingshot": lambda row: "slingshot" in row["case"],
        "A100 over TCP": lambda row: "ethernet" in row["case"],
        "A100 over InfiniBand": lambda row: "infiniband" in row["case"],
        "H100, 8 x 400 Gbit/s": lambda row: "8 x 400 Gbit/s)" in row["case"],
        "H100, degraded pairs": lambda row: "8 x 112 Gbit/s)" in row["case"],
    }
    table = grid(
        ("", "groups", "error", "median", "bias", "worst group", "held"),
        (
            (
                f"{place}, {label}",
                str(len(chosen)),
                mean_of(chosen),
                percent(fmean(column(chosen, "median"))),
                f"{geometric_mean(column(chosen, 'bias')):.2f}",
                percent(max(column(chosen, "error"))),
                percent(fmean(column(chosen, "covered")), 0),
            )
            for place, holds in places.items()
            for way, label in zip(ways, labels, strict=True)
            if (chosen := [row for row in rows if row["case"].endswith(way) and holds(row)])
        ),
    )
    missed = [row["case"] for row in read("collectives") if row["met"] == "NO"]
    items = "\n".join(f"- {case}" for case in missed)
    return f"""## Collectives

Measured collectives of 2 to 8 devices in a node, and of 2 to 32 devices on two and eight nodes. Intervals are for 90 %.
Where many sizes were measured, a quarter is never fitted, and scores. Elsewhere each size is left out in turn, from
64 KiB on. Sizes are powers of two there, so the curve then spans a factor of four: this is worse than at a measured
size. The table is [`collectives.csv`](../tests/accuracy/collectives.csv).

{table}

{len(missed)} limits are missed:

{items}

All-reduces of inference frameworks and TCP have no limit. Slingshot was
measured with three settings of its library, each a group of its own. H200, GB200, more than eight nodes, RoCE and boxes
without links were not measured. How curves are carried over was chosen with these groups in view.
"""


def another_device() -> str:
    """Return the section about kernels on another device."""
    rows = [row for row in read("retimed") if row["class"] == "total"]
    table = grid(
        ("job", "measured", "predicted", "error", "interval holds"),
        (
            (
                row["case"].replace(" -> ", " to "),
                f"{row['measured']} ms",
                f"{row['retimed']} ms",
                f"{float(row['error']):+.1f} %",
                "yes" if float(row["low"]) <= float(row["measured"]) <= float(row["high"]) else "no",
            )
            for row in rows
        ),
    )
    return f"""## Another device

Four jobs were traced on two GPUs each. `scale_device` predicts the total kernel time, without collectives, from the
other
device's trace. The table is [`retimed.csv`](../tests/accuracy/retimed.csv).

{table}

The terms of the model were chosen with these pairs in view; their values come from elsewhere. The trace of the V100
has no
shapes, and the A100 computed in TF32, which that trace cannot tell. The last row says so to the model.

{by_class()}
"""


def gains() -> str:
    """Return the section about jobs that ran before and after a change."""
    rows = read("pairs")
    table = grid(
        ("change", "pairs", "measured gain", "error, median", "worst", "held", "error of saying 1.0"),
        (
            (
                change,
                str(len(of_change)),
                f"{min(measured):.2f} to {max(measured):.2f}",
                percent(median(errors)),
                percent(max(errors), 0),
                f"{sum(row['inside'] == 'yes' for row in of_change)} of {len(of_change)}",
                percent(median(100 * abs(1 / gain - 1) for gain in measured)),
            )
            for change in dict.fromkeys(row["change"] for row in rows)
            for of_change in [[row for row in rows if row["change"] == change]]
            for measured in [[float(row["measured"] or row["traced"]) for row in of_change]]
            for errors in [[*map(gain_error, of_change)]]
        ),
    )
    causes = [row["cause"] for row in rows if row["cause"] and row["change"] != "recording"]
    on_h200 = [gain_error(row) for row in rows if row["change"] == "recording" and "h200" in row["runs"]]
    count = {text: sum(cause.startswith(text) for cause in causes) for text in ("the host", "the recording")}
    return f"""## Gains of what-ifs

Jobs ran before and after a change, and the gain was predicted from the trace before it: on another device, in mixed
precision, with a larger batch. The measured gain is that of steps without a profiler if they were timed, and otherwise
that between the traces, without outlying steps. `recording` compares a step without a profiler with its trace. A pair
of devices counts both ways. No GPU has recorded `--parts h` yet, so the what-ifs on launches, optimizers, attention,
streams, priorities and serving have no figure here. The table is
[`pairs.csv`](../tests/accuracy/pairs.csv), with the cause of each error above 10 %; [validate.md](validate.md) explains
causes.

{table}

Of {len(causes)} causes, {count["the host"]} are a host that works more or less after the change. A trace before it
cannot tell: casts of mixed precision, another host.
{count["the recording"]} go with the profiler: the gain is as predicted between the traces, or if its cost is taken off.
Costs of a recording were fitted on the H100 and scored on the H200, where the median error is
{percent(median(on_h200))}.
"""


def serving() -> str:
    """Return the section about steps of serving at other sizes."""
    rows = read("serving_steps")
    groups = grouped(rows, "phase", "fits", "device")
    table = grid(
        ("phase", "fits", "device", "steps", "mean error", "worst", "interval holds"),
        (
            (
                *key,
                str(len(several)),
                *(percent(100 * function(errors)) for function in (fmean, max)),
                percent(100 * fmean(column(several, "inside")), 0),
            )
            for key, several in groups.items()
            for errors in [[abs(value) for value in column(several, "error")]]
        ),
    )
    return f"""## Serving

Steps of decode and prefill are built from operators that AIConfigurator measured in three frameworks, at two sizes
each. They are projected from one size to the other. `batch` goes from 16 or 32 requests to 1 to 256, and `context` from
prompts of 1,024 or 2,048 tokens to 512 to 8,192. Fits of `others` leave the device out. The table is
[`serving_steps.csv`](../tests/accuracy/serving_steps.csv).

{table}

Ranks that share layers or experts have no measurement here.
"""


def plan_order() -> str:
    """Return the section about the order of plans."""
    rows = read("plan_order")
    cells = (
        (row["case"], row["n"], *(row[name] and percent(100 * float(row[name])) for name in ("predicted", "measured")))
        for row in rows
    )
    return f"""## Order of plans

Plans split one job on as many devices in another way. `sweep` says how sure the fastest one is. The spread of the ratio
of two plans was found on the fitted steps of Megatron-LM, and pairs of the others are scored. A pair counts as right if
the plan that is predicted to be faster was. The table is [`plan_order.csv`](../tests/accuracy/plan_order.csv).

{grid(("case", "n", "predicted", "measured"), cells)}
"""


def power() -> str:
    """Return the section about power limits."""
    rows = [row for row in read("power_limits") if row["limit_w"] == "all"]
    names = ("time_median", "energy_median", "regret", "best_within_step")
    table = grid(
        (
            "device",
            "jobs",
            "time, median",
            "energy, median",
            "energy lost by its best limit",
            "within 25 W of best",
        ),
        ((row["device"], row["jobs"], *(percent(100 * float(row[name])) for name in names)) for row in rows),
    )
    return f"""## Power limits

Zeus measured training jobs at limits from 100 or 125 to 250 W. `limit_power` projects each from its mean power at the
highest limit, and nothing is fitted. At 100 W on V100 the median error of time is 12 %: there, jobs slow more than the
third root. Of jobs that stay below all limits, each limit is as good, and the best one measured is chance. The table is
[`power_limits.csv`](../tests/accuracy/power_limits.csv).

{table}
"""


def intervals() -> str:
    """Return the section about the coverage of intervals of projections."""
    rows = [row for row in read("intervals") if row["intervals"]]
    table = grid(
        ("comparison", "intervals", "cases", "held", "high / low", "error", "widen by", "held, widened by others"),
        (
            (
                row["kind"],
                f"{int(row['intervals']):,}",
                row["cases"],
                percent(float(row["coverage"]), 0),
                f"{float(row['width']):.2f}",
                percent(float(row["error"]), 0),
                f"{float(row['widening']):.2f}",
                percent(float(row["held_out"]), 0),
            )
            for row in rows
        ),
    )
    return f"""## Intervals of projections

Work was measured before and after a change, and projected from before to after. A 90 % interval should hold 85 to
95 % of the times measured after. `error` is a median. `widen by` is the factor, as a power of ratios, that makes the
intervals hold 90 %. In the last column each case is widened by what the other cases need. The table is
[`intervals.csv`](../tests/accuracy/intervals.csv), which has the kernel time of each pair of traces, too;
[validate.md](validate.md) explains the comparisons.

{table}

The ranges of efficiency were widened until intervals held the layers of transformers; the last column is the test of
that. Products on the Radeon Vega of 2017 and in FP8, whose times hold the conversion of operands, are missed most.
Cases of one device or library err alike, so the number of independent cases is smaller than that of intervals.
"""


def by_class() -> str:
    """Return the table of errors by class of kernels."""
    rows = [row for row in read("retimed") if row["class"] != "total" and "tf32" not in row["case"]]
    table = grid(
        ("class", "cases", "error, median", "worst"),
        (
            (name, str(len(errors)), percent(median(errors), 0), percent(max(errors), 0))
            for name in dict.fromkeys(row["class"] for row in rows)
            for errors in [[abs(float(row["error"])) for row in rows if row["class"] == name]]
        ),
    )
    return f"Single classes are off by more, as libraries choose other kernels:\n\n{table}"


def training() -> str:
    """Return the section about training steps."""
    rows = {row["case"]: row for row in read("training")}
    table = grid(
        ("steps", "number", "error", "worst", "held"),
        (
            (
                case,
                f"{int(row['steps']):,}",
                *(percent(float(row[name]), digits) for name, digits in (("error", 1), ("worst", 0), ("covered", 0))),
            )
            for case, row in rows.items()
            if case in ("fitted", "not fitted") or case.startswith(("TP", "PP"))
        ),
    )
    return f"""## Training steps

Published steps of Megatron-LM on 2 to 8 A100 (vTrain's repository). Eleven costs are fitted to a tenth of the steps,
chosen
by a hash. Intervals are for 90 %. The table is [`training.csv`](../tests/accuracy/training.csv).

{table}

vTrain's authors report 8.4 % on these steps. The published times were composed from measurements of 32 shapes. So
steps of
one shape err alike, and a tenth of the steps has seen most shapes. No step of another device or of several nodes was
there
to score.
"""


def jobs() -> str:
    """Return the section about jobs that nobody ran: other systems, edits, memory, stragglers."""
    steps = {row["case"]: row for row in read("training_steps")}
    shown = (
        "MLPerf: fitted", "MLPerf: left out", "MLPerf: ratio of scale", "SimuMax: fitted", "SimuMax: left out",
        "Megatron-LM: left out", "MPT: left out", "MPT: MPT of 2048 tokens", "MPT: MPT of 16384 tokens",
        "MPT: MPT of 65536 tokens", "BERT: left out", "BERT: ratio of precision", "BERT: ratio of phase",
        "BERT: ratio of devices",
    )  # fmt: skip
    measures = ("median", "mean", "worst")
    table = grid(
        ("steps", "number", *measures, "held"),
        (
            (
                case,
                steps[case]["n"],
                *(percent(float(steps[case][name])) for name in measures),
                percent(float(steps[case]["covered"]), 0) if steps[case]["covered"] else "",
            )
            for case in shown
        ),
    )
    memory = grid(
        ("memory of a job", "cases", "mean", "worst"),
        (
            (row["case"], row["n"], percent(float(row["mean"])), percent(float(row["worst"])))
            for row in read("job_memory")
        ),
    )
    strategies = {
        "work": "scaled by work",
        "models": "our models",
        "models without device": "our models, device left out",
    }
    scaled = grid(
        ("operator", "predictions", *strategies.values()),
        (
            (
                operator,
                chosen["work"]["predicted"],
                *(percent(float(chosen[name]["mean_error"])) for name in strategies),
            )
            for operator in ("product", "normalisation", "all-reduce")
            for chosen in [
                {
                    row["strategy"]: row
                    for row in read("comp_vs_comm")
                    if row["device"] == "all" and row["operator"] == operator
                }
            ]
        ),
    )
    edits, answers = column(read("job_edits"), "error"), read("stragglers")
    worst = max(abs(value) for value in column(answers, "error"))
    return f"""## Jobs that nobody ran

Training steps of MLPerf, of Megatron-LM on B200 (SimuMax) and on 8 to 512 A100 (arXiv 2205.05198), of MPT with FSDP,
and of BERT. One calibration serves all. It is fitted to half of MLPerf's systems, chosen by a hash of their name, to
one of SimuMax's models, and to a tenth of the steps above. Nothing is fitted to MPT's, BERT's and the published steps
of Megatron-LM. But the work that runs do, and how far devices may differ, were settled in view of all these steps.
A ratio is of two steps of one job that differ in one property. Intervals are for 90 %. The table is
[`training_steps.csv`](../tests/accuracy/training_steps.csv).

{table}

Traces of `particle_transformer` on an A100 are edited to the batch or length of another trace. {len(edits)} edits are
off by {min(edits):.1f} to {max(edits):+.1f} % in total kernel time. Their damping was chosen in view of these traces.
The table is [`job_edits.csv`](../tests/accuracy/job_edits.csv).

{memory}

The table is [`job_memory.csv`](../tests/accuracy/job_memory.csv). Which arrays are kept was settled in view of
SimuMax's cases.

Operators of other hidden sizes, predicted from those of one, mean error:

{scaled}

The table is [`comp_vs_comm.csv`](../tests/accuracy/comp_vs_comm.csv).

Stragglers: {len(answers)} published answers on three jobs are off by at most {percent(worst, 4)}. The table is
[`stragglers.csv`](../tests/accuracy/stragglers.csv).
"""


def published() -> str:
    """Return the section about figures that papers report."""
    rows = read("published")
    table = grid(
        ("system", "figures", "gated", "within limits", "fitted"),
        (
            (
                title,
                str(len(chosen)),
                str(sum(row["met"] != "" for row in chosen)),
                str(sum(row["met"] == "yes" for row in chosen)),
                str(sum(row["fitted"] == "yes" for row in chosen)),
            )
            for system, title in SYSTEMS.items()
            for chosen in [[row for row in rows if row["system"] == system]]
        ),
    )
    gated = [row for row in rows if row["met"]]
    abstract = grid(
        ("figure of an abstract", "published", "ours", "fitted", "within limits"),
        (
            (
                f"{row['system']}: `{row['name']}`",
                unit(row, "published"),
                unit(row, "ours"),
                row["fitted"],
                row["met"].lower(),
            )
            for row in rows
            if row["grade"] == "A"
        ),
    )
    missed = "\n".join(
        f"- {row['system']}, `{row['name']}`: {unit(row, 'ours')}, published {unit(row, 'published')}. "
        f"{MISSED[row['system'], row['name']]}"
        for row in rows
        if row["met"] == "NO"
    )
    return f"""## Figures that papers report

Each published set-up is a synthetic trace, to which the what-if that users run is applied. Figures of abstracts (A),
public sources (S) and arithmetic (D) are gated. Others are shown only. Orders are counted in cases. "Fitted" counts
figures that a parameter was fitted on.

The table is [`published.csv`](../tests/accuracy/published.csv); `seqpoint validate published` prints it.

{table}

{sum(row["met"] == "yes" for row in gated)} of {len(gated)} gated figures are within their limits. These are not:

{missed}

{abstract}

None of these figures was measured on a GPU by this project.
"""


def unit(row: Row, name: str) -> str:
    """Return a published figure or ours with its unit."""
    return f"{float(row[name]):g}{UNITS.get(row['unit'], '')}"


#: Methods of tests/accuracy/contention.csv with their headings.
METHODS = {
    "no contention": "no contention",
    "equal shares": "equal shares",
    "best constant": "best constant",
    "shipped": "shipped",
    "fitted to other ranks": "other ranks",
    "fitted to other classes": "other classes",
    "fitted to other kernels": "other kernels",
}
MEASURES = {
    "p90": "90th percentile",
    "inferred": "times alone from overlapped",
    "explained": "slow-down explained",
    "sides": "slowed or not: right",
    "covered": "held",
}


def contention() -> str:
    """Return the section about kernels side by side."""
    traces: dict[str, dict[str, Row]] = {}
    for row in read("contention"):
        traces.setdefault(row["trace"], {})[row["method"]] = row
    scored = {name: rows for name, rows in traces.items() if "" not in rows}
    means = grid(
        ("trace", "kernels", "noise", *METHODS.values()),
        (
            (
                name,
                f"{int(rows['shipped']['kernels']):,}",
                percent(float(rows["shipped"]["noise"])),
                *(cell(rows.get(method), "mean") for method in METHODS),
            )
            for name, rows in scored.items()
        ),
    )
    details = grid(
        ("trace", "method", *MEASURES.values()),
        (
            (name, METHODS[method], *(cell(rows[method], key) for key in MEASURES))
            for name, rows in scored.items()
            for method in best_methods(rows)
        ),
    )
    remarks = "\n".join(
        f"- {name}: {remark}"
        for name, rows in traces.items()
        for remark in dict.fromkeys(row["remark"] for row in rows.values())
        if remark
    )
    return f"""## Contention

Kernels that ran beside other work in real traces are predicted from the same kernels alone. Errors are means of
|predicted - measured| over the times alone, weighted by time. `Noise` is the error of alone kernels that are predicted
from other alone kernels. The parameters are shipped, or fitted to the other ranks, classes or kernels of the trace. The
table is [`contention.csv`](../tests/accuracy/contention.csv); [contention.md](contention.md) explains the pairs.

{means}

Four of the shipped parameters were chosen in view of these traces. The best constant is chosen in hindsight. Other
measures, without contention and by the first fit that was not made to the predicted kernels:

{details}

Traces without pairs, and traces whose pairs do not measure contention:

{remarks}

Works that ran side by side on GPUs, recorded by `python -m benchmarks.gpu`. Parameters were fitted to half of the sets
of works of the H100, and rules were chosen in view of all of it. Nothing was fitted to the H200. `One by one` and
`free` are the errors if works never overlap, and if they never slow each other. `Left out`: each scenario is predicted
by a fit to three quarters of the sets of works that it is not in, on its device. The table is
[`recordings.csv`](../tests/accuracy/recordings.csv), and `seqpoint validate contention` scores yours:

{recorded_contention()}

768 scenarios of the H100 have sets of works that were not fitted. Their median error is 3.6 %, their 90th percentile
14.3 %, and 93 % of the pairs of policies are in the right order. With half of the products left out of a fit, the 344
scenarios with one of them have 2.9 and 12.3 %. With every second kind of pair left out, their 393 scenarios have 2.0
and 9.1 %.

What an effect is worth: errors without it, in %
([`ablation.csv`](../tests/accuracy/ablation.csv), by `benchmarks/contention/ablation.py`). Each row has the shipped
parameters, and behind the semicolon a fit to half of the groups, made without the effect. The scenarios share no work
with those of the fit. Without the limits, a fit did
not end in half an hour. The arithmetic of a unit is not needed here, but on real traces: without it, ddp4 is off by
22.3 % instead of 9.8 %, and nanogpt8 by 15.5 instead of 14.9 %.

{ablation()}

Scores with limits on the same recordings, and of selections on their epochs
([`gpus.csv`](../tests/accuracy/gpus.csv)):

{gpu_scores()}
"""


def ablation() -> str:
    """Return the table of what each effect of the contention model is worth."""
    rows = defaultdict[str, dict[str, Row]](dict)
    for row in read("ablation"):
        rows[row["effect"]][row["how"]] = row
    names = ("median", "p90", "sm", "hbm", "order")
    heads = ("without", "median", "90th percentile", "SM", "HBM", "order right")
    return grid(
        heads,
        ([effect, *("; ".join(of[how][name] for how in of) for name in names)] for effect, of in rows.items()),
    )


def recorded_contention() -> str:
    """Return the table of works that were recorded side by side."""
    names = ("device", "how", "mechanism", "scenarios", "median", "p90", "serial", "free")
    heads = ("device", "parameters", "works meet in", "scenarios", "median", "90th percentile", "one by one", "free")
    rows = [[row[name] for name in names] for row in read("recordings")]
    return grid(heads, ([*row[:4], *(percent(float(value)) for value in row[4:])] for row in rows))


def gpu_scores() -> str:
    """Return the table of scores on recorded GPUs that have limits."""
    names = ("device", "case", "ours", "limit", "met")
    return grid(names, ([row[name] for name in names] for row in read("gpus")))


def detailed() -> str:
    """Return the section about the detailed simulation of kernels in PTX."""
    rows = read("detailed")
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        groups.setdefault((row["set"], row["device"]), []).append(float(row["error"]))
    table = grid(
        ("set", "device", "kernels", "mean error", "median error", "bias"),
        (
            (kind, device, str(len(errors)), percent(sum(map(abs, errors)) / len(errors)),
             percent(median([abs(error) for error in errors])), percent(sum(errors) / len(errors)))
            for (kind, device), errors in groups.items()
        ),
    )  # fmt: skip
    heads = ("device", "kernel", "measured us", "simulated us", "error")
    kernels = grid(
        heads,
        (
            (row["device"], f"`{row['kernel']}`", row["measured_us"], row["simulated_us"], percent(float(row["error"])))
            for row in rows
            if row["set"] != "operators"
        ),
    )
    return f"""## Kernels in PTX

Kernels are executed from their PTX and timed by `seqpoint simulate kernel`. `Counters` are twelve kernels of Rodinia,
Parboil and the CUDA samples on a Quadro GV100; `seqpoint validate detailed` computes them. `Recordings` are nine of
them and three of Triton, which we recorded on an H100 and an H200 with cold caches. `Operators` are measurements of
PyTorch by others, of four sizes each. No kernel was fitted. The start of a launch, 2,200 cycles, is the least idle time
of a compute unit in the counters. That half of L2 holds changed lines was learnt from them too. Recordings and
operators were not used. The table is [`detailed.csv`](../tests/accuracy/detailed.csv).

{table}

Most times are too short. Instruction caches, conflicts in register banks and address translation are not modelled, and
DRAM reaches more of its peak under reads and writes than it does on the devices. P100 has the largest bias: its kernels
reach 70 % of the peak bandwidth, and ours 86 %.

{kernels}

On the twelve counted kernels, sectors of global memory and accesses to shared memory equal the counters. So do bytes
read from DRAM, but for `parboil_sad`, 8 % more. Hit rates of L2 differ by less than 0.3 points on eight, and by 3 on
`parboil_sad`. They are 11 and 12 points low on the two of backprop: the counters have more hits than loads can cause,
and only where stores cover sectors in part. On `dct8x8_kernel1_tex` the rate is 0 and not 33 %: textures lie in tiles
that are not documented, and ours row by row.
"""


def cell(row: Row | None, key: str) -> str:
    """Return a measure of contention.csv with its unit, or a dash."""
    return percent(float(row[key])) if row is not None and row[key] else "-"


def best_methods(rows: Mapping[str, Row]) -> list[str]:
    """Return the methods of the table of details: no contention, and the first fit or the shipped parameters."""
    return ["no contention", next((name for name in METHODS if name.startswith("fitted") and name in rows), "shipped")]


def occupancy() -> str:
    """Return the section about workgroups that share a compute unit."""
    rows, shapes = read("occupancy"), read("resident")
    table = grid(
        ("kernels", "number", "known passes", "prediction", "median", "90th percentile", "median of kernels"),
        ((row["kernels of"], row["n"], row["known"], row["law"], *errors_of(row)) for row in rows),
    )
    number, equal, zero = (total(shapes, name) for name in ("shapes", "equal", "zero"))
    return f"""## Occupancy

REEF's authors measured passes of 202 kernels with 8 to 32 workgroups on each compute unit of an MI50. Two passes are
known, and the others are predicted. Nothing else is fitted but one exponent for all, chosen on the other models for its
own row. Whole kernels are predicted from the same two passes. The table is
[`occupancy.csv`](../tests/accuracy/occupancy.csv); [contention.md](contention.md#law-of-occupancy) explains the law.

{table}

Resident workgroups are compared with the occupancy that the PyTorch profiler recorded on H100, A100, V100 and RTX 2080
Ti. Of {number:,} launch shapes in {len(shapes)} traces {equal:,} have its figure. The profiler records 0 for the other
{zero}, as their shared memory exceeds 48 KB ([`resident.csv`](../tests/accuracy/resident.csv)).
"""


def errors_of(row: Row) -> Iterable[str]:
    """Return the errors of a row of occupancy.csv with their unit."""
    return (percent(float(row[name])) for name in ("median", "p90", "kernels"))


def gemms() -> str:
    """Return the section about kernel variants of GEMMs."""
    rows = read("gemms")
    *scores, noise, winners = rows
    table = grid(
        ("table", "scored on", "GEMMs", "time of the best", "regret", "small grids named", "of those, chosen"),
        (
            (
                row["table"],
                {"fitted": "GEMMs of the fit"}.get(row["protocol"], row["protocol"]),
                row["gemms"],
                f"{row['error']} % ({row['error_p90']})",
                f"{row['regret']} % ({row['regret_p90']})",
                f"{row['named']} of {row['measured']}; {row['false_alarms']} more" if int(row["measured"]) else "",
                row["chosen"] if int(row["measured"]) else "",
            )
            for row in scores
        ),
    )
    return f"""## Kernel variants of GEMMs

Libraries choose among thousands of kernels for a GEMM. A fit to some GEMMs predicts the times of these kernels on
others. Errors are medians, with the 90th percentile in brackets. **Regret** is the measured time of the kernel that the
fit chooses over that of the best, less one. A **small grid** has a kernel that reaches 90 % of the best rate with half
of its workgroups; `seqpoint validate gemms` names the GEMMs that have one. The table is
[`gemms.csv`](../tests/accuracy/gemms.csv).

{table}

Each kernel was measured once. Equal kernels differ by {noise["error"]} % ({noise["error_p90"]}), so choosing by one
measurement has a regret of {noise["regret"]} % ({noise["regret_p90"]}). Of the kernels that do most for each
compute unit in use, {100 * float(winners["spearman"]):.0f} % rank in the top tenth of ours ({winners["gemms"]} GEMMs of
{winners["table"]}). No table of NVIDIA was tried. Small grids are found on GEMMs of the fit, and in part on others: the
bar of 10 % is near the error of the prediction.
"""


def memory() -> str:
    """Return the section about caches and DRAM."""
    rows = read("memory")
    table = grid(
        ("case", "ours", "limit", "without launch"),
        (
            (
                row["case"],
                f"{float(row['ours']):.3g}",
                row["limit"],
                row["without_launch"] and f"{float(row['without_launch']):.3g}",
            )
            for row in rows
        ),
    )
    met = sum(row["met"] == "yes" for row in rows)
    return f"""## Caches and DRAM

DRAM is compared with another simulator (DRAMsim3) over its access patterns; that says whether the timing rules are
right, not whether they are those of a device. Hit rates and bytes are those of 13 kernels on a GV100, whose streams are
written from their sources. Times are of a sample of FP32 operators. Errors are shares. {met} of {len(rows)} limits are
met. The table is [`memory.csv`](../tests/accuracy/memory.csv); `seqpoint validate memory` computes it.

{table}

Times have the launch on top, which is not simulated: the shipped floor of a kernel, and the time of the call on the
host. The last column is the error without it. The rules for reductions of long softmax rows were written after
residuals on these devices were seen, so softmax is explained rather than predicted.
"""


def reading() -> str:
    """Return the section about reading traces."""
    rows = read("ingest")
    formats: dict[str, list[Row]] = {}
    for row in rows:
        formats.setdefault(row["format"], []).append(row)
    errors = [name for name in formats if name.endswith("Error")]
    table = grid(
        ("format", "files", "kernels", "collectives matched", "events dropped"),
        (
            (
                name,
                str(len(chosen)),
                f"{total(chosen, 'kernels'):,}",
                matched(chosen),
                f"{total(chosen, 'dropped'):,}",
            )
            for name, chosen in sorted(formats.items())
            if name not in errors
        ),
    )
    known = read("operators")
    return f"""## Reading traces

Events that were read from real traces of every format. Repairs and losses are counted for each file in
[`ingest.csv`](../tests/accuracy/ingest.csv).

{table}

{sum(len(formats[name]) for name in errors)} further tables of rocprof hold sums or samples and no events.
They are refused with an error.

FLOP and bytes are known for {span(column(known, "known"), 0)} of the kernel time of {len(known)} Kineto traces, median
{percent(median(column(known, "known")), 0)}. Where a trace has no shapes, or another library did the work, little is
known
([`operators.csv`](../tests/accuracy/operators.csv)).

{agreement()}
"""


def agreement() -> str:
    """Return the paragraph about Holistic Trace Analysis and TraceLens."""
    rows, operators = read("hta"), read("characterize")
    traces = len({row["trace"] for row in operators})
    paths = sum(row["figure"] == "path_us" for row in rows)
    return (
        f"{len(rows) - paths} figures of Holistic Trace Analysis {rows[0]['version']} and {paths} of its critical "
        "paths are compared by a test ([`hta.csv`](../tests/accuracy/hta.csv)). The figures agree once its rounding is "
        "applied. "
        "[analysis.md](analysis.md) explains each difference. "
        f"{len(operators)} more, of operators, kernels and timelines of {traces} traces, are those of HTA and of the "
        "reports that TraceLens publishes ([`characterize.csv`](../tests/accuracy/characterize.csv)); "
        "[characterize.md](characterize.md) says what is defined otherwise."
    )


def matched(rows: Iterable[Row]) -> str:
    """Return the collectives that were matched across ranks, of all."""
    rows = list(rows)
    every = total(rows, "collectives")
    return f"{total(rows, 'collectives_matched'):,} of {every:,}" if every else ""


def total(rows: Iterable[Row], name: str) -> int:
    """Return the sum of a column of counts."""
    return sum(int(row[name] or 0) for row in rows)


SECTIONS: tuple[Callable[[], str], ...] = (
    *(
        in_short,
        falls_short,
        replay,
        hosts,
        selection,
        points_of_total,
        kernels,
        operators,
        models,
        bert,
        collectives,
        another_device,
        gains,
        serving,
        plan_order,
        power,
        intervals,
    ),
    *(training, jobs, published, contention, occupancy, memory, detailed, gemms, reading),
)


def page() -> str:
    """Return the page as it should be."""
    text = "\n".join([HEAD, *(section() for section in SECTIONS)])
    return "\n\n".join(wrapped(block) for block in text.strip().split("\n\n")) + "\n"


def wrapped(block: str) -> str:
    """Return a block of Markdown with the lines of its sentences filled; headings and tables stay."""
    if block.startswith(("#", "|")):
        return block
    if block.startswith("- "):
        items = block.removeprefix("- ").split("\n- ")
        return "\n".join(textwrap.fill(f"- {item}", 116, subsequent_indent="  ", **KEEP) for item in items)
    return textwrap.fill(block, 116, **KEEP)


if __name__ == "__main__":
    print(page(), end="")
