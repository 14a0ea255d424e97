"""The commands `seqpoint simulate`."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from seqpoint import front_door
from seqpoint.cli import LazyGroup
from seqpoint.cli.options import output_options, refuse_options
from seqpoint.cli.output import message, print_json, print_lines, print_result, print_tables, progress


@click.group(
    "simulate",
    cls=LazyGroup,
    modules={
        "memory": ("seqpoint.cli.simulate:memory", "Run the accesses of an operator through caches and DRAM."),
        "kernel": ("seqpoint.cli.simulate_kernel:kernel", "Execute and time kernels in PTX."),
    },
)
def command() -> None:
    """Simulate an operator of known shape, or a kernel in PTX, without a trace and without the device.

    \b
    seqpoint simulate memory gemm 4096 4096 4096 --device A100-SXM4-80GB
    seqpoint simulate kernel softmax.toml --device V100-SXM2-16GB
    """


@click.command("memory")
@click.argument("operator", required=False)
@click.argument("shape", nargs=-1, metavar="[SHAPE]...", type=int)
@click.option("--list", "list_", is_flag=True, help="List operators with their shapes, policies, devices and mappings.")
@click.option(
    "--device",
    default="A100-SXM4-80GB",
    show_default=True,
    metavar="NAME",
    help="Device of the catalogue; --list has those whose caches are known.",
)
@click.option(
    "--policy", "policies", multiple=True, metavar="NAME", help="Cache policy; may be repeated.  [default: all]"
)
@click.option("--policy-file", metavar="FILE.toml", type=click.Path(), help="File of further policies.")
@click.option(
    "--dtype", default="fp16", show_default=True, metavar="TYPE", help="fp64, fp32, tf32, fp16, bf16, fp8 or int8."
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Option of the operator, such as layout=nt of a product; may be repeated. --list has them.",
)
@click.option(
    "--cache",
    "caches",
    multiple=True,
    metavar="CACHE=FACTOR",
    help="L2=2 doubles a cache (L1, L2, LLC); L2.ways=8 sets a figure of it: ways, line_bytes, sector_bytes, slices, "
    "replacement, latency, line_cycles or misses. May be repeated.",
)
@click.option(
    "--mapping",
    default="",
    metavar="NAME",
    help="Mapping of addresses to channels, banks and rows: a name of --list, or an order of bits such as "
    "rorabgbachco.  [default: that of the device]",
)
@click.option(
    "--dram",
    default="",
    metavar="STANDARD[:GBPS]",
    help="DRAM standard, such as HBM3, and its bandwidth.  [default: those of the device]",
)
@click.option(
    "--accesses",
    default=2_000_000,
    show_default=True,
    type=click.IntRange(0),
    help="Accesses of a kernel beyond which waves of workgroups stand for others; 0 for no limit.",
)
@click.option(
    "--warm",
    multiple=True,
    metavar="OPERAND",
    help="Operand that the caches hold from an earlier launch, such as B of a product, or all; may be repeated.",
)
@click.option("--over-time", is_flag=True, help="Print the bandwidth, row hits and channels of the DRAM over time.")
@click.option(
    "--plot", metavar="FILE.html", type=click.Path(), help="Write charts: times, traffic, row hits, channels over time."
)
@output_options
def memory(
    operator: str | None, shape: tuple[int, ...], list_: bool, plot: str | None, json_: bool, **how: Any
) -> None:
    """Run the memory accesses of OPERATOR with SHAPE through the caches and the DRAM of a device.

    Time is the longest of arithmetic, caches (with stalls) and DRAM, and cycles in which compute units issue no access;
    without the launch. Nothing is measured.

    With --json, each of `rows` has policy, time_ns, speedup, bound, compute_ns, caches_ns, memory_ns, l1_hit_share,
    l2_hit_share, llc_hit_share, dram_read_bytes, dram_write_bytes, row_hit_share, bandwidth_gbps, bandwidth_share,
    l1_stall_cycles, l2_stall_cycles, llc_stall_cycles, stall_cycles_per_access, error_share, simulated_share,
    counters and over_time.

    \b
    seqpoint simulate memory --list
    seqpoint simulate memory gemm 4096 4096 4096 --device A100-SXM4-80GB --policy Device --policy Uncached
    seqpoint simulate memory softmax 8192 1024 --device MI300X --cache LLC=0.5 --plot softmax.html
    """
    if list_ or operator is None:
        _list(how["policy_file"], json_)
        return
    if json_:
        refuse_options(("over_time",), "with --json, which has the course over time")
    if plot:
        from seqpoint.plots.saving import page_to_write

        page_to_write(plot)
    result = front_door.simulate_memory(
        operator,
        shape,
        how["device"],
        policies=how["policies"],
        policy_file=how["policy_file"],
        dtype=how["dtype"],
        options={name: _number(value) for name, value in _pairs("--option", how["options"]).items()},
        caches=_pairs("--cache", how["caches"]),
        mapping=how["mapping"],
        dram=how["dram"],
        max_accesses=how["accesses"],
        warm=how["warm"],
        progress=progress("simulating"),
    )
    if plot:
        result.plots().save(plot)
        message(f"wrote {plot}")
    print_result(result, json_, lambda shown: _show(shown, how["over_time"]))


def _list(policy_file: str | None, json_: bool) -> None:
    from seqpoint.memory_simulation import memory_choices

    given = ("plot", "device", "policies", "dtype", "options", "caches", "mapping", "dram", "accesses", "warm")
    refuse_options((*given, "over_time"), "without OPERATOR and SHAPE, or with --list")
    choices = memory_choices(policy_file)
    if json_:
        print_json(choices.to_dict())
    else:
        print_tables(choices.text_tables())


def _show(result: Any, over_time: bool) -> None:
    print_lines(*result.summary())
    print_tables(result.text_tables())
    print_tables(result.time_tables() if over_time else [])


def _pairs(option: str, texts: Sequence[str]) -> Mapping[str, str]:
    """Return NAME=VALUE texts as a mapping."""
    pairs = [text.partition("=") for text in texts]
    for name, equals, value in pairs:
        if not (name and equals and value):
            raise click.UsageError(f"{option} {name}{equals}{value}: write NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _number(text: str) -> str | int | float:
    """Return a text as a number if it is a number."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
