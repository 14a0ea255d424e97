"""`seqpoint project`."""

from pathlib import Path
from typing import Any

import click

from replay.perfetto import write_perfetto
from replay.projection import Projection
from replay.what_ifs import parse_what_if
from seqpoint.cli.options import (
    as_json,
    hardware_option,
    iteration_option,
    load,
    max_points_option,
    perfetto_option,
    trace_argument,
    what_if_option,
)
from seqpoint.cli.output import duration, message, print_json, print_table, progress, say
from seqpoint.projecting import DEFAULT_WHAT_IFS, ProjectOptions, project_trace

#: Devices that work less than this share of the time wait for the host.
_HOST_BOUND = 0.6


@click.command("project")
@trace_argument
@what_if_option
@iteration_option
@max_points_option(8)
@click.option("--draws", default=32, show_default=True, type=click.IntRange(8, 10000), help="For the interval.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of the draws.")
@perfetto_option
@hardware_option
@as_json
def command(trace: str, marker: str, length: str | None, json_: bool, **options: Any) -> None:
    """Project what each what-if would gain on the iterations of TRACE.

    \b
    seqpoint project job.trace -w dma_collectives -w scale_device:MI355X -w dma_collectives+scale_device:MI355X
    """
    what_ifs = [parse_what_if(text) for text in options.pop("texts") or DEFAULT_WHAT_IFS]
    perfetto = options.pop("perfetto")
    loaded = load(trace, marker, length)
    projection = project_trace(loaded, what_ifs, ProjectOptions(**options, progress=progress("projecting")))
    if projection.provenance["device_known_by"] == "file name":
        message(f"note: the device {projection.provenance['device']} is a guess from the file's name (see --device)")
    if perfetto:
        lines, after = projection.timelines, what_ifs[0].name
        write_perfetto(Path(perfetto), {"before": lines["baseline"], f"after {after}": lines[after]})
        message(f"wrote {perfetto}")
    if json_:
        print_json(content(projection))
    else:
        show(projection)


def content(projection: Projection) -> dict[str, Any]:
    """Return a projection as JSON with stable keys."""
    names = ("projected_ns", "speedup", "low", "high", "measured_share", "derived_share", "assumed_share")
    return {
        "baseline_ns": projection.baseline_ns,
        "measured_ns": projection.measured_ns,
        "device_busy_share": projection.device_busy_share,
        "rows": [
            {
                "what_if": list(row.what_if),
                **{name: getattr(row, name) for name in names},
                "notes": list(row.notes),
            }
            for row in projection.rows
        ],
        "provenance": projection.provenance,
    }


def show(projection: Projection) -> None:
    """Print a projection for people."""
    facts = projection.provenance
    device = facts["device"] or "unknown device"
    label, known = (" (synthetic)", "synthesised") if facts["synthetic"] else ("", "measured")
    say(
        f"baseline {duration(projection.baseline_ns)} ({known} {duration(projection.measured_ns)}) over "
        f"{len(facts['iterations'])} iterations ({facts['iterations_chosen']}) on {device}{label}"
    )
    print_table(
        f"What-ifs (interval: central {100 * facts['confidence']:g} % over the parameters' ranges)",
        ("what-if~", "speed-up", "low", "high", "projected", "measured %", "derived %", "assumed %"),
        [
            (
                " + ".join(row.what_if),
                f"{row.speedup:.3f}",
                f"{row.low:.3f}",
                f"{row.high:.3f}",
                duration(row.projected_ns),
                *(f"{100 * share:.0f}" for share in (row.measured_share, row.derived_share, row.assumed_share)),
            )
            for row in projection.rows
        ],
    )
    busy = projection.device_busy_share
    if busy is not None and busy < _HOST_BOUND:
        say(f"note: the devices work {100 * busy:.0f} % of the time; the host sets the pace (try -w scale_host:0.5)")
    for note in dict.fromkeys(note for row in projection.rows for note in row.notes):
        say(f"note: {note}")
