"""Write the page of accuracy from the tables in `tests/accuracy`.

`python benchmarks/accuracy_page.py > docs/accuracy.md` writes it anew. The README repeats its first table.
"""

import csv
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, geometric_mean, median

ROOT = Path(__file__).parents[1]
TABLES = ROOT / "tests" / "accuracy"

Row = dict[str, str]
#: What a column of a table shows of the rows of a group.
Cell = Callable[[Sequence[Row]], str]

#: Mean errors that NeuSight's authors report, on shapes outside its training range; in percent.
NEUSIGHT = {"matmul": 13.9, "batched_matmul": 13.8, "elementwise": 19.3, "softmax": 13.9, "normalization": 56.7}
KINDS = {
    "matmul": "matrix product",
    "batched_matmul": "batched product",
    "elementwise": "elementwise",
    "softmax": "softmax",
    "normalization": "normalisation",
    "matrix_matmul": "matrix product",
    "experts": "experts",
    "quantization": "quantization",
    "quantization_scale": "scale of quantization",
    "context_attention": "attention, prompts",
    "generation_attention": "attention, new tokens",
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
    ("goldyloc", "default_over_sequential"): "Default kernels fill each other's last waves here, perhaps too well.",
    ("bert", "gemms_dominate"): "Of four short sequences in mixed precision, LAMB takes half of the time.",
}
#: Units of published figures; counts have none.
UNITS = {"%": " %", "x": "x"}
#: A link or a name is not broken.
KEEP = {"break_long_words": False, "break_on_hyphens": False}

HEAD = """# Accuracy: how far can I trust a figure?

Look at [what falls short](#what-falls-short), then at the section of the prediction: its data, what was fitted, the
errors, and the table with a row for each case. Every figure is computed from these tables, and a change that makes one
worse fails a test. [benchmarks/README.md](../benchmarks/README.md) has the command that makes each again;
[reproduce.md](reproduce.md) shows three.

- An **error** is |predicted / measured - 1|; of a case it is the mean over its measurements.
- **3.1 % (14.7)** is the median over cases, and in brackets the worst one.
- **Fitted** cases are of a device or job that parameters were fitted to. All others are held out.
- **Carried** means that nothing of the device was measured: its data sheet and fits of other devices were used.
- **Held** is the share of measured values inside the stated interval, which is for 90 % unless a line says otherwise.
"""


def read(name: str) -> list[Row]:
    """Return the rows of a table in tests/accuracy."""
    return list(csv.DictReader((TABLES / f"{name}.csv").read_text().splitlines()))


def column(rows: Iterable[Row], name: str) -> list[float]:
    """Return the values of a column, without the empty ones."""
    return [float(row[name]) for row in rows if row[name] not in ("", None)]


def grouped(rows: Iterable[Row], *names: str) -> dict[tuple[str, ...], list[Row]]:
    """Return the rows by the values of some columns."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups


def parted(rows: Iterable[Row], *names: str) -> list[Row]:
    """Return the rows with the words of their case as columns; the last one takes the rest."""
    return [row | dict(zip(names, row["case"].split(" ", len(names) - 1), strict=False)) for row in rows]


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(value: float | str, digits: int = 1) -> str:
    """Return a share or an error with its unit."""
    return f"{float(value):.{digits}f} %"


def span(values: Sequence[float], digits: int = 1) -> str:
    """Return the least and the greatest of some percentages, or one figure if they are alike."""
    least, most = (f"{end(values):.{digits}f}" for end in (min, max))
    return f"{most} %" if least == most else f"{least} to {most} %"


def middle(values: Sequence[float], digits: int = 1) -> str:
    """Return the median of errors in percent with the worst one in brackets; a dash if there are none."""
    sizes = [abs(value) for value in values]
    brackets = f" ({max(sizes):.{digits}f})" if len(sizes) > 1 else ""
    return percent(median(sizes), digits) + brackets if sizes else "-"


def names(rows: Iterable[Row], column_name: str = "trace") -> str:
    """Return what some rows are called; of a path, its last part."""
    return ", ".join(f"`{row[column_name].rsplit('/', 1)[-1]}`" for row in rows)


def total(rows: Iterable[Row], name: str) -> int:
    """Return the sum of a column of counts."""
    return sum(int(row[name] or 0) for row in rows)


def table(heads: Sequence[str], groups: Mapping[tuple[str, ...], Sequence[Row]], *cells: tuple[str, Cell]) -> str:
    """Return a Markdown table with a row for each group: what it is called, under `heads`, and its cells."""
    found = ((*key, *(cell(rows) for _, cell in cells)) for key, rows in groups.items())
    return grid((*heads, *(head for head, _ in cells)), found)


def count(rows: Sequence[Row]) -> str:
    """Return the number of rows."""
    return f"{len(rows):,}"


def text(name: str) -> Cell:
    """Return a cell with the text of the first row."""
    return lambda rows: rows[0][name] or "-"


def value(name: str, digits: int = 1, scale: float = 1.0) -> Cell:
    """Return a cell with the percentage of the first row, or a dash."""
    return lambda rows: percent(scale * float(rows[0][name]), digits) if rows[0][name] else "-"


def values(name: str, brackets: str, digits: int = 1) -> Cell:
    """Return a cell with the percentage of the first row, and in brackets another one of it."""
    return lambda rows: f"{percent(rows[0][name], digits)} ({float(rows[0][brackets]):.{digits}f})"


def sums(name: str) -> Cell:
    """Return a cell with the sum of counts."""
    return lambda rows: f"{total(rows, name):,}"


def mean(name: str, digits: int = 1, scale: float = 1.0) -> Cell:
    """Return a cell with the mean of percentages."""
    return lambda rows: percent(scale * fmean(map(abs, column(rows, name))), digits)


def worst(name: str = "error", digits: int = 1, scale: float = 1.0) -> Cell:
    """Return a cell with the greatest of percentages."""
    return lambda rows: percent(scale * max(map(abs, column(rows, name))), digits)


def mid(name: str = "error", digits: int = 1) -> Cell:
    """Return a cell with the median and the worst of errors."""
    return lambda rows: middle(column(rows, name), digits)


def ends(name: str = "covered", digits: int = 0) -> Cell:
    """Return a cell with the least and the greatest of percentages."""
    return lambda rows: span(column(rows, name), digits)


def of(name: str, chosen: str | Sequence[str], cell: Cell) -> Cell:
    """Return a cell of those rows alone that have a value, or one of several, in a column; a dash if none has."""
    kept = (chosen,) if isinstance(chosen, str) else chosen
    return lambda rows: cell(some) if (some := [row for row in rows if row[name] in kept]) else "-"


def section(title: str, tables: str, data: str, fitted: str, *blocks: str) -> str:
    """Return a section: what data it is about, what was fitted, the tables of its cases, and what they say."""
    rows = ", ".join(f"[`{name}.csv`](../tests/accuracy/{name}.csv)" for name in tables.split())
    return "\n\n".join((title, f"- Data: {data}\n- Fitted: {fitted}\n- Rows: {rows}", *blocks)) + "\n"


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
        ("Transformer, device not measured", f"{models['runs']} real runs", percent(models["error"])),
        ("Step of Megatron-LM", f"{int(training['steps']):,} published steps", percent(training["error"])),
        (
            "Step of other systems",
            f"{steps['MLPerf: left out']['n']} of MLPerf",
            f"{percent(steps['MLPerf: left out']['median'])} at the median",
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


def contention_summary() -> tuple[str, str]:
    """Return the data and the errors of kernels beside other work: of traces, and medians of recordings."""
    rows = [row for row in read("contention") if not row["remark"]]
    fitted = {row["trace"]: float(row["mean"]) for row in rows if row["method"] == "fitted to other ranks"}
    traces = f"{len(fitted)} real {'trace' if len(fitted) == 1 else 'traces'}"
    recorded = shipped_recordings()
    return f"{traces}; {len(recorded)} GPUs", f"{span(list(fitted.values()))}; {span(column(recorded, 'median'))}"


def shipped_recordings() -> list[Row]:
    """Return the rows of all works that were recorded side by side, with the shipped parameters."""
    return [row for row in read("recordings") if (row["mechanism"], row["how"]) == ("all", "shipped")]


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


#: Section, miss and cause, with figures of `misses`.
SHORT = """\
Replay | With median delays {far} is off by {far_by}. Repeated, {unsteady} are off by {unsteady_by}. | A window repeats
what was slow in it.

Selecting iterations | Totals on GPUs are off by {gpu_totals}, and {gpu_limits} limits are missed. Resampled intervals
hold {resampled} instead of 95 %. | On GPUs the host sets the pace of short steps,
and is slow for a while.

How many points a total takes | With a target of 1 %, other configurations err by {targets}. | They are noisier than the
one that points were chosen on.

Selecting kernels | Intervals hold {sampled} instead of 95 %. | Not known.

Durations of operators | Convolutions of a device that was left out are off by up to {convolutions}. | Generations
differ: an MI50 has no matrix units, an MI100 has.

Devices that nobody measured | Errors reach {devices}; {low_groups} groups have intervals that hold {low}. | Types of
data that one device alone has. Frameworks take other kernels on each device.

Whole transformers | Carried to a P4, runs are off by {p4}; intervals hold {p4_held}. | The card was half as fast as
another P4 that was measured.

Parts of BERT-Large | The gain of mixed precision is off by {precision} at the median. | TensorFlow gains less than
others on the same GPUs.

Collectives | On a device or in a place that nobody measured they are off by {collectives}. {collective_limits} limits
of `send_recv` are missed. | Settings of libraries and networks are in no data sheet.

Another device | From a V100 to an A100, kernel time is off by {apart}, outside its interval. | The trace has no shapes,
and cannot tell that the A100 computed in TF32.

Another device | Single classes are off by {classes} at the median, {class_worst} at worst. | Libraries choose other
kernels.

Gains of what-ifs | {outside} of {pairs} gains are outside their interval: {outside_of}. | The host works more or less
after the change, or the profiler does.

Intervals of projections | Those of matrix products hold {scaled} on another device, {cast} in another type. | A Radeon
Vega of 2017; FP8, whose times hold the conversion of operands.

Power limits | At 100 W on a V100 the median error of time is {power}. | Jobs slow by more than the third root of power.

Training steps | Single steps are off by up to {steps}. With TP 4, intervals hold {tp4}. | Small layers look host-bound.
Steps of one measured shape err alike.

Jobs that nobody ran | BERT is off by {bert} at the median, a step of MLPerf by {mlperf}. | Not known. TensorFlow
is slower than predicted.

Figures that papers report | {papers} figures are missed. | Stands beside each.

Contention | On {worse} it is predicted no better than by ignoring it. The slow-down of short kernels is explained in
part. | Clocks or data differ: most of its kernels are faster beside others.

Contention | Recorded works are off by {recorded} at the 90th percentile; intervals hold {recorded_held}. | Which unit
frees first decides some scenarios.

Kernels in PTX | Most times are too short, most of all on P100. | Not modelled: instruction caches, conflicts in
register banks, address translation. DRAM reaches more of its peak than on the devices.

Kernel variants of GEMMs | Of {small} small grids {found} are found, and {false} more are named. | The bar of 10 % is
near the error.

Reading traces | FLOP and bytes are known for {known} of kernel time. | Traces without shapes, and other libraries.
"""


def falls_short() -> str:
    """Return the section about misses, with a link to the section of each."""
    cells = (row.replace("\n", " ").split(" | ") for row in SHORT.format(**misses()).strip().split("\n\n"))
    rows = ((f"[{title}](#{title.lower().replace(' ', '-')})", *rest) for title, *rest in cells)
    return f"""## What falls short

{grid(("section", "what falls short", "cause"), rows)}

Nothing was measured of:

- what-ifs on launches, optimizers, attention, streams, priorities and serving: no GPU has recorded `--parts h` yet;
- ranks that share layers or experts of a serving job;
- collectives of H200, GB200, RoCE, boxes without links, and more than eight nodes;
- set-ups of papers, on a GPU of this project.
"""


def by_case(name: str, key: str = "case") -> dict[str, Row]:
    """Return the rows of a table by their case."""
    return {row[key]: row for row in read(name)}


def misses() -> dict[str, object]:
    """Return the figures of what falls short, by their names in `SHORT`."""
    pairs, collectives, recorded = read("pairs"), read("collectives"), shipped_recordings()
    far, unsteady = (
        [row for row in read("identity") if float(row[f"{name}_worst"]) > 2] for name in ("typical", "steady")
    )
    classes = [row for row in read("retimed") if row["class"] != "total" and "tf32" not in row["case"]]
    outside = [row for row in pairs if row["inside"] == "no"]
    low = [row for row in read("framework_operators") + read("relatives") if float(row["covered"]) < 70]
    ignored = {row["trace"]: row["mean"] for row in read("contention") if row["method"] == "no contention"}
    others = [row for row in read("contention") if row["method"] == "fitted to other classes"]
    small = next(row for row in read("gemms") if row["protocol"].startswith("alike"))
    p4, steps, training = by_case("models")["all on P4 carried"], by_case("training_steps"), by_case("training")
    held = {kind: percent(row["coverage"], 0) for kind, row in by_case("intervals", "kind").items() if row["coverage"]}
    totals = [100 * float(row["ours"]) for row in read("gpus") if row["case"] == f"{SELECTED}total error"]
    return {
        "far": names(far), "far_by": ends("typical_worst", 1)(far),
        "unsteady": names(unsteady), "unsteady_by": ends("steady_worst", 1)(unsteady),
        "gpu_totals": span(totals), "gpu_limits": missed(row for row in read("gpus") if row["suite"] == "selection"),
        "resampled": ends("resampled_covered")(read("selection")), "targets": span(other_errors()),
        "sampled": ends("ratio_coverage")(read("kernel_sampling")),
        "convolutions": worst(digits=0)([row for row in read("convolutions") if row["case"].endswith("all carried")]),
        "devices": worst(digits=0)(left_out()), "low_groups": len(low), "low": ends()(low),
        "p4": percent(p4["error"]), "p4_held": percent(p4["covered"], 0), "precision": bert_ratios("precision")[0],
        "collectives": ends("error")([row for row in collectives if row["case"].endswith("device left out")]),
        "collective_limits": missed(collectives), "apart": apart(),
        "classes": percent(median(map(abs, column(classes, "error"))), 0), "class_worst": worst(digits=0)(classes),
        "outside": len(outside), "pairs": len(pairs),
        "outside_of": ", ".join(f"{len(rows)} of {change}" for (change,), rows in grouped(outside, "change").items()),
        "scaled": held["matrix products, scale_device"], "cast": held["matrix products, change_dtype"],
        "power": value("time_median", 0, 100)([row for row in read("power_limits") if row["limit_w"] == "100"]),
        "steps": percent(training["not fitted"]["worst"], 0), "tp4": percent(training["TP 4"]["covered"], 0),
        "bert": percent(steps["BERT: left out"]["median"]), "mlperf": percent(steps["MLPerf: left out"]["worst"], 0),
        "papers": missed(read("published")),
        "worse": names(row for row in others if float(row["mean"]) >= float(ignored[row["trace"]])),
        "recorded": ends("p90")(recorded), "recorded_held": ends()(recorded),
        "small": small["measured"], "found": small["named"], "false": small["false_alarms"],
        "known": ends("known")(read("operators")),
    }  # fmt: skip


def missed(rows: Iterable[Row]) -> int:
    """Return how many limits are missed."""
    return sum(row["met"] == "NO" for row in rows)


#: How cases of gpus.csv begin that are means over epochs.
SELECTED = "geometric mean over 4 epochs, seqpoint, assisted: "


def other_errors() -> list[float]:
    """Return the errors for a target of 1 %, of configurations that points were not chosen on, by device and model."""
    rows = [row for row in read("selection_floor") if row["judged_on"] not in ("base", "again")]
    others = grouped((row for row in rows if row["chosen_on"] == "base"), "data", "model")
    return [root_mean_square(several, "1") for several in others.values()]


def root_mean_square(rows: Sequence[Row], target: str) -> float:
    """Return the root mean square over recordings of the error for a target."""
    return fmean(each**2 for each in column(rows, f"error_{target}")) ** 0.5


def replay() -> str:
    """Return the section about replaying real traces."""
    rows = [row | {"format": row["trace"].split("/")[0]} for row in read("identity")]
    busy = max(abs(float(row["busy_describe"]) - float(row["busy_replay"])) for row in rows)
    return section(
        "## Replay",
        "identity",
        f"{len(rows)} real traces, each iteration replayed unchanged, with every delay at the median of its kind, and "
        "repeated until its period settles.",
        "nothing. Unchanged replays are exact by construction; the other two are predictions.",
        table(
            ("traces of",),
            grouped(rows, "format"),
            ("traces", count),
            ("iterations", sums("iterations")),
            ("unchanged, worst", worst("completion_worst", 3)),
            ("median delays", mid("typical_worst", 2)),
            ("repeated", mid("steady_worst", 2)),
        ),
        f"Busy shares of `describe` and `replay` differ by at most {busy:.1f} points.",
    )


def hosts() -> str:
    """Return the section about what hosts do and wait for."""
    rows = read("host_causes")
    causes = ("queue", "synchronisation", "loader", "work", "unexplained")
    largest = [max(causes, key=lambda cause: float(row[cause])) for row in rows]
    return section(
        "## Hosts",
        "host_causes",
        f"what the hosts of {len(rows)} ranks do and wait for, by the profiler's records.",
        "nothing. Without records, the plateau of a launch queue tells the calls that found it full.",
        f"A queue was full on {sum(int(row['held']) > 0 for row in rows)} ranks. By largest cause, ranks are: "
        + ", ".join(f"{name} {largest.count(name)}" for name in causes if name in largest)
        + ".",
    )


def selection() -> str:
    """Return the section about choosing iterations."""
    rows, traces = read("selection"), read("selection_traces")
    cases = {(row["device"], row["case"].removeprefix(SELECTED)): float(row["ours"]) for row in read("gpus")}
    on_gpus = (
        f"On the {device}, `seqpoint, assisted` is off by {percent(100 * cases[device, 'total error'])} of the total "
        f"and {percent(100 * cases[device, 'speedup error'])} of a speed-up, with "
        f"{cases[device, 'sequential reduction']:.0f}x less profiling."
        for device in dict.fromkeys(device for device, _ in cases)
    )
    shapes = grouped(read("selection_coverage"), "selector")
    halves = [name for name in traces[0] if "_from_" in name and name.endswith("_regression")]

    def geometric(what: str) -> Cell:
        return lambda rows: (
            f"{percent(geometric_mean(column(rows, f'{what}_error')), 2)} ({max(column(rows, f'{what}_worst')):.1f})"
        )

    def times(name: str) -> Cell:
        return lambda rows: f"{geometric_mean(column(rows, name)):,.0f}x"

    ours = [row for row in rows if row["selector"] == "seqpoint"]
    return section(
        "## Selecting iterations",
        "selection selection_coverage selection_traces gpus",
        "epochs of three models on a CPU, sorted and shuffled, in five configurations, and of two models on an H100 "
        "and an H200. [selection.md](selection.md) explains the selectors.",
        "points are chosen on one configuration and judged on the others. Settings were chosen with the epochs of the "
        "CPU in view, nothing with those of the GPUs.",
        table(
            ("selector, on the CPU",),
            grouped(rows, "selector"),
            ("total", geometric("total")),
            ("speed-up", geometric("speedup")),
            ("less profiling", times("sequential")),
            ("held, of 95 %", mean("covered", 0)),
        ),
        "Errors are geometric means over epochs. Less profiling is the epoch over the sum of the points; in parallel "
        f"it is {times('parallel')(ours)} for SeqPoint. An epoch recorded twice differs by "
        f"{ends('noise_floor', 1)(ours)}. The paper (arXiv 2007.10459) reports 0.11 % and 0.53 % at 345x and 214x, on "
        "other models.",
        " ".join(on_gpus),
        "In simulated epochs, 95 % intervals hold the total in "
        f"{ends('total_covered', 1)(shapes[('seqpoint',)])} for `seqpoint`, and in "
        f"{ends('total_covered', 1)(shapes[('random',)])} for `random`. On {len(traces)} traces of an A100, kernel "
        f"time is off by {ends('own_points', 3)(traces)}. That of one half, predicted from the other, is off by up to "
        f"{percent(max(float(row[name]) for row in traces for name in halves))}.",
    )


#: Target errors of selection_floor.csv, in percent, and on what recording their points are chosen.
TARGETS = ("5", "1", "0.5")
CHOSEN_ON = {"the same recording": ("itself", ""), "the base": ("base",), "the base, after a pilot": ("pilot",)}


def points_of_total() -> str:
    """Return the section about the scatter of equal lengths and the points that a total takes."""
    rows = read("selection_floor")
    for row in rows:  # points that were chosen on what they are judged on
        row["chosen_on"] = "" if row["judged_on"] == row["chosen_on"] else row["chosen_on"]
    traces = grouped((row for row in rows if row["data"] == "A100"), "order")
    rows = [row for row in rows if row["data"] != "A100"]
    same = [row for row in rows if row["chosen_on"] in CHOSEN_ON["the same recording"]]
    models = grouped((row for row in rows if row["judged_on"] != "again"), "data", "model").values()

    def points(target: str) -> Cell:
        return lambda rows: f"{fmean(column(rows, f'points_{target}')):.0f}"

    promise = (
        (
            label,
            *(
                middle(
                    [root_mean_square([row for row in model if row["chosen_on"] in ways], target) for model in models]
                )
                for target in TARGETS
            ),
        )
        for label, ways in CHOSEN_ON.items()
    )
    return section(
        "## How many points a total takes",
        "selection_floor",
        "the epochs above. Iterations of equal length differ; `scatter` is their relative standard deviation, weighted "
        "by cost.",
        "nothing. `--target-error` promises a standard error, on a run as noisy as the one that points were chosen on.",
        table(
            ("device", "model"),
            grouped(same, "data", "model"),
            ("scatter", ends("scatter", 1)),
            ("error of 12 points", mean("error_12")),
            *((f"points for {target} %", points(target)) for target in TARGETS),
        ),
        "The error is the root mean square of 200 draws. Numbers of points are means over orders and configurations.",
        grid(("points chosen on", *(f"error for {target} %" for target in TARGETS)), promise),
        "On the same recording the promise holds; on another, as far as that is as noisy. A pilot measures 12 pairs of "
        "equal lengths there first.",
        f"On GPUs the scatter is the host's: kernels run in {ends('busy_short')(same)} of the shortest steps. In "
        f"traces of an A100, time in kernels scatters by {ends('scatter', 1)(traces[('kernel_time',)])}, step time by "
        f"{ends('scatter', 1)(traces[('duration',)])}.",
    )


def kernels() -> str:
    """Return the section about choosing kernels."""
    rows = grouped(read("kernel_sampling"), "scored")
    return section(
        "## Selecting kernels",
        "kernel_sampling",
        "kernels of real traces, sampled for 1 % at 95 %. The last three columns are simpler rules.",
        "a sample is planned on one half of a trace, and scored on times that it has not seen.",
        table(
            ("scored on",),
            {("the other half",): rows[("half",)], ("another device",): rows[("device",)]},
            ("traces", count),
            ("fewer kernels", lambda rows: ends("fewer")(rows).replace(" %", "x")),
            ("error", mid("ratio_error", 2)),
            ("held, of 95 %", ends("ratio_coverage")),
            ("uniform sample", mid("uniform_error")),
            ("first of each name and grid", mid("sieve_error")),
            ("clusters", mid("pka_error")),
        ),
        "On other workloads GCL-Sampler's authors report 259x fewer kernels at 0.37 %. For PKA they report 129x at "
        "20.90 %, for Sieve 95x at 4.10 %, and for STEM+ROOT 57x at 0.38 %.",
    )


def operators() -> str:
    """Return the section about durations of operators."""
    every = read("kernel_durations")
    rows = parted((row for row in every if row["rows"]), "kind", "device", "type", "how")
    means = {row["case"].rsplit(":", 1)[0]: row["error"] for row in every if ": mean" in row["case"]}
    carried = grouped((row for row in rows if (row["type"], row["how"]) == ("fp32", "carried")), "kind")
    fp32 = (
        (
            KINDS[kind],
            *(percent(means[f"{kind}, {basis}"]) for basis in ("fitted", "carried")),
            worst("error")(carried[(kind,)]),
            ends()(carried[(kind,)]),
            percent(figure),
        )
        for kind, figure in NEUSIGHT.items()
    )

    def fp16(how: str, *kinds: str) -> str:
        alike = [row for row in rows if row["type"] == "fp16" and row["how"].startswith(how)]
        return mid()([row for row in alike if row["kind"] in kinds or not kinds])

    others = {row["kind"] for row in rows} - {"matmul"}
    return section(
        "## Durations of operators",
        "kernel_durations framework_operators convolutions",
        "FP32 operators of five NVIDIA GPUs and an MI100, most of them outside the fitted range of shapes. "
        "FP16 profiles of A100 and A40; operators inside inference frameworks (AIConfigurator); convolutions.",
        "other tables, or other halves of the shapes, of the device; for *carried*, those of other devices. The form "
        "of the models, and the energy of a FLOP, were chosen with the FP32 tables in view.",
        grid(("FP32", "fitted", "carried", "worst device, carried", "held, carried", "NeuSight's own"), fp32),
        "Errors are means over devices. NeuSight's figures are its authors', on other shapes. FP16 operators are off "
        f"by {fp16('halves of vidur')} at other sizes and by {fp16('other files')} on another model. On another device "
        f"products are off by {fp16('carried', 'matmul')}, others by {fp16('carried', *others)}.",
        framework_operators(),
        convolutions(),
    )


def framework_operators() -> str:
    """Return the table of operators inside inference frameworks."""
    rows = [
        row | {"kind": KINDS[row["kind"]], "of": "own" if own or row["library"] == "trtllm" else "TensorRT-LLM"}
        for row in parted(read("framework_operators"), "kind", "device", "type", "library", "how")
        for own in ["attention" in row["kind"]]
    ]
    found = table(
        ("operator", "fits of"),
        dict(sorted(grouped(rows, "kind", "of").items(), reverse=True)),
        ("groups", lambda rows: str(len({(row["device"], row["type"], row["library"]) for row in rows}))),
        ("other shapes", of("how", "halves", mid())),
        ("held", of("how", "halves", ends())),
        ("carried", of("how", "carried", mid())),
        ("held", of("how", "carried", ends())),
    )
    return (
        "Inside frameworks a group is a device, type and backend; *other shapes* is one half predicted from the other. "
        "Fits of TensorRT-LLM are carried to kernels of SGLang and vLLM, too; attention is fitted for each."
        f"\n\n{found}"
    )


def convolutions() -> str:
    """Return the table of convolutions."""
    makers = {"cudnn": "DeepBench, NVIDIA", "miopen": "MIOpen, AMD"}
    rows = [row | {"maker": makers[row["library"]]}
            for row in parted(read("convolutions"), "device", "type", "library", "direction", "how")
            if row["direction"] == "all"]  # fmt: skip
    found = table(
        ("convolutions",),
        grouped(rows, "maker"),
        ("groups", of("how", "halves", count)),
        ("other shapes", of("how", "halves", mid())),
        ("held", of("how", "halves", ends())),
        ("good choice", of("how", "halves", ends("choice"))),
        ("carried", of("how", "carried", mid())),
        ("held", of("how", "carried", ends())),
        ("good choice", of("how", "carried", ends("choice"))),
    )
    return f"A *good choice* is an algorithm that took at most 15 % longer than the fastest.\n\n{found}"


def left_out() -> list[Row]:
    """Return the rows of relatives.csv of devices that were left out of the shipped fits."""
    rows = [row | {"case": row["case"].replace("RTX PRO 6000 Server", "RTX-PRO-6000")} for row in read("relatives")]
    return [row for row in parted(rows, "kind", "device", "type", "how") if row["how"] == "left out"]


def relatives() -> str:
    """Return the section about devices that are predicted from relatives."""
    rows = parted(read("relatives"), "kind", "device", "type", "how")
    ways = ("nothing recorded", "other recording")
    left = [row | {"of": KINDS[row["kind"]] + (", FP32" if row["type"] == "fp32" else "")} for row in left_out()]
    return section(
        "### Devices that nobody measured",
        "relatives",
        "operators that the project recorded on an H100 and an H200, and the tables above with each device left out.",
        "*nothing recorded*: tables of other devices, and TensorRT-LLM's products. *Other recording*: that of the "
        "other GPU alone. Rates of rows that are not aligned, costs of softmax and normalisation beside their bytes, "
        "and what intervals add were chosen in view of the H100.",
        table(
            ("recorded",),
            grouped((row for row in rows if row["how"] in ways), "device"),
            ("groups", of("how", ways[0], count)),
            *((head, of("how", way, cell)) for way in ways for head, cell in ((way, mid()), ("held", ends()))),
            ("copy of the other", mid("copy")),
        ),
        "A copy is the other device's time, times the ratio of the roofs; the best copy is that of all devices, which "
        "nobody knows beforehand. `Family` is of one maker, for computing or for graphics as the device is.",
        table(
            ("left out",),
            grouped(left, "of"),
            ("groups", count),
            *((relation, of("relation", relation, mid())) for relation in ("family", "other")),
            ("held", ends()),
            ("best copy", mid("copy")),
        ),
    )


def models() -> str:
    """Return the section about whole transformers."""
    rows = [row | {"how": row["case"].split()[-1]} for row in read("models") if row["case"].startswith("all ")]
    groups = {
        (label,): [row for row in rows if row["case"].removesuffix(row["how"]).startswith(start)]
        for label, start in (("each device", "all on "), ("each model", "all of "))
    }
    groups["all",] = [row for row in rows if row["case"].removeprefix("all ") == row["how"]]
    return section(
        "## Whole transformers",
        "models",
        f"{groups['all',][0]['runs']} FP32 runs of BERT, GPT, OPT and Switch transformers, inference and training, on "
        "six GPUs. The time is the sum of the operators.",
        "no run; operators of the device, for *carried* of others. That the Switch transformer is gated was chosen in "
        "view of its six runs.",
        table(
            ("runs of",),
            groups,
            *(
                (head, of("how", how, cell))
                for how in ("fitted", "carried")
                for head, cell in ((how, mid()), ("held", ends()))
            ),
        ),
        "NeuSight reports 10.0 % on 12 devices.",
    )


def bert_ratios(name: str) -> tuple[str, str]:
    """Return the median error of ratios of BERT's throughput, and how many are within 15 %."""
    rows = read("bert")
    (score,) = [row for row in rows if row["case"] == f"ratios of {name}: median"]
    alike = column((row for row in rows if row["case"].startswith(f"{name}: ")), "error")
    return percent(score["error"]), f"{sum(each <= 15 for each in alike)} of {len(alike)}"


def bert() -> str:
    """Return the section about the parts of BERT-Large."""
    shares = [
        row | {"how": how, "device": device}
        for row in read("bert")
        if row["case"].endswith((", fitted", ", carried")) and float(row["measured"]) >= 0.05
        for _, _, device, how in [row["case"].split(", ")]
    ]
    off = {how: [fmean(column(rows, "error")) for rows in grouped(alike, "device").values()]
           for (how,), alike in grouped(shares, "how").items()}  # fmt: skip
    ratios = {"precision": "mixed over full precision", "phases": "phase 1 over phase 2",
              "devices": "most over fewest devices, each device"}  # fmt: skip
    return section(
        "## Parts of BERT-Large",
        "bert",
        "shares of operators in the time of a layer, FP32, six GPUs; NVIDIA's throughput of pre-training in four "
        "frameworks, V100 and A100, 1 to 512 GPUs.",
        "nothing.",
        f"Shares of 5 % and more are off by {middle(off['fitted'])} with fits of the device, and by "
        f"{middle(off['carried'])} carried.",
        grid(
            ("ratio of throughput", "median error", "within 15 %"),
            ((label, *bert_ratios(name)) for name, label in ratios.items()),
        ),
        "PyTorch and PaddlePaddle leave out padding in phase 2, so their ratios of phases are not scored.",
    )


#: Groups of collectives.csv, by what their cases contain, and what was left out of a fit, as cases end.
PLACES = {
    "A100, NCCL from PyTorch": ("A100-SXM4-80GB (switch),", "(pairs)"),
    "A100, NCCL in a node": ("A100-SXM4-80GB (switch, nccl)",),
    "H100, NCCL in a node": ("H100-SXM5-80GB (switch, nccl)",),
    "B200, NCCL in a node": ("B200-SXM-192GB (switch, nccl)",),
    "all-reduces of inference frameworks": ("custom",),
    "A100 over Slingshot": ("slingshot",),
    "A100 over TCP": ("ethernet",),
    "A100 over InfiniBand": ("infiniband",),
    "H100, 8 x 400 Gbit/s": ("8 x 400 Gbit/s)",),
    "H100, degraded pairs": ("8 x 112 Gbit/s)",),
}
LEFT_OUT = {"fitted": "sizes", "sizes left out": "sizes", "workers left out": "workers", "device left out": "device"}


def collectives() -> str:
    """Return the section about collectives."""
    limits = [row for row in read("collectives") if row["met"]]
    rows = [
        row | {"place": place, "out": LEFT_OUT.get(row["case"].rsplit(", ", 1)[1], "")}
        for row in read("collectives")
        for place, parts in PLACES.items()
        if row["rows"] and any(part in row["case"] for part in parts)
    ]
    return section(
        "## Collectives",
        "collectives",
        "collectives of 2 to 8 devices in a node, and of 2 to 32 devices on two and eight nodes. A group is a "
        "collective and a number of workers.",
        "the group, without the sizes that are scored; without its number of workers; without its device. How curves "
        "are carried over was chosen with these groups in view.",
        table(
            ("place",),
            {(place,): found for place in PLACES for found in [[row for row in rows if row["place"] == place]]},
            ("groups", of("out", "sizes", count)),
            *((f"without {out}", of("out", out, mid())) for out in ("sizes", "workers", "device")),
            ("held, without device", of("out", "device", mean("covered", 0))),
        ),
        "From PyTorch many sizes were measured, of which a quarter is never fitted. Elsewhere each size is left out in "
        "turn, so the curve spans a factor of four.",
        f"{len(limits) - missed(limits)} of {len(limits)} limits are met. These are not:",
        "\n".join(f"- {row['case']}" for row in limits if row["met"] == "NO"),
    )


def another_device() -> str:
    """Return the section about kernels on another device."""
    rows = read("retimed")
    ways = {
        "MI300X": "H100 and MI300X, both ways, three models",
        "trace_diff_a100:": "A100 to V100",
        "trace_diff_v100:": "V100 to A100, trace without shapes",
        "tf32": "the same, told of TF32",
    }
    totals = {(label,): [row for row in rows if row["class"] == "total" and part in row["case"]]
              for part, label in ways.items()}  # fmt: skip
    classes = grouped((row for row in rows if row["class"] != "total" and "tf32" not in row["case"]), "class")

    def held(rows: Sequence[Row]) -> str:
        inside = sum(float(row["low"]) <= float(row["measured"]) <= float(row["high"]) for row in rows)
        return f"{inside} of {len(rows)}"

    return section(
        "## Another device",
        "retimed",
        "four jobs that were traced on two GPUs each. `scale_device` predicts the total kernel time, without "
        "collectives, from the other device's trace.",
        "nothing of these traces. The terms of the model were chosen with these pairs in view; their values come from "
        "elsewhere.",
        table(("trace",), totals, ("cases", count), ("error", mid()), ("held", held)),
        "Single classes:",
        grid([name for (name,) in classes], [[mid(digits=0)(found) for found in classes.values()]]),
    )


def gains() -> str:
    """Return the section about jobs that ran before and after a change."""
    rows = [row | {"gain": row["measured"] or row["traced"], "error": str(gain_error(row))} for row in read("pairs")]
    causes = [row["cause"] for row in rows if row["cause"] and row["change"] != "recording"]
    host, recording = (sum(cause.startswith(start) for cause in causes) for start in ("the host", "the recording"))
    return section(
        "## Gains of what-ifs",
        "pairs",
        "jobs that ran before and after a change; a pair of devices counts both ways. `recording` is a step without a "
        "profiler against its trace.",
        "nothing but costs of a recording, on the H100; the median error on the H200 is "
        f"{gain_summary()[2].split('; ')[1]}.",
        table(
            ("change",),
            grouped(rows, "change"),
            ("pairs", count),
            ("measured gain", lambda rows: ends("gain", 2)(rows).removesuffix(" %")),
            ("error", mid()),
            ("held", lambda rows: f"{sum(row['inside'] == 'yes' for row in rows)} of {len(rows)}"),
            ("error of saying 1.0", lambda of: percent(median(100 * abs(1 / gain - 1) for gain in column(of, "gain")))),
        ),
        "The measured gain is of steps without a profiler where they were timed, else between the traces. Of "
        f"{len(causes)} errors above 10 %, {host} are a host that works more or less after the change, and {recording} "
        "go with the profiler. [validate.md](validate.md) explains causes.",
    )


def serving() -> str:
    """Return the section about steps of serving at other sizes."""
    return section(
        "## Serving",
        "serving_steps",
        "steps built from operators that AIConfigurator measured in three frameworks on A100, H100 and B200. `batch` "
        "goes from 16 or 32 requests to 1 to 256, `context` from 1,024 or 2,048 tokens to 512 to 8,192.",
        "`own` fits have seen these operators; fits of `others` leave the device out.",
        table(
            ("phase", "fits"),
            grouped(read("serving_steps"), "phase", "fits"),
            ("steps", count),
            ("mean error", mean("error", 1, 100)),
            ("worst", worst("error", 1, 100)),
            ("held", mean("inside", 0, 100)),
        ),
    )


def plan_order() -> str:
    """Return the section about the order of plans."""
    *pairs, best, lost = read("plan_order")
    sure, right = ([percent(100 * float(row[name])) for row in pairs] for name in ("predicted", "measured"))
    return section(
        "## Order of plans",
        "plan_order",
        f"{total(pairs, 'n'):,} pairs of plans that split one step of Megatron-LM on as many devices in another way.",
        "the spread of the ratio of two plans, on steps that are not scored.",
        "How sure `sweep` is of the faster one of a pair, and how often it is right:",
        grid(("sure", *sure), [("right", *right)]),
        f"Of {best['n']} jobs the best plan is the fastest in {percent(100 * float(best['measured']))}, and loses "
        f"{percent(100 * float(lost['measured']))} of time.",
    )


def power() -> str:
    """Return the section about power limits."""
    return section(
        "## Power limits",
        "power_limits",
        "training jobs at limits from 100 or 125 to 250 W, by Zeus. `limit_power` projects each from its mean power at "
        "the highest limit.",
        "nothing.",
        table(
            ("device",),
            grouped((row for row in read("power_limits") if row["limit_w"] == "all"), "device"),
            ("jobs", text("jobs")),
            ("time, median", value("time_median", 1, 100)),
            ("energy, median", value("energy_median", 1, 100)),
            ("energy lost by its best limit", value("regret", 1, 100)),
            ("within 25 W of best", value("best_within_step", 1, 100)),
        ),
        "Of jobs that stay below all limits, each limit is as good, and the best one measured is chance.",
    )


def intervals() -> str:
    """Return the section about the coverage of intervals of projections."""
    rows = [row for row in read("intervals") if row["intervals"] and not row["kind"].startswith("gain")]
    return section(
        "## Intervals of projections",
        "intervals",
        "work that was measured before and after a change, and projected. `all` has the gains above too.",
        "ranges of efficiency were widened until intervals held the layers of transformers. In the last column each "
        "case is widened by what the other cases need.",
        table(
            ("comparison",),
            grouped(rows, "kind"),
            ("intervals", sums("intervals")),
            ("cases", text("cases")),
            ("held", value("coverage", 0)),
            ("median error", value("error", 0)),
            ("held, widened by others", value("held_out", 0)),
        ),
        "Intervals should hold 85 to 95 %. Cases of one device or library err alike, so that independent cases are "
        "fewer.",
    )


def training() -> str:
    """Return the section about training steps."""
    rows = [row for row in read("training") if row["case"] in ("fitted", "not fitted")]
    return section(
        "## Training steps",
        "training",
        "published steps of Megatron-LM on 2 to 8 A100 (vTrain's repository), composed by its authors from "
        "measurements of 32 shapes.",
        "eleven costs, to a tenth of the steps, chosen by a hash. It has seen most shapes.",
        table(
            ("steps",),
            grouped(rows, "case"),
            ("number", sums("steps")),
            ("error", value("error")),
            ("worst", value("worst", 0)),
            ("held", value("covered", 0)),
        ),
        "vTrain's authors report 8.4 % on these steps.",
    )


def jobs() -> str:
    """Return the section about jobs that nobody ran: other systems, edits, memory, stragglers."""
    shown = ("fitted", "left out", "ratio of")
    steps = [row for row in read("training_steps") if row["case"].split(": ")[1].startswith(shown)]
    scaled = [row for row in read("comp_vs_comm") if row["device"] == "all"]
    strategies = {"work": "scaled by work", "models": "our models", "models without device": "device left out"}
    edits, answers = column(read("job_edits"), "error"), read("stragglers")
    return section(
        "## Jobs that nobody ran",
        "training_steps job_edits job_memory comp_vs_comm stragglers",
        "steps of MLPerf, of Megatron-LM on B200 (SimuMax) and on 8 to 512 A100 (arXiv 2205.05198), of MPT with FSDP, "
        "and of BERT. A ratio is of two steps that differ in one property.",
        "one calibration, to half of MLPerf's systems, one of SimuMax's models and a tenth of the steps above. What "
        "runs do, how far devices differ, and which arrays are kept were settled in view of all these steps.",
        table(
            ("steps",),
            grouped(steps, "case"),
            ("number", text("n")),
            *((name, value(name)) for name in ("median", "worst")),
            ("held", value("covered", 0)),
        ),
        table(
            ("memory of a job",),
            grouped(read("job_memory"), "case"),
            ("cases", text("n")),
            ("mean", value("mean")),
            ("worst", value("worst")),
        ),
        table(
            ("operators of other hidden sizes",),
            grouped(scaled, "operator"),
            ("predictions", text("predicted")),
            *((label, of("strategy", name, value("mean_error"))) for name, label in strategies.items()),
        ),
        f"Traces of one transformer on an A100 are edited to the batch or length of another: {len(edits)} edits are "
        f"off by {min(edits):.1f} to {max(edits):+.1f} % in kernel time. Their damping was chosen in view of these "
        f"traces. {len(answers)} published answers on stragglers in three jobs are off by at most "
        f"{worst('error', 4)(answers)}.",
    )


def published() -> str:
    """Return the section about figures that papers report."""
    rows = [
        row | {"off": str(100 * (float(row["ours"]) / float(row["published"]) - 1) if float(row["published"]) else "")}
        for row in read("published")
    ]
    systems = {(title,): [row for row in rows if row["system"] == system] for system, title in SYSTEMS.items()}
    gated = [row for row in rows if row["met"]]
    listed = "\n".join(
        f"- {row['system']}, `{row['name']}`: {unit(row, 'ours')}, published {unit(row, 'published')}. "
        f"{MISSED[row['system'], row['name']]}"
        for row in rows
        if row["met"] == "NO"
    )
    return section(
        "## Figures that papers report",
        "published",
        "each published set-up as a synthetic trace, to which the what-if that users run is applied. "
        "`seqpoint validate published` prints all figures.",
        "what the column counts. Figures of abstracts, public sources and arithmetic are gated, others shown only.",
        table(
            ("system",),
            systems,
            ("figures", count),
            ("gated", of("met", ("yes", "NO"), count)),
            ("within limits", of("met", "yes", count)),
            ("fitted", lambda rows: str(sum(row["fitted"] == "yes" for row in rows))),
            ("gated, off from the paper", of("met", ("yes", "NO"), mid("off"))),
        ),
        f"{len(gated) - missed(gated)} of {len(gated)} gated figures are within their limits. These are not:",
        listed,
    )


def unit(row: Row, name: str) -> str:
    """Return a published figure or ours with its unit."""
    return f"{float(row[name]):g}{UNITS.get(row['unit'], '')}"


def contention() -> str:
    """Return the section about kernels side by side."""
    traces = grouped(read("contention"), "trace")
    scored = {name: rows for name, rows in traces.items() if rows[0]["method"]}
    others = {
        (rows[0]["trace"], "ranks" if "fitted to other ranks" in {row["method"] for row in rows} else "classes")
        for rows in scored.values()
    }

    def fitted(cell: Cell) -> Cell:
        return lambda rows: of("method", next(
            f"fitted to other {kind}" for trace, kind in others if trace == rows[0]["trace"]), cell)(rows)  # fmt: skip

    recorded = grouped(
        (row | {"recording": row["recording"].upper()} for row in read("recordings")), "recording", "how"
    )
    first, *effects = [row for row in read("ablation") if row["how"] == "shipped"]
    return section(
        "## Contention",
        "contention recordings ablation gpus",
        f"kernels beside other work in {len(scored)} real traces, predicted from the same kernels alone; "
        f"{len(traces) - len(scored)} more have no pairs. Works side by side on an H100 and an H200.",
        "*to others*: the other ranks, or other classes of kernels, of the trace. *Shipped*: half of the H100's works, "
        "with rules chosen in view of all of it, and four parameters in view of the traces; nothing of the H200. *Left "
        "out*: three quarters of the works of the device, without those that are scored.",
        table(
            ("trace",),
            scored,
            ("kernels", of("method", "shipped", sums("kernels"))),
            ("noise", value("noise")),
            *((name, of("method", name, value("mean"))) for name in ("no contention", "shipped")),
            ("to others", fitted(value("mean"))),
            ("held", fitted(value("covered", 0))),
        ),
        "Errors are means over the times alone, weighted by time. `Noise` is the error between alone kernels.",
        table(
            ("recorded", "parameters"),
            recorded,
            *((name, of("mechanism", name, values("median", "p90"))) for name in MECHANISMS),
            ("one by one", of("mechanism", "all", value("serial"))),
            ("free", of("mechanism", "all", value("free"))),
        ),
        "In brackets is the 90th percentile. `One by one` and `free` are the errors if works never overlap, and if "
        f"they never slow each other. The 90th percentile on the H100, {first['p90']} % of works that were not fitted, "
        f"is {span(column(effects, 'p90'))} without one effect of the model.",
    )


#: What recorded works meet in.
MECHANISMS = ("all", "SM", "L2", "HBM", "copy engine")


def occupancy() -> str:
    """Return the section about workgroups that share a compute unit."""
    rows, shapes = read("occupancy"), read("resident")
    laws = [row for row in rows if not row["kernels of"].startswith("whole")]
    whole = [row for row in rows if row["kernels of"].startswith("whole")]
    for row in laws:
        row["which"] = f"{row['kernels of']}, {row['known']}"
    columns = ("all, first and last", "all, first and middle")
    number, equal, zero = (total(shapes, name) for name in ("shapes", "equal", "zero"))
    return section(
        "## Occupancy",
        "occupancy resident",
        f"passes of {rows[0]['n']} kernels with 8 to 32 workgroups on each compute unit of an MI50 (REEF); launch "
        f"shapes in {len(shapes)} traces of four GPUs.",
        "two passes of a kernel are known and the others predicted. One exponent was chosen for all; in the last row, "
        "on the other models.",
        table(
            ("prediction",),
            grouped(laws, "law"),
            *((which, of("which", which, values("median", "p90"))) for which in columns),
        ),
        "In brackets is the 90th percentile. "
        + " ".join(f"The {row['kernels of']} are off by {percent(row['median'])} at the median." for row in whole),
        f"Of {number:,} launch shapes {equal:,} have the occupancy that the PyTorch profiler recorded. It records 0 "
        f"for the other {zero}, whose shared memory exceeds 48 KB.",
    )


def gemms() -> str:
    """Return the section about kernel variants of GEMMs."""
    *scores, noise, winners = read("gemms")
    for row in scores:
        row["small"] = (
            f"{row['named']} of {row['measured']}; {row['false_alarms']} more" if row["measured"] != "0" else ""
        )
        row["protocol"] = row["protocol"].replace("fitted", "GEMMs of the fit")
    return section(
        "## Kernel variants of GEMMs",
        "gemms",
        "measured candidates of GEMM kernels on MI100 and MI50. No table of NVIDIA was tried.",
        "the other GEMMs of the table, but for the rows *GEMMs of the fit*.",
        table(
            ("table", "scored on"),
            grouped(scores, "table", "protocol"),
            ("GEMMs", text("gemms")),
            ("time of the best", values("error", "error_p90")),
            ("regret", values("regret", "regret_p90")),
            ("small grids found", text("small")),
        ),
        "In brackets is the 90th percentile. **Regret** is the time of the chosen kernel over the best, less one. "
        f"Equal kernels, measured once each, differ by {values('error', 'error_p90')([noise])}. A **small grid** "
        "reaches 90 % of the best rate with half of the workgroups. Of the kernels that do most for each compute unit, "
        f"{value('spearman', 0, 100)([winners])} rank in the top tenth of ours.",
    )


def memory() -> str:
    """Return the section about caches and DRAM."""
    rows = read("memory")
    times = [row for row in rows if row["without_launch"]]
    shares, bare = ([100 * each for each in column(times, name)] for name in ("ours", "without_launch"))
    cases = {row["case"]: row for row in rows}

    def ours(case: str) -> str:
        return percent(100 * float(cases[case]["ours"]), 2)

    return section(
        "## Caches and DRAM",
        "memory",
        "DRAM against another simulator (DRAMsim3); hit rates and bytes of 13 kernels on a GV100; times of FP32 "
        "operators on A100, MI100 and V100.",
        "nothing. Rules for long rows of softmax were written after these errors were seen.",
        f"DRAM bandwidth of 114 patterns is off by {ours('DRAM bandwidth: median of 114 patterns')} at the median and "
        f"{ours('DRAM bandwidth: 90th percentile')} at the 90th percentile. At the median, hit rates of L2 "
        f"are off by {ours('L2 hit rate: median difference of 13 kernels')} and bytes by "
        f"{ours('DRAM bytes: median error of 13 kernels')}.",
        f"Times of {len(times)} groups of operators are off by {span(shares)}, without the launch by {span(bare)}. "
        f"{len(rows) - missed(rows)} of {len(rows)} limits are met. DRAMsim3 says whether rules of timing are right, "
        "not whether they are a device's.",
    )


def detailed() -> str:
    """Return the section about the detailed simulation of kernels in PTX."""
    return section(
        "## Kernels in PTX",
        "detailed",
        "*counters*: twelve kernels of Rodinia, Parboil and the CUDA samples. *Recordings*: nine of them and three of "
        "Triton that we recorded with cold caches. *Operators*: measurements of PyTorch by others.",
        "no kernel. The start of a launch, and that half of L2 holds changed lines, were learnt from the counters.",
        table(
            ("set", "device"),
            grouped(read("detailed"), "set", "device"),
            ("kernels", count),
            ("mean error", mean("error")),
            ("worst", worst("error")),
            ("bias", lambda rows: percent(fmean(column(rows, "error")))),
        ),
        "Sectors, accesses to shared memory and bytes from DRAM equal the counters, but for 8 % more bytes of "
        "`parboil_sad`. Hit rates of L2 are 11 and 12 points low on the two of backprop. On `dct8x8_kernel1_tex` the "
        "rate is 0 and not 33 %: textures lie in tiles that are not documented.",
    )


def reading() -> str:
    """Return the section about reading traces."""
    every = read("ingest")
    formats, apart = grouped(every, "format"), [row for row in every if int(row["collectives"] or 0)]
    refused = sum(len(rows) for (name,), rows in formats.items() if name.endswith("Error"))
    known, hta, peers = read("operators"), read("hta"), read("characterize")
    return section(
        "## Reading traces",
        "ingest operators hta characterize",
        "real traces of every format, with repairs and losses of each file; figures of two other tools.",
        "nothing.",
        "Kernels that were read: "
        + ", ".join(f"{name} {total(rows, 'kernels'):,}" for (name,), rows in formats.items() if "Error" not in name)
        + f". Of {total(apart, 'collectives'):,} collectives of several ranks {total(apart, 'collectives_matched'):,} "
        f"are matched, and {total(every, 'dropped')} events are dropped. {refused} tables of rocprof hold sums or "
        f"samples, and are refused. FLOP and bytes are known for {ends('known')(known)} of the kernel time of "
        f"{len(known)} Kineto traces, median {percent(median(column(known, 'known')), 0)}.",
        f"{len(hta)} figures and critical paths of Holistic Trace Analysis {hta[0]['version']} agree once its rounding "
        f"is applied ([analysis.md](analysis.md)). So do {len(peers)} of HTA's and TraceLens' reports, but for what is "
        "defined otherwise ([characterize.md](characterize.md)).",
    )


SECTIONS: tuple[Callable[[], str], ...] = (
    *(in_short, falls_short, replay, hosts, selection, points_of_total, kernels, operators, relatives, models, bert),
    *(collectives, another_device, gains, serving, plan_order, power, intervals, training, jobs, published),
    *(contention, occupancy, memory, detailed, gemms, reading),
)


def page() -> str:
    """Return the page as it should be."""
    text = "\n".join([HEAD, *(section() for section in SECTIONS)])
    return "\n\n".join(wrapped(block) for block in text.strip().split("\n\n")) + "\n"


def wrapped(block: str) -> str:
    """Return a block of Markdown with the lines of its sentences filled; headings and tables stay."""
    if block.startswith(("#", "|")):
        return block
    items = [f"- {item}" for item in block.removeprefix("- ").split("\n- ")] if block.startswith("- ") else [block]
    return "\n".join(filled(item, "  " if item.startswith("- ") else "") for item in items)


def filled(text: str, indent: str) -> str:
    """Return lines of a text, none of which begins with a unit."""
    kept = text.replace(" %", "\u00a0%")
    return textwrap.fill(kept, 116, subsequent_indent=indent, **KEEP).replace("\u00a0", " ")


if __name__ == "__main__":
    print(page(), end="")
