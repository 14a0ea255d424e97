"""Commands that read, cut, merge and write traces.

`seqpoint ingest`.

`seqpoint merge`.

`seqpoint slice`.

`seqpoint export`.
"""

import os
import re
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Any

import click

from profilers.errors import DependencyError, InvalidInputError
from seqpoint.cli.options import as_json, hardware_option, reading_options
from seqpoint.cli.output import byte_progress, message, print_json, print_table, say
from seqpoint.description import trace_facts

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def parse_bytes(text: str) -> int:
    """Return a size written as 500MB or 8G.

    Raises
    ------
    InvalidInputError
        It is no size.

    Examples
    --------
    >>> parse_bytes("8GB"), parse_bytes("0.5 m")
    (8000000000, 500000)
    """
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)\s*([kmgt]?)b?", text.strip().lower())
    if found is None:
        raise InvalidInputError(f"{text!r} is no size; write it as 500MB or 8GB")
    return int(float(found.group(1)) * _UNITS[found.group(2)])


@contextmanager
def _cluster(address: str) -> Iterator[Executor]:
    """Connect to a Dask scheduler."""
    try:
        from distributed import Client
    except ImportError as error:
        raise DependencyError("--cluster needs dask.distributed: pip install 'seqpoint[cluster]'") from error
    try:
        client = Client(address, timeout="10s", set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInputError(f"--cluster {address}: no scheduler answers there ({error})") from error
    with client:
        yield client.get_executor(pure=False)  # type: ignore[no-untyped-call]


@click.command("ingest")
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option("-o", "--output", required=True, metavar="NAME.trace", type=click.Path(), help="Folder to write.")
@reading_options
@click.option("--limit", default="8GB", show_default=True, metavar="SIZE", help="What a packed file may unpack to.")
@click.option("--counters", multiple=True, metavar="FILE", type=click.Path(), help="Nsight Compute or rocprof-compute.")
@click.option(
    "--execution-trace", "traces", multiple=True, metavar="FILE", type=click.Path(), help="Chakra, a rank each."
)
@click.option("--cluster", metavar="ADDRESS", help="Read on the workers of this Dask scheduler, as tcp://host:8786.")
@as_json
def ingest_command(files: tuple[str, ...], output: str, marker: str, length: str | None, **more: Any) -> None:
    """Read FILES (or folders of them) of any profiler into one .trace folder; `seqpoint readers` lists the formats.

    Memory stays bounded whatever the size, several files are read at a time, and what was read before an
    interruption is not read again.

    \b
    seqpoint ingest rank*.json.gz -o job.trace
    seqpoint ingest epoch/ --iterations file --length aten::embedding:1:1 -o epoch.trace
    """
    # Arrow reads this when it loads; the system's allocator keeps less of what is free than Arrow's own.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from profilers.ingest.pipeline import CollectOptions, ingest

    joined = {"counters": more["counters"], "execution_traces": more["traces"]}
    options = CollectOptions(marker, length, byte_progress("reading"), parse_bytes(more["limit"]), **joined)
    with _cluster(more["cluster"]) if more["cluster"] else nullcontext() as executor:
        found = ingest(files, output, options, executor=executor)
    if found.resumed:
        message(f"{found.resumed} of {len(found.meta.sources)} files had been read before")
    if more["json_"]:
        print_json({"path": str(found.path), **trace_facts(found.meta, found.rows)})
        return
    sources = len(found.meta.sources)
    say(f"{found.path}: {sources} files, ranks {list(found.meta.ranks)}, {found.rows['iterations']} iterations")
    print_table("Events", ("kind~", "rows"), [(kind, n) for kind, n in found.rows.items() if kind != "iterations"])
    print_table("Quality", ("count~", "n", "meaning~"), list(found.meta.quality.rows()))


@click.command("merge")
@click.argument("traces", nargs=-1, required=True, type=click.Path())
@click.option("-o", "--output", required=True, metavar="NAME.trace", type=click.Path(), help="Folder to write.")
@click.option("--as-ranks", "renumber", is_flag=True, help="Number the traces as ranks 0, 1, ... in their order.")
@as_json
def merge_command(traces: tuple[str, ...], output: str, renumber: bool, json_: bool) -> None:
    """Put TRACES of different ranks together: ids of their own, one clock, collectives matched anew.

    \b
    seqpoint merge node0.trace node1.trace -o job.trace
    seqpoint merge run-a.trace run-b.trace --as-ranks -o both.trace
    """
    from profilers.ingest.pipeline import open_trace
    from profilers.trace.store import save_trace
    from profilers.writers.slicing import as_ranks, merge

    opened = [open_trace(path) for path in traces]
    merged = merge(as_ranks(opened) if renumber else opened)
    path = save_trace(merged, output)
    if json_:
        rows = {kind: table.num_rows for kind, table in merged.tables.items()}
        print_json({"path": str(path), **trace_facts(merged.meta, rows)})
    else:
        say(
            f"{path}: ranks {list(merged.meta.ranks)}, {merged.meta.quality['collectives_matched']} collectives matched"
        )


_TIME_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


def parse_time(text: str) -> int:
    """Return a time written as 1.5ms, in ns.

    Raises
    ------
    InvalidInputError
        It is no time.

    Examples
    --------
    >>> parse_time("1.5ms"), parse_time("20")
    (1500000, 20)
    """
    found = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9})?)\s*(ns|us|ms|s)?", text.strip())
    if found is None:
        raise InvalidInputError(f"{text!r} is no time; write it as 1.5ms or 200us")
    return int(Decimal(found.group(1)) * _TIME_UNITS[found.group(2) or "ns"])


@click.command("slice")
@click.argument("trace", type=click.Path())
@click.option("-o", "--output", required=True, metavar="NAME.trace", type=click.Path(), help="Folder to write.")
@click.option("--iteration", "iterations", multiple=True, type=int, help="May be given several times.")
@click.option("--rank", "ranks", multiple=True, type=int, help="May be given several times.")
@click.option("--from", "first", metavar="TIME", help="From the start of the trace, as 1.5ms; ns without a unit.")
@click.option("--to", "last", metavar="TIME", help="As --from.")
@as_json
def slice_command(
    trace: str,
    output: str,
    iterations: tuple[int, ...],
    ranks: tuple[int, ...],
    first: str | None,
    last: str | None,
    json_: bool,
) -> None:
    """Keep some iterations, ranks or a time of TRACE; an event that overlaps the time is kept whole.

    \b
    seqpoint slice job.trace --iteration 10 --rank 0 -o step.trace
    seqpoint slice job.trace --from 1.5ms --to 3ms -o part.trace
    """
    from profilers.ingest.pipeline import open_trace
    from profilers.trace.arrays import integers
    from profilers.trace.schema import KINDS
    from profilers.trace.store import save_trace
    from profilers.writers.slicing import SliceOptions, slice_trace

    whole = open_trace(trace)
    starts = [int(integers(whole.tables[kind], "start_ns").min()) for kind in KINDS if whole.tables[kind].num_rows]
    base = min(starts, default=0)
    options = SliceOptions(
        frozenset(iterations) or None,
        frozenset(ranks) or None,
        None if first is None else base + parse_time(first),
        None if last is None else base + parse_time(last),
    )
    part = slice_trace(whole, options)
    path = save_trace(part, output)
    rows = {kind: table.num_rows for kind, table in part.tables.items()}
    if json_:
        print_json({"path": str(path), **trace_facts(part.meta, rows)})
    else:
        kept = sum(n for kind, n in rows.items() if kind != "iterations")
        say(f"{path}: {kept} events, ranks {list(part.meta.ranks)}, {rows['iterations']} iterations")


@click.command("export")
@click.argument("trace", type=click.Path())
@click.option("-o", "--output", required=True, metavar="FILE", type=click.Path(), help=".json, .json.gz or .et")
@click.option("--graph", is_flag=True, help="Write the replay's graph of one iteration, for ASTRA-sim; FILE is .et.")
@click.option("--iteration", "-i", type=int, help="With --graph: which one.  [default: the one of median duration]")
@click.option("--what-if", "-w", "text", metavar="NAME:ARGUMENT[+...]", help="With --graph: change it first.")
@hardware_option
@as_json
def export_command(trace: str, output: str, json_: bool, **options: Any) -> None:
    """Write TRACE for other tools: JSON for ui.perfetto.dev, or Chakra execution traces, a file a rank.

    A .trace folder is Parquet and needs no export for pandas, polars or duckdb.

    \b
    seqpoint export job.trace -o job.json.gz
    seqpoint export job.trace -o job.et
    seqpoint export job.trace --graph -i 12 -w scale_device:MI355X -o job.et
    """
    from profilers.ingest.pipeline import open_trace
    from profilers.writers.chakra import export_chakra
    from profilers.writers.perfetto import export_perfetto

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
    from profilers.ingest.pipeline import open_trace
    from replay.what_ifs import parse_what_if
    from replay.writers.chakra import write_chakra
    from seqpoint.graphs import graph_of

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
