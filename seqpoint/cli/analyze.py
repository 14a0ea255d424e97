"""The commands on what a trace holds, where its time goes, and what changed between two."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from profilers.errors import InvalidInputError
from seqpoint import front_door
from seqpoint.baselines import BASELINES, baseline_runs, save_baseline
from seqpoint.characterization import BY, CHARTS
from seqpoint.cli.options import (
    hardware_option,
    load,
    options_of,
    output_options,
    perfetto_option,
    plot_option,
    reading_options,
    refuse_options,
    surveyed,
    trace_argument,
)
from seqpoint.cli.output import (
    current_view,
    explain_columns,
    keep_sheets,
    message,
    note_guess,
    print_lines,
    print_result,
    progress,
    save_plot,
    write_timelines,
)
from seqpoint.description import BY as DESCRIBED_BY
from seqpoint.notebook import counted
from seqpoint.table_files import as_comment

if TYPE_CHECKING:
    from seqpoint.comparison import Comparison


@click.command("advise")
@trace_argument
@options_of(
    front_door.advise, "minutes", "max_points", "device", minutes={"type": click.FloatRange(0.0, min_open=True)}
)
@click.option("--markdown", is_flag=True, help="Print the whole advice as Markdown, for an issue or a note.")
@output_options
def advise_command(trace: str, markdown: bool, json_: bool, **options: Any) -> None:
    """Say what limits the steps of TRACE, what to do first, and what is not worth it.

    Every gain is a replay of this trace. The first figure of an action is its gain beyond those above it, the second is
    the speed-up of all up to it. `seqpoint TRACE` does the same.

    \b
    seqpoint advise job.trace
    seqpoint job.trace
    seqpoint advise rank0.json.gz --minutes 5 --json
    """
    if markdown:
        refuse_options(("json_", "everything", "notes", "wide"), "beside --markdown, which prints all as text")
    source, view = surveyed(trace) or load(trace), current_view()
    advice = front_door.advise(source, **options, name=trace, progress=progress("replaying"))
    shown = advice if view.everything else replace(advice, actions=advice.actions[: view.top])
    keep_sheets(advice.sheets)
    if json_:
        print_result(advice, json_)
    elif markdown:
        print_lines(*shown.markdown().splitlines())
    else:
        print_lines(*shown.lines(whole=view.everything, notes=view.notes, wide=view.wide))
    explain_columns(advice.heading, [f"{kind} %" for kind in ("kept", "scaled", "modelled", "assumed")])


@click.command("describe")
@trace_argument
@click.option(
    "--by",
    multiple=True,
    type=click.Choice(DESCRIBED_BY),
    help="Show kernels by name, the operators that launched them, the program's ranges (NVTX, roctx, record_function) "
    "around their launches, or operators, calls and Python functions of the host by self time, instead of the other "
    "tables; may be repeated.",
)
@plot_option("Write a chart: time by class of kernel; of more than 32 ranks, the compute time of each in each step.")
@output_options
def describe_command(trace: str, by: tuple[str, ...], plot: str | None, json_: bool) -> None:
    """Show the content of TRACE: devices, steps, communication, kernels, copies, and the quality of the data.

    TRACE is a .trace folder or a trace file of any profiler. The first line says whether hosts or devices set the pace.
    Of more than 32 ranks, it shows their spread, and slow cards, nodes and links.

    \b
    seqpoint describe job.trace
    seqpoint describe job.trace --by kernel --by operator
    seqpoint describe job.trace --by host --top 20
    seqpoint describe job_of_1024_ranks.trace --plot ranks.html
    """
    survey = surveyed(trace)
    if survey is not None and not by:
        print_result(survey, json_)
        save_plot(survey.plot, plot)
        return
    result = front_door.describe(load(trace), by=by)
    if "kernel" in by and not result.classes:
        raise InvalidInputError(
            f"{trace}: the trace holds no kernels to list by name; --by operator lists its operators"
        )
    if "host" in by and not result.trace.ops.num_rows + result.trace.launches.num_rows:
        raise InvalidInputError(
            f"{trace}: the trace holds no operator and no call of the host; record the host as well"
        )
    print_result(result, json_)
    save_plot(result.plot, plot)


@click.command("characterize")
@trace_argument
@click.option(
    "--by", multiple=True, type=click.Choice(BY), help="Table to print; may be repeated.  [default: all but kernel]"
)
@plot_option("Write a chart.")
@click.option(
    "--chart", type=click.Choice(CHARTS), default="roofline", show_default=True, help="Chart that --plot writes."
)
@click.option("--table", metavar="FILE", type=click.Path(), help="Write the first table as .csv or .parquet, all rows.")
@hardware_option
@output_options
def characterize_command(
    trace: str,
    by: tuple[str, ...],
    plot: str | None,
    chart: str,
    table: str | None,
    json_: bool,
    device: str | None,
) -> None:
    """Show where the time of TRACE goes: operators, shapes, modules, phases, against the roofline.

    With --json, `rows` has the operators. Each row has name, shapes, class, calls, kernels, time_ns, share, min_ns,
    median_ns, max_ns, known_ns, flops, bytes, moved_ns, moved_bytes, roof_ns, bound, waves, layout, above, flops_per_s,
    bytes_per_s, intensity and roof_share. `by` has the same for shape, kernel, class, phase and module. `bound_shares`
    is the share of the time that compute, memory and latency bound. `utilisation` is that of the peak in the steps.
    `collectives`, `launches` and `ranks` (the time of each device by cause, and its slowdown) are tables, too.
    `exchanges` has the elements that each rank sends and receives in all-to-alls.

    \b
    seqpoint characterize job.trace
    seqpoint characterize job.trace --by kernel --top 30
    seqpoint characterize job.trace --plot roofline.html
    seqpoint characterize job.trace --by shape --table shapes.csv
    """
    result = front_door.characterize(load(trace), device=device)
    note_guess(result.facts.hardware)
    save_plot(lambda: result.plot(chart), plot)
    if table:
        result.save(table, by[0] if by else "operator")
        message(f"wrote {table}")
    print_result(result, json_, lambda: result.tables(by))


@click.command("gemms")
@trace_argument
@options_of(front_door.gemms, "iteration")
@plot_option("Write the chart of efficiency against waves.")
@hardware_option
@output_options
def gemms_command(trace: str, plot: str | None, json_: bool, **how: Any) -> None:
    """List the matrix products (GEMMs) of TRACE by shape: time, efficiency, waves, tail, and why they are slow.

    With --json, each of `rows` has batch, m, n, k, dtype, operators, kernel, launches, time_ns, share, median_ns,
    flops_per_s, efficiency, tile_m, tile_n, tile_known_by, workgroups, waves, last_wave, tail_efficiency, beside_share,
    partners, idle_before_ns, why, and more. `unknown` counts the GEMM kernels without a known shape. `step` has the
    groups of independent GEMMs of an iteration, each with its evidence, degree, tiles, speedup and gain_ns.

    \b
    seqpoint gemms job.trace
    seqpoint gemms job.trace --device MI300X --top 5 --plot gemms.html
    """
    result = front_door.gemms(load(trace), **how)
    note_guess(result.hardware)
    save_plot(result.plot, plot)
    print_result(result, json_)


@click.command("replay")
@trace_argument
@options_of(front_door.replay, "iterations")
@perfetto_option
@hardware_option
@output_options
def replay_command(trace: str, perfetto: str | None, json_: bool, **options: Any) -> None:
    """Replay iterations of TRACE unchanged, and compare with what was measured.

    The step time is the time from the completion of the iteration before to its own. "Repeated" is the step time in the
    steady state: the iterations repeat until their period has settled. Projections compare steady states, so it should
    be near the measured step time.

    A second table counts the edges of the graph by kind: whether the profiler recorded them or they are inferred from
    times, how many decided when a task started (binding), and how many lie on the critical path.

    \b
    seqpoint replay job.trace
    """
    result = front_door.replay(load(trace), **options, progress=progress("building"))
    write_timelines(perfetto, lambda: {"replay": result.first})
    print_result(result, json_)


@click.command("analyze")
@trace_argument
@options_of(front_door.analyze, "iteration", "what_if", "tasks")
@click.option(
    "--stragglers",
    is_flag=True,
    help="Show who makes the step longer: the slow-down that each rank, stage, class of kernel and micro-batch causes "
    "alone. TRACE may be a Parquet table of operations (docs/stragglers.md).",
)
@perfetto_option
@hardware_option
@output_options
def analyze_command(trace: str, stragglers: bool, perfetto: str | None, json_: bool, **options: Any) -> None:
    """Show where a step of TRACE spends its time: pace, critical path, overlap, and why devices idle.

    A step lasts from the completion of the iteration before to its own. The iteration is repeated, together with the
    earlier iterations that were still running, until its period settles. A step of that steady state is analysed. An
    iteration without a neighbour in the trace is analysed by itself.

    With --json: iteration, measured_ns, step_time (between completions, or latency), contention (times measured and
    modelled, of kernels, collectives, by_class and by_partner), host (a row for each rank), before, what_if, after and
    difference, the last three null without --what-if. before and after have makespan_ns, pace (step_ns, by_resource,
    by_rank, by_iteration; bound, room and then by resource), critical_path (by_cause, by_class, by_name), devices
    (busy_ns, the figures of communication, idle_ns by cause), chosen (null without --tasks) and notes. difference has
    change_ns, path_by_cause, path_by_class, and rows by_class, by_kind, by_lane.

    \b
    seqpoint analyze job.trace
    seqpoint analyze job.trace -i 12 -w overlap:ideal --perfetto both.json
    seqpoint analyze job.trace --stragglers
    """
    from replay.workloads.operations import is_parquet

    is_table = is_parquet(trace)
    if stragglers:
        refuse_options(["tasks", "perfetto"], "with --stragglers; leave one out")
        if is_table:
            refuse_options(["device", "marker", "length"], "on a table of operations")
        from seqpoint.step_analysis import stragglers as find_stragglers

        del options["tasks"]
        print_result(find_stragglers(trace if is_table else load(trace), **options), json_)
        return
    if is_table:
        raise InvalidInputError(
            f"{trace}: a Parquet file is no trace; of a table of operations, --stragglers shows who makes steps longer"
        )
    result = front_door.analyze(load(trace), **options)
    note_guess(result.before.timeline.graph.hardware)
    write_timelines(perfetto, result.timelines)
    print_result(result, json_)


#: Levels of confidence of the noise.
_CONFIDENCE = {"type": click.FloatRange(0.5, 0.9999)}
#: Word between the runs before and after.
_BETWEEN = "to"


class _Percent(click.ParamType[float]):
    """Percentage such as ``2`` or ``2%``, as a share."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the share."""
        if isinstance(value, float):
            return value
        try:
            share = float(str(value).strip().removesuffix("%")) / 100
        except ValueError:
            share = -1.0
        if not 0 <= share < float("inf"):
            self.fail(f"{value!r} is no percentage; write 2% for two in a hundred", param, ctx)
        return share


@click.command("compare")
@click.argument("traces", nargs=-1, required=True, metavar="BEFORE... [to] AFTER...")
@click.option(
    "--fail-if-slower",
    "limit",
    type=_Percent(),
    metavar="[PERCENT]",
    is_flag=False,
    flag_value=0.0,
    help="Exit with status 1 if the step is slower beyond noise, and by more than this (0 by default). If nothing can "
    "be told, the status is 0, and a line on stderr says so.",
)
@click.option("--baseline", metavar="NAME", help="Compare with this baseline: all traces are runs after.")
@click.option("--save-baseline", metavar="NAME", help="Keep the runs (after) as this baseline, unless a gate fails.")
@click.option(
    "--baselines",
    "folder",
    metavar="FOLDER",
    type=click.Path(),
    default=BASELINES,
    show_default=True,
    help="Folder of the baselines.",
)
@click.option("--markdown", is_flag=True, help="Print Markdown, for a comment of a pull request.")
@options_of(front_door.compare, "what_if", "device", "same_job", "confidence", confidence=_CONFIDENCE)
@plot_option("Write the chart of changes by operator.")
@reading_options
@output_options
def compare_command(traces: tuple[str, ...], limit: float | None, plot: str | None, json_: bool, **how: Any) -> None:
    """Show what changed between two traces or groups of runs, where, and whether it is more than noise.

    Each file or folder is a run. The word "to" stands between the runs before and after; two traces need none. The
    first step of a recording and outliers are left out. Read the files of several ranks with `seqpoint ingest` first.

    With --what-if the steps before are a projection: is the measured step time after within its interval, and which
    parts, classes and operators are off?

    With --json: verdict (faster, slower, no difference beyond noise, as projected, not as projected, cannot tell),
    reason, confidence, unit (steps, paired steps or runs), likeness, step, before, after, projection (what_if, step_ns,
    low_ns, high_ns, confidence, notes; or null), parts, path, classes, operators, kernels, notes. `step` and each of
    `parts`, `path`, `classes` and `operators` have name, before_ns, after_ns, noise_ns, beyond_noise, change_ns, change
    (over before). Operators also have shapes, matched_by, before_kernels, after_kernels, before_kernel, after_kernel.
    Each of `kernels` has kernel, class, side (appeared or vanished), kernels, time_ns. Times are a step's; null is
    unknown.

    With --save-baseline and without --baseline, the traces are kept, and nothing is compared.

    \b
    seqpoint compare before.trace after.trace
    seqpoint compare before/*.json to after/*.json --fail-if-slower 2%
    seqpoint compare main*.json --save-baseline main
    seqpoint compare run*.json --baseline main --fail-if-slower 2% --markdown
    seqpoint compare a100.trace v100.trace --what-if scale_device:V100
    """
    baseline, name, folder, markdown = (how.pop(key) for key in ("baseline", "save_baseline", "folder", "markdown"))
    if markdown and json_:
        raise click.UsageError("--markdown and --json are two forms of the result; leave out one")
    if (baseline or name) and _BETWEEN in traces:
        raise click.UsageError(f"all traces are runs of one side with a baseline; leave out {_BETWEEN!r}")
    if name and not baseline:
        refuse_options(("limit", "what_if", "plot", "markdown"), "without --baseline; nothing is compared")
        _keep(name, traces, folder, json_)
        return
    before, after = (baseline_runs(baseline, folder), traces) if baseline else _sides(traces)
    groups = [map(load, map(str, names)) for names in (before, after)]  # one trace at a time is in memory
    if how["what_if"] is None:
        refuse_options(("device",), "without --what-if; a comparison takes the devices from the traces")
    result = front_door.compare(*groups, **how)
    save_plot(result.plot, plot)
    if markdown:
        keep_sheets(result.sheets)
        tables = [table.sheet() for table in result.tables()]
        print_lines(*as_comment(result.summary(), tables, result.notes()).splitlines())
    else:
        print_result(result, json_)
    slower = limit is not None and _is_slower(result, limit)
    if name and not slower:
        _keep(name, traces, folder, json_=True)
    click.get_current_context().exit(int(slower))


def _keep(name: str, traces: tuple[str, ...], folder: str, json_: bool) -> None:
    """Keep runs as a baseline, and say so on stdout, or on stderr behind a result or JSON."""
    path = save_baseline(name, map(load, traces), folder)
    text = f"{path}: {counted(len(traces), 'run')}"
    message(f"wrote {text}") if json_ else print_lines(text)


#: Noise over the step from which a gate says so. Chosen.
_NOISY = 0.05


def _is_slower(result: "Comparison", limit: float) -> bool:
    """Return whether the step is slower than a gate allows; a line on stderr says why, or that it cannot be told."""
    from seqpoint.comparison import UNKNOWN

    if result.verdict == UNKNOWN:
        message(f"note: --fail-if-slower cannot tell: {result.reason}")
    slower, step = result.slower_by(limit), result.step
    if step.noise_ns is not None and step.before_ns and step.noise_ns > max(limit, _NOISY) * step.before_ns:
        share = 100 * step.noise_ns / step.before_ns
        message(f"note: --fail-if-slower: the noise is {share:.0f} % of the step, and no smaller change can fail")
    if slower:
        message(f"slower by more than {100 * limit:g} % and the noise: {result.summary()[1]}")
    return slower


def _sides(traces: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names before and after the word between them; of two names, each."""
    if _BETWEEN not in traces and len(traces) == 2:
        return traces[:1], traces[1:]
    if traces.count(_BETWEEN) != 1:
        if len(traces) == 1:
            raise click.UsageError("name two traces, before and after")
        raise click.UsageError(f"put the word {_BETWEEN!r} once between the runs before and after")
    at = traces.index(_BETWEEN)
    if not traces[:at] or not traces[at + 1 :]:
        raise click.UsageError(f"name a run on each side of {_BETWEEN!r}")
    return traces[:at], traces[at + 1 :]
