"""`seqpoint iterations`."""

import click

from seqpoint.cli.options import as_json, load, trace_argument
from seqpoint.cli.output import duration, print_json, print_table
from seqpoint.iterations import UNITS, iteration_table

#: How statistics are called in the table; in JSON, and for `--statistic`, they keep their names.
_HEADINGS = {"duration": "step time"}


@click.command("iterations")
@trace_argument
@as_json
def command(trace: str, marker: str, length: str | None, json_: bool) -> None:
    """List the iterations of TRACE with their sequence lengths and statistics.

    The step time (duration in JSON) is the time from the completion of the iteration before to its own, so step times
    add up to the elapsed time. The latency counts from the start of the iteration on the host.

    \b
    seqpoint iterations job.trace
    """
    table = iteration_table(load(trace, marker, length))
    rows = [
        {
            "rank": int(table.rank[i]),
            "iteration": int(table.iteration[i]),
            "start_ns": int(table.start_ns[i]),
            "sequence_length": None
            if table.sequence_length[i] != table.sequence_length[i]
            else int(table.sequence_length[i]),
            **{name: float(values[i]) for name, values in table.statistics.items()},
            "found_by": table.found_by[i],
            "length_found_by": table.length_found_by[i],
        }
        for i in range(len(table))
    ]
    if json_:
        print_json({"units": dict(UNITS), "iterations": rows})
        return
    times = [name for name, unit in UNITS.items() if unit == "ns"]
    print_table(
        "Iterations",
        (
            "rank",
            "iteration",
            "length",
            *(_HEADINGS.get(name, name.replace("_", " ")) for name in times),
            "kernels",
            "found by~",
        ),
        [
            (
                row["rank"],
                row["iteration"],
                "-" if row["sequence_length"] is None else row["sequence_length"],
                *(duration(float(str(row[name]))) for name in times),
                int(float(str(row["kernels"]))),
                row["found_by"],
            )
            for row in rows
        ],
    )
