"""Commands for questions that no other command answers: `sql` by hand, and `mcp` for agents."""

from typing import Any

import click

from profilers.trace.store import is_trace
from seqpoint import queries
from seqpoint.cli.options import load, options_of, output_options, reading, surveyed, trace_argument
from seqpoint.cli.output import print_result


@click.command("sql")
@trace_argument
@click.argument("statement", required=False, default="")
@options_of(queries.sql, "limit", "seconds", seconds={"type": click.FloatRange(0.0, min_open=True)})
@output_options
def sql_command(trace: str, statement: str, json_: bool, **how: Any) -> None:
    """Run STATEMENT, one SELECT in the SQL of DuckDB, over the events of TRACE.

    Views are kernels (with operator, class, phase and module), ops, launches, copies, collectives, syncs, ranges,
    counters and iterations. Without a statement, they are listed with their columns. A statement reads the trace and no
    other file, and is stopped after --seconds.

    With --json: columns (the type of each), rows, and more (whether --limit left rows out). Without a statement: views,
    and rows with view, column and meaning.

    \b
    seqpoint sql job.trace
    seqpoint sql job.trace "select class, sum(dur_us) as us from kernels group by class order by us desc"
    seqpoint sql job.trace "from collectives select rank, sum(waiting_ns) group by rank" --json
    """
    is_plain = not any(reading()[name] for name in ("length", "classes", "ranks")) and reading()["marker"] == "auto"
    source = trace if is_plain and is_trace(trace) and surveyed(trace) is None else load(trace)
    print_result(queries.sql(source, statement, **how), json_)


def _print_skill(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    """Print the skill, without the SDK of the protocol."""
    if value:
        from seqpoint.agents import skill

        click.echo(skill(), nl=False)
        context.exit()


@click.command("mcp")
@click.option("--root", required=True, metavar="FOLDER", type=click.Path(), help="Folder of traces to serve.")
@click.option(
    "--skill", is_flag=True, is_eager=True, expose_value=False, callback=_print_skill,
    help="Print the skill (SKILL.md) that tells an agent what to call when, and exit.",
)  # fmt: skip
def mcp_command(root: str) -> None:
    """Serve the traces below FOLDER to agents, by the Model Context Protocol on stdin and stdout.

    The tools are describe, characterize, advise, compare, project, sql, what_ifs and more. Nothing outside of FOLDER is
    read, and nothing is written. Every answer has at most 8 kB.

    \b
    seqpoint mcp --root traces/
    seqpoint mcp --skill > ~/skills/seqpoint/SKILL.md
    """
    from seqpoint.agents import server

    server(root).run("stdio")
