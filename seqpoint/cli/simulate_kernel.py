"""The command `seqpoint simulate kernel`."""

from pathlib import Path
from typing import Any

import click

from profilers.files import file_to_write, replaced_file
from seqpoint import kernel_simulation
from seqpoint.cli.options import options_of, output_options, plot_option, refuse_options
from seqpoint.cli.output import message, print_result, progress, save_plot


def _sizes(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Return sizes such as ``64,1,1`` or ``64x2``."""
    if text is None:
        return ()
    try:
        return tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r}: write 64 or 64,2,1") from None


_SIZES = {"type": str, "multiple": False, "callback": _sizes}


@click.command("kernel")
@click.argument("file", metavar="FILE", required=False)
@click.option("--plan", metavar="FILE.toml", type=click.Path(), help="Plan of launches; the same as FILE.toml.")
@options_of(
    kernel_simulation.simulate_kernel, "entry", "grid", "block", "arguments", "device",
    grid=_SIZES, block=_SIZES,
    arguments={
        "type": str, "multiple": True,
        "help": "Argument, one a parameter in order: a number; NAME=f32[64,256] for a buffer of zeros, with a fill as "
        "NAME=f32[64,256]:normal:seed=1 (normal, uniform, randint, arange; low, high, seed); NAME=@FILE.npy; or the "
        "NAME of a buffer before.",
    },
)  # fmt: skip
@options_of(
    kernel_simulation.KernelOptions, "variables", "shared_bytes", "clock_mhz", "memory_gbps", "mapping", "scheduler",
    "registers", "waves", "limit", "allow_races", "checkpoint",
    variables={
        "help": "Content of a variable of the PTX file, which __constant__ or __device__ declares: NAME=5, or a buffer "
        "as of --arg.",
    },
)  # fmt: skip
@click.option("--outputs", metavar="DIR", type=click.Path(), help="Write each buffer as NAME.npy into a new folder.")
@click.option(
    "--perfetto", metavar="FILE.json.gz", type=click.Path(),
    help="Write the launches as a trace, which seqpoint ingest and Perfetto read.",
)  # fmt: skip
@plot_option("Write heat maps over time.")
@output_options
def kernel(
    file: str | None, plan: str | None, json_: bool, plot: str | None, perfetto: str | None, outputs: str | None,
    arguments: tuple[str, ...], **how: Any,
) -> None:  # fmt: skip
    """Execute a kernel in PTX, or a plan of several, and with --device say how long it takes and why.

    FILE is a PTX file or a plan in TOML. No GPU is needed. Every launch begins with cold caches.

    With --json, each of `launches` has entry, grid, block, warp_instructions and unset_variables; with --device also
    time_ns, cycles, time_error, timed_blocks, blocks, resident_blocks, registers, issue_share, stalls,
    l1_load_hit_rate, l2_read_hit_rate, dram_read_bytes, dram_write_bytes, dram_utilisation, dram_efficiency,
    row_hit_rate and bank_parallelism.

    \b
    seqpoint simulate kernel softmax.toml --device V100-SXM2-16GB
    seqpoint simulate kernel add.ptx --grid 32 --block 128 --arg y=f32[16384] --arg x=f32[16384]:normal --arg 16384
    """
    if (file is None) == (plan is None):
        raise click.UsageError("give one FILE, or --plan FILE.toml")
    if not how["device"]:
        refuse_options(("clock_mhz", "memory_gbps", "mapping", "registers", "waves", "scheduler"), "without --device")
        if plot or perfetto:
            raise click.UsageError("--plot and --perfetto show times; give a --device")
    if perfetto is not None:
        file_to_write(Path(perfetto))
    if outputs is not None:
        kernel_simulation.new_folder(outputs)
    if how["checkpoint"] is not None:
        file_to_write(Path(how["checkpoint"]))
    passed, buffers = _arguments(arguments)
    launch = {name: how.pop(name) for name in ("entry", "grid", "block", "device")}
    how["variables"] = _variables(how["variables"])
    result = kernel_simulation.simulate_kernel(
        plan or str(file), **launch, arguments=passed, options=kernel_simulation.KernelOptions(buffers=buffers, **how),
        progress=progress("simulating"),
    )  # fmt: skip
    if result.resumed:
        message(f"went on from {how['checkpoint']}")
    if outputs is not None:
        result.save_outputs(outputs)
        message(f"wrote {outputs}")
    if perfetto is not None:
        _save_trace(result, perfetto)
        message(f"wrote {perfetto}")
    save_plot(result.plots, plot)
    print_result(result, json_)


def _arguments(texts: tuple[str, ...]) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a launch, and the buffers that they name."""
    from replay.detailed.plans import parse_argument

    passed: list[Any] = []
    buffers: dict[str, Any] = {}
    for text in texts:
        name, value = parse_argument(text)
        if not name:
            passed.append(value)
            continue
        if value is not None:
            if name in buffers:
                raise click.UsageError(f"--arg {text}: the buffer {name} is there already")
            buffers[name] = value
        passed.append(name)
    return passed, buffers


def _variables(texts: tuple[str, ...]) -> dict[str, Any]:
    """Return the content of variables; that of a name alone is the buffer of this name."""
    from replay.detailed.plans import parse_variable

    contents: dict[str, Any] = {}
    for text in texts:
        name, value = parse_variable(text)
        if not name or name in contents:
            raise click.UsageError(f"--variable {text}: write NAME=VALUE, each name once")
        contents[name] = name if value is None else value
    return contents


def _save_trace(result: Any, path: str) -> None:
    import gzip
    import json

    content = json.dumps(result.trace_events()).encode()
    with replaced_file(Path(path)) as stream:
        stream.write(gzip.compress(content, mtime=0) if path.endswith(".gz") else content)
