"""The command `seqpoint simulate memory`."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from seqpoint import front_door
from seqpoint.cli.options import options_of, output_options, plot_option, refuse_options
from seqpoint.cli.output import print_json, print_result, print_tables, progress, save_plot
from seqpoint.memory_simulation import MemoryOptions, memory_choices


@click.command("memory")
@click.argument("operator", required=False)
@click.argument("shape", nargs=-1, metavar="[SHAPE]...", type=int)
@click.option("--list", "list_", is_flag=True, help="List operators with their shapes, policies, devices and mappings.")
@options_of(front_door.simulate_memory, "device", "policies", "policy_file")
@options_of(MemoryOptions, "dtype", "of_operator", "caches", "mapping", "dram", "max_accesses", "warm")
@click.option("--over-time", is_flag=True, help="Print the bandwidth, row hits and channels of the DRAM over time.")
@plot_option("Write charts: times, traffic, row hits, channels over time.")
@output_options
def memory(
    operator: str | None, shape: tuple[int, ...], list_: bool, over_time: bool, plot: str | None, json_: bool,
    **how: Any,
) -> None:  # fmt: skip
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
    device, policies, policy_file = (how.pop(name) for name in ("device", "policies", "policy_file"))
    how["of_operator"] = {name: _number(value) for name, value in _pairs("--option", how["of_operator"]).items()}
    how["caches"] = _pairs("--cache", how["caches"])
    result = front_door.simulate_memory(
        operator,
        shape,
        device,
        policies=policies,
        policy_file=policy_file,
        options=MemoryOptions(**how),
        progress=progress("simulating"),
    )
    save_plot(result.plots, plot)
    print_result(result, json_, lambda: [*result.tables(), *(result.time_tables() if over_time else ())])


def _list(policy_file: str | None, json_: bool) -> None:
    given = ("plot", "device", "policies", "dtype", "of_operator", "caches", "mapping", "dram", "max_accesses", "warm")
    refuse_options((*given, "over_time"), "without OPERATOR and SHAPE, or with --list")
    choices = memory_choices(policy_file)
    if json_:
        print_json(choices.to_dict())
    else:
        print_tables(choices.tables())


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
