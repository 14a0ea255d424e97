"""Commands that read, merge, cut and write traces: `ingest`, `merge`, `slice` and `export`."""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import click

from profilers.errors import InvalidInputError
from profilers.trace.quality import FINE, Quality
from profilers.trace.trace import Trace, TraceMeta
from seqpoint import front_door
from seqpoint.cli.options import (
    as_json,
    cluster_option,
    dask_executor,
    options_of,
    output_option,
    output_options,
    reading,
    reading_options,
    skip_option,
)
from seqpoint.cli.output import byte_progress, current_view, message, print_json, print_lines, print_table, print_tables
from seqpoint.description import quality_table, row_counts, trace_facts
from seqpoint.notebook import counted

_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def parse_bytes(text: str) -> int:
    """Return the number of bytes of a size such as 500MB or 8G.

    Parameters
    ----------
    text : str
        A number with up to three decimals and a decimal unit: B, K, M, G or T, with or without B.

    Raises
    ------
    InvalidInputError
        The text is not a size.

    Examples
    --------
    >>> parse_bytes("8GB"), parse_bytes("0.5 m")
    (8000000000, 500000)
    """
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)\s*([kmgt]?)b?", text.strip().lower())
    if match is None:
        raise InvalidInputError(f"{text!r} is not a size; write it as 500MB or 8GB")
    return int(float(match.group(1)) * _BYTES[match.group(2)])


_folder_option = output_option("NAME.trace", "Folder to write.")


@click.command("ingest")
@click.argument("files", nargs=-1, required=True, type=click.Path())
@_folder_option
@reading_options
@click.option(
    "--limit", default="8GB", show_default=True, metavar="SIZE", help="Largest size that a packed file may unpack to."
)
@options_of(front_door.open, "counters", "execution_traces", "captures")
@cluster_option
@skip_option
@output_options
def ingest_command(files: tuple[str, ...], output: str, limit: str, json_: bool, **joined: Any) -> None:
    """Read trace FILES of a job into a .trace folder, which all other commands read.

    FILES are trace files of any profiler, or folders of them; `seqpoint readers` lists the formats. Or they are .trace
    folders of different ranks. Memory stays bounded for any size. Several files are read at a time. After an
    interruption, the same command continues.

    \b
    seqpoint ingest rank*.json.gz -o job.trace
    seqpoint ingest epoch/ --iterations file --length aten::embedding:1:1 -o epoch.trace
    seqpoint ingest decode.json.gz --capture capture.json.gz -o decode.trace
    """
    # Arrow reads this when it loads; the system's allocator keeps less of what is free than Arrow's own.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from profilers.ingest.pipeline import IngestOptions
    from profilers.trace.kernels import read_class_rules

    how = reading()
    joined["skip_damaged"] = how["skip_damaged"]
    if how["classes"] is not None:
        joined["class_rules"] = read_class_rules(how["classes"])
    options = IngestOptions(how["marker"], how["length"], byte_progress("reading"), parse_bytes(limit), **joined)
    with dask_executor(how["cluster"]) as executor:
        result = front_door.ingest(files, output, options=options, executor=executor)
    for problem in result.left_out:
        message(f"left out: {problem}")
    if result.resumed:
        message(f"{result.resumed} of {len(result.meta.sources)} files had been read before")
    if json_:
        print_json({"path": str(result.path), **trace_facts(result.meta, result.rows)})
        return
    meta, iterations = result.meta, counted(result.rows["iterations"], "iteration")
    files_read, ranks = counted(len(meta.sources), "file"), counted(len(meta.ranks), "rank")
    print_lines(f"{result.path}: {files_read}, {ranks}, {iterations}")
    print_table("Events", ("kind~", "rows"), [(kind, n) for kind, n in result.rows.items() if kind != "iterations"])
    if (counts := result.meta.quality)["graph_kernels"]:
        print_lines(_captured_share(counts))
    quality = quality_table(result.meta, result.rows)
    if not current_view().everything:
        quality = replace(quality, rows=[row for row in quality.rows if row[0] != FINE], verbose=False)
    print_tables([quality] if quality.rows else [])


def _captured_share(counts: Quality) -> str:
    """Return how many kernels of graphs have an operator from a capture, as text."""
    launches, kernels, matched = (counts[name] for name in ("graph_launches", "graph_kernels", "graph_kernels_matched"))
    share = 100 * counts["graph_kernel_matched_ns"] / max(counts["graph_kernel_ns"], 1)
    return (
        f"{launches:,} launch{'es' if launches > 1 else ''} of graphs: {matched:,} of {kernels:,} kernels are in the "
        f"capture, {share:.1f} % of their time"
    )


@click.command("merge")
@click.argument("traces", nargs=-1, required=True, type=click.Path())
@_folder_option
@click.option("--as-ranks", "renumber", is_flag=True, help="Renumber the traces as ranks 0, 1, ... in the order given.")
@as_json
def merge_command(traces: tuple[str, ...], output: str, renumber: bool, json_: bool) -> None:
    """Merge TRACES of different ranks of a job into a single trace.

    Ids are renumbered, clocks are aligned, and collectives are matched between the ranks.

    \b
    seqpoint merge node0.trace node1.trace -o job.trace
    seqpoint merge run-a.trace run-b.trace --as-ranks -o both.trace
    """
    from profilers.ingest.pipeline import open_trace
    from profilers.trace.store import save_trace, trace_folders
    from profilers.writers.slicing import as_ranks, merge, merge_folders

    paths = [Path(trace) for trace in traces]
    if len(traces) < 2:
        raise click.UsageError("there is nothing to merge; name two or more traces")

    path = Path(output)
    if not renumber and trace_folders(paths) == paths:
        merged, rows = merge_folders(paths, path)
    else:
        opened = [open_trace(each) for each in paths]
        merged = merge(as_ranks(opened) if renumber else opened)
        path, rows = save_trace(merged, path), row_counts(merged)
    matched = merged.meta.quality["collectives_matched"]
    _print_trace((path, merged.meta), rows, json_, f"ranks {list(merged.meta.ranks)}, {matched} collectives matched")


def _print_trace(written: tuple[Path, TraceMeta], rows: Mapping[str, int], json_: bool, text: str) -> None:
    """Print the facts of a trace that was written, or a line."""
    path, meta = written
    if json_:
        print_json({"path": str(path), **trace_facts(meta, rows)})
    else:
        print_lines(f"{path}: {text}")


_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


def parse_time(text: str) -> int:
    """Return the ns of a time such as 1.5ms.

    Parameters
    ----------
    text : str
        A number with up to nine decimals and a unit: ns (default), us, ms or s.

    Raises
    ------
    InvalidInputError
        The text is not a time.

    Examples
    --------
    >>> parse_time("1.5ms"), parse_time("20")
    (1500000, 20)
    """
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9})?)\s*(ns|us|ms|s)?", text.strip())
    if match is None:
        raise InvalidInputError(f"{text!r} is not a time; write it as 1.5ms or 200us")
    return int(Decimal(match.group(1)) * _NS[match.group(2) or "ns"])


@click.command("slice")
@click.argument("trace", type=click.Path())
@_folder_option
@click.option("--iteration", "iterations", multiple=True, type=int, help="Iteration to keep; may be repeated.")
@click.option("--rank", "ranks", multiple=True, type=int, help="Rank to keep; may be repeated.")
@click.option(
    "--from", "first", metavar="TIME", help="Start of the time to keep, from the start of the trace, such as 1.5ms."
)
@click.option("--to", "last", metavar="TIME", help="End of the time to keep, from the start of the trace.")
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
    """Cut iterations, ranks or a time span out of TRACE, and write them as a trace.

    An event that overlaps the time span is kept whole. With an iteration come those that its step begins in, so that
    it projects as in TRACE; no other command lists them.

    \b
    seqpoint slice job.trace --iteration 10 --rank 0 -o step.trace
    seqpoint slice job.trace --from 1.5ms --to 3ms -o span.trace
    """
    from profilers.ingest.pipeline import open_trace
    from profilers.trace.arrays import integers
    from profilers.trace.schema import KINDS
    from profilers.trace.store import save_trace
    from profilers.writers.slicing import SliceOptions, slice_trace

    if not iterations and not ranks and first is None and last is None:
        raise click.UsageError("say what to keep: --iteration, --rank, --from or --to")
    begin, end = (None if text is None else parse_time(text) for text in (first, last))
    if begin is not None and end is not None and end <= begin:
        raise InvalidInputError(f"--to {last} is not after --from {first}")
    whole = open_trace(trace)
    starts = [int(integers(whole.tables[kind], "start_ns").min()) for kind in KINDS if whole.tables[kind].num_rows]
    base = min(starts, default=0)
    options = SliceOptions(
        frozenset(iterations) or None,
        frozenset(ranks) or None,
        None if begin is None else base + begin,
        None if end is None else base + end,
    )
    kept = slice_trace(whole, options)
    path = save_trace(kept, output)
    rows = row_counts(kept)
    events = sum(rows.values()) - rows["iterations"]
    asked = kept.without_context().iterations.num_rows
    text = f"{events} events, ranks {list(kept.meta.ranks)}, {asked} iterations"
    if kept.meta.context:
        text += f", and as context of their steps iterations {list(kept.meta.context)}"
    _print_trace((path, kept.meta), rows, json_, text)


@click.command("export")
@click.argument("trace", type=click.Path())
@output_option("FILE", "File to write; its name ends in .json, .json.gz, .et or .trace, which sets the format.")
@click.option(
    "--anonymous",
    is_flag=True,
    help="Keep public names, and number all others: kernels, operators, ranges, paths, hosts. Figures stay the same.",
)
@click.option(
    "--graph", is_flag=True, help="Write the kernel graph of an iteration instead, for ASTRA-sim; FILE ends in .et."
)
@options_of(
    front_door.analyze, "iteration", "what_if", "device",
    iteration={"help": "Iteration of the graph, with --graph; by default that of median step time."},
    what_if={"help": "What-if to apply to the graph, with --graph; `seqpoint what-ifs` lists them."},
)  # fmt: skip
@as_json
def export_command(trace: str, output: str, anonymous: bool, graph: bool, json_: bool, **options: Any) -> None:
    """Write TRACE for other tools: JSON for https://ui.perfetto.dev, or a Chakra execution trace for each rank.

    A .trace folder is Parquet, which pandas, polars and duckdb read as it is. With --anonymous it is written too: a
    trace to share, without the names of your kernels, modules, files and hosts.

    \b
    seqpoint export job.trace -o job.json.gz
    seqpoint export job.trace --anonymous -o shared.trace
    seqpoint export job.trace -o job.et
    seqpoint export job.trace --graph -i 12 -w scale_device:MI355X -o job.et
    """
    from profilers.trace.store import save_trace
    from profilers.writers.chakra import export_chakra
    from profilers.writers.perfetto import export_perfetto

    path = Path(output)
    if graph and anonymous:
        raise click.UsageError(
            "--anonymous is of a trace, and --graph writes a graph; export the anonymous trace first"
        )
    if graph:
        _graph(trace, path, json_, options)
        return
    if of_graph := [name for name in ("iteration", "what_if", "device") if options[name] is not None]:
        raise InvalidInputError(f"--{of_graph[0].replace('_', '-')} is of a graph; add --graph")
    if path.suffix == ".trace" and not anonymous:
        raise InvalidInputError(f"{output}: a .trace is written by `seqpoint ingest`, and here with --anonymous")
    if not path.name.endswith((".json", ".json.gz", ".et", ".trace")):
        raise InvalidInputError(f"{output}: the name must end in .json, .json.gz, .et or .trace, which says the format")
    opened, facts = _opened(trace, anonymous)
    if path.suffix == ".trace":
        written = [save_trace(opened, path)]
    elif path.suffix == ".et":
        written = export_chakra(opened, path)
    else:
        export_perfetto(opened, path)
        written = [path]
    _show(written, json_, facts)
    if anonymous and not json_:
        texts = [counted(count, f"private {noun}") for noun, count in facts["renamed"].items()]
        print_lines(f"numbered: {', '.join(texts) or 'nothing: all names are public'}")


def _opened(trace: str, anonymous: bool) -> tuple[Trace, dict[str, Any]]:
    """Return a trace to write, and with it the number of its private names by noun if it is to be anonymous."""
    from profilers.ingest.pipeline import open_trace

    opened = open_trace(trace)
    if not anonymous:
        return opened, {}
    from profilers.writers.anonymous import anonymous_trace

    shared, renamed = anonymous_trace(opened)
    return shared, {"renamed": dict(renamed)}


def _graph(trace: str, path: Path, json_: bool, options: dict[str, Any]) -> None:
    from profilers.ingest.pipeline import open_trace
    from replay.what_ifs import parse_what_if
    from replay.writers.chakra import write_chakra
    from seqpoint.graphs import graph_of

    if path.suffix != ".et":
        raise InvalidInputError(f"{path}: a graph is written as Chakra files; the name must end in .et")
    what_if = None if options["what_if"] is None else parse_what_if(options["what_if"])
    number, graph = graph_of(open_trace(trace), options["iteration"], what_if=what_if, device=options["device"])
    export = write_chakra(graph, path)
    written = [*export.paths] if export.groups is None else [*export.paths, export.groups]
    counts = {"tasks": export.tasks, "delays": export.delays, "unexpressed": export.unexpressed}
    _show(written, json_, {"iteration": number, "what_if": [] if what_if is None else list(what_if.steps), **counts})
    if not json_:
        print_lines(f"iteration {number}: {export.tasks:,} tasks, {export.delays:,} delays")
        if export.unexpressed:
            message(f"note: {export.unexpressed:,} waits between ranks have no counterpart in ASTRA-sim; left out")


def _show(written: list[Path], json_: bool, facts: dict[str, Any]) -> None:
    files = {path: path.rglob("*.*") if path.is_dir() else [path] for path in written}
    sizes = {str(path): sum(file.stat().st_size for file in inside) for path, inside in files.items()}
    if json_:
        print_json({"files": sizes, **facts})
        return
    for name, size in sizes.items():
        print_lines(f"{name}: {size:,} bytes")
