"""`seqpoint describe`."""

from dataclasses import asdict
from typing import Any

import click

from seqpoint.cli.options import as_json, load, trace_argument
from seqpoint.cli.output import print_json, print_table, say
from seqpoint.cli.traces import summary
from seqpoint.describe import Description, describe
from seqpoint.units import duration


@click.command("describe")
@trace_argument
@as_json
def command(trace: str, marker: str, length: str | None, json_: bool) -> None:
    """Show what is in TRACE, a .trace folder or a trace file.

    \b
    seqpoint describe job.trace
    """
    description = describe(load(trace, marker, length))
    if json_:
        print_json(_content(description))
    else:
        _show(description)


def _content(description: Description) -> dict[str, Any]:
    meta = description.trace.meta
    iterations = description.iterations
    return {
        **summary(meta, {kind: table.num_rows for kind, table in description.trace.tables.items()}),
        "format": meta.format,
        "synthetic": meta.synthetic,
        "devices": [{**asdict(d), "overlapped_ns": d.overlapped_ns} for d in description.devices],
        "device_names": sorted({d.name for d in meta.devices if d.name}),
        "kernel_classes": [
            {"class": c.class_, "kernels": c.kernels, "time_ns": c.time_ns, "share": c.share}
            for c in description.classes
        ],
        "iterations_per_rank": {
            str(rank): int((iterations.rank == rank).sum()) for rank in sorted(set(iterations.rank.tolist()))
        },
        "found_by": sorted(set(iterations.found_by)),
        "steps": [asdict(s) for s in description.steps],
    }


def _show(description: Description) -> None:
    meta, table = description.trace.meta, description.iterations
    label = " (synthetic: nobody measured these times)" if meta.synthetic else ""
    names = sorted({d.name for d in meta.devices if d.name}) or ["not named in the trace"]
    ranks = f"{len(meta.ranks)} ranks" + (f" of {meta.world_size}" if meta.world_size else "")
    say(f"{meta.format}{label}: {len(meta.sources)} files, {ranks}, devices: {', '.join(names)}")
    found = ", ".join(sorted(set(table.found_by)))
    say(f"{len(table)} iterations over all ranks, found by {found}")
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
    print_table("Quality", ("count~", "n", "meaning~"), list(meta.quality.rows()))
