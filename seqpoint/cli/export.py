"""`seqpoint export`."""

from pathlib import Path
from typing import Any

import click

from profilers.errors import InvalidInputError
from seqpoint.cli.options import as_json, hardware_option
from seqpoint.cli.output import message, print_json, say


@click.command("export")
@click.argument("trace", type=click.Path())
@click.option("-o", "--output", required=True, metavar="FILE", type=click.Path(), help=".json, .json.gz or .et")
@click.option("--graph", is_flag=True, help="Write the replay's graph of one iteration, for ASTRA-sim; FILE is .et.")
@click.option("--iteration", "-i", type=int, help="With --graph: which one.  [default: the one of median duration]")
@click.option("--what-if", "-w", "text", metavar="NAME:ARGUMENT[+...]", help="With --graph: change it first.")
@hardware_option
@as_json
def command(trace: str, output: str, json_: bool, **options: Any) -> None:
    """Write TRACE for other tools: JSON for ui.perfetto.dev, or Chakra execution traces, a file a rank.

    A .trace folder is Parquet and needs no export for pandas, polars or duckdb.

    \b
    seqpoint export job.trace -o job.json.gz
    seqpoint export job.trace -o job.et
    seqpoint export job.trace --graph -i 12 -w scale_device:MI355X -o job.et
    """
    from profilers.chakra.writer import export_chakra
    from profilers.collect import open_trace
    from profilers.perfetto_json import export_perfetto

    path = Path(output)
    if options.pop("graph"):
        _graph(trace, path, json_, options)
        return
    if given := [name for name in ("iteration", "text", "device") if options[name] is not None]:
        raise InvalidInputError(f"--{given[0].replace('text', 'what-if')} is of a graph; add --graph")
    if path.name.endswith((".json", ".json.gz")):
        export_perfetto(open_trace(trace), path)
        written = [path]
    elif path.suffix == ".et":
        written = export_chakra(open_trace(trace), path)
    else:
        raise InvalidInputError(f"{output}: the name must end in .json, .json.gz or .et, which says the format")
    _show(written, json_, {})


def _graph(trace: str, path: Path, json_: bool, options: dict[str, Any]) -> None:
    from profilers.collect import open_trace
    from replay.chakra import write_chakra
    from replay.what_ifs import parse_what_if
    from seqpoint.analysing import graph_of

    if path.suffix != ".et":
        raise InvalidInputError(f"{path}: a graph is written as Chakra files; the name must end in .et")
    what_if = None if options["text"] is None else parse_what_if(options["text"])
    number, graph = graph_of(open_trace(trace), options["iteration"], what_if=what_if, device=options["device"])
    found = write_chakra(graph, path)
    written = [*found.paths] if found.groups is None else [*found.paths, found.groups]
    counts = {"tasks": found.tasks, "delays": found.delays, "unexpressed": found.unexpressed}
    _show(written, json_, {"iteration": number, "what_if": [] if what_if is None else list(what_if.steps), **counts})
    if not json_:
        say(f"iteration {number}: {found.tasks:,} tasks, {found.delays:,} delays")
        if found.unexpressed:
            message(f"note: {found.unexpressed:,} waits between ranks are no communication that ASTRA-sim knows")


def _show(written: list[Path], json_: bool, facts: dict[str, Any]) -> None:
    sizes = {str(one): one.stat().st_size for one in written}
    if json_:
        print_json({"files": sizes, **facts})
        return
    for name, size in sizes.items():
        say(f"{name}: {size:,} bytes")
