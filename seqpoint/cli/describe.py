"""The command `describe`: the content of a trace, printed as tables."""

import click

from seqpoint import front_door
from seqpoint.cli.options import as_json, load, trace_argument
from seqpoint.cli.output import print_json, print_table, say
from seqpoint.description import Description
from seqpoint.units import duration


@click.command("describe")
@trace_argument
@as_json
def command(trace: str, marker: str, length: str | None, json_: bool) -> None:
    """Show the content of TRACE: devices, ranks, steps, kernels by class, overlap, and the quality of the data.

    TRACE is a .trace folder or a trace file of any profiler.

    \b
    seqpoint describe job.trace
    """
    description = front_door.describe(load(trace, marker, length))
    if json_:
        print_json(description.to_dict())
    else:
        _show(description)


def _show(description: Description) -> None:
    for sentence in description.summary():
        say(sentence)
    print_table(
        "Devices",
        ("rank", "device", "span", "busy", "busy %", "communication", "exposed", "overlapped"),
        [
            (
                d.rank,
                d.device,
                duration(d.span_ns),
                duration(d.busy_ns),
                f"{100 * d.busy_ns / max(d.span_ns, 1):.1f}",
                duration(d.communication_ns),
                duration(d.exposed_ns),
                duration(d.overlapped_ns),
            )
            for d in description.devices
        ],
    )
    print_table(
        "Steps, each from one completion to the next",
        ("rank", "device", "steps", "elapsed", "median step", "median latency", "busy %"),
        [
            (
                s.rank,
                "-" if s.device is None else s.device,
                s.steps,
                duration(s.elapsed_ns),
                duration(s.step_ns),
                duration(s.latency_ns),
                "-" if s.busy_ns is None else f"{100 * s.busy_ns / max(s.elapsed_ns, 1):.1f}",
            )
            for s in description.steps
        ],
    )
    print_table(
        "Kernels by class",
        ("class~", "kernels", "time", "share %"),
        [(c.class_, c.kernels, duration(c.time_ns), f"{100 * c.share:.1f}") for c in description.classes],
    )
    print_table("Quality", ("count~", "n", "meaning~"), list(description.trace.meta.quality.rows()))
