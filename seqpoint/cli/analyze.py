"""The commands `replay` and `analyze`: steps replayed unchanged, and where a step spends its time."""

from typing import Any

import click

from profilers.errors import InvalidInputError
from replay.workloads.operations import is_parquet
from seqpoint import front_door
from seqpoint.cli.options import (
    hardware_option,
    load,
    output_options,
    parameters,
    perfetto_option,
    refuse_options,
    trace_argument,
)
from seqpoint.cli.output import note_guess, print_result, progress, write_timelines
from seqpoint.step_analysis import stragglers as find_stragglers


@click.command("replay")
@trace_argument
@parameters(front_door.replay, "iterations")
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
@parameters(front_door.analyze, "iteration", "what_if", "tasks")
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

    \b
    seqpoint analyze job.trace
    seqpoint analyze job.trace -i 12 -w overlap:ideal --perfetto both.json
    seqpoint analyze job.trace --stragglers
    """
    if stragglers:
        refuse_options(["tasks", "perfetto"], "with --stragglers; leave one out")
        if is_parquet(trace):
            refuse_options(["device", "marker", "length"], "on a table of operations")
        del options["tasks"]
        print_result(find_stragglers(trace if is_parquet(trace) else load(trace), **options), json_)
        return
    if is_parquet(trace):
        raise InvalidInputError(
            f"{trace}: a Parquet file is no trace; of a table of operations, --stragglers shows who makes steps longer"
        )
    result = front_door.analyze(load(trace), **options)
    note_guess(result.before.timeline.graph.hardware)
    write_timelines(perfetto, result.timelines)
    print_result(result, json_)
