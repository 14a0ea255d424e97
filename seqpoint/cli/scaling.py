"""The commands `scaling` and `sweep`: a job, or a trace, at other sizes and on other hardware."""

from collections.abc import Sequence
from typing import Any

import click

from seqpoint.cli.options import (
    dask_executor,
    load,
    options_of,
    output_option,
    output_options,
    plot_option,
    price_option,
    reading_options,
    refuse_options,
)
from seqpoint.cli.output import message, print_result, progress, save_plot, working
from seqpoint.job_scaling import Scaling, scaling

#: Options of axes by name, the axis of each, and its line in the help.
_AXES = {
    "hidden": ("hidden", "Hidden sizes."),
    "layers": ("layers", "Numbers of layers."),
    "sequence-length": ("sequence_length", "Tokens of a sequence."),
    "micro-batch": ("micro_batch", "Sequences that pass a pipeline stage at a time."),
    "tp": ("tensor_parallel", "Tensor-parallel ranks."),
    "cp": ("context_parallel", "Context-parallel ranks."),
    "ep": ("expert_parallel", "Ranks that share the experts of a layer."),
    "pp": ("pipeline_parallel", "Pipeline stages."),
    "dp": ("data_parallel", "Data-parallel replicas."),
    "gpus": ("gpus", "GPUs in all; more are added as replicas."),
    "compute": ("compute", "Factors by which compute is faster, beside the same network."),
}


class NumberList(click.ParamType[tuple[float, ...]]):
    """Numbers with commas between them."""

    name = "N,N,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """Return the numbers."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(float(each) for each in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of numbers such as 1,2,4", param, ctx)


def _axes(function: Any) -> Any:
    for name, (axis, text) in reversed(_AXES.items()):
        function = click.option(f"--{name}", axis, type=NumberList(), help=text)(function)
    return function


@click.command("scaling")
@click.argument("trace", type=click.Path(), required=False)
@_axes
@click.option("--model", metavar="NAME", help="Without TRACE: model of the job.  [default: GPT, 24 layers of 2048]")
@click.option(
    "--job", "job_file", metavar="FILE.toml", type=click.Path(), help="Without TRACE: file with a table [job]."
)
@click.option(
    "--set", "sizes", metavar="KEY=VALUE", multiple=True,
    help="Without TRACE: a size of the job before it is scaled, such as heads=32, precision=bf16 or tensor=8.",
)  # fmt: skip
@options_of(scaling, "iteration", "device")
@price_option
@plot_option("Write charts of shares and times here.")
@reading_options
@output_options
def scaling_command(trace: str | None, plot: str | None, json_: bool, **options: Any) -> None:
    """Show how step time and communication scale with the size of the job, its GPUs and its hardware.

    Each option of a size takes one value or several with commas; all combinations are replayed. With TRACE, each is
    the what-if of its name on an iteration. Without, the job is predicted on --device.

    \b
    seqpoint scaling --hidden 2048,4096,8192 --set heads=16 --set tensor=8 --compute 1,2,4
    seqpoint scaling --job job.toml --gpus 8,64,512 --device H100-SXM5-80GB --plot scaling.html
    seqpoint scaling job.trace --gpus 8,64,512 --compute 1,2,4 --json
    """
    axes = {axis: options[axis] for axis, _ in _AXES.values() if options[axis]}
    if trace is None:
        refuse_options(("iteration", "marker", "length"), "without TRACE")
        job: Any = _job(options["model"], options["job_file"], options["sizes"])
        sizes = None
    else:
        refuse_options(("model", "sizes"), "beside TRACE, whose job is scaled")
        job, sizes = load(trace), options["job_file"]
    prices = options["prices"]
    if len(prices) > 1:
        raise click.UsageError(f"--price of {len(prices)} devices: the job is on one")
    with working("scaling"):
        result = scaling(
            job, axes, device=options["device"], iteration=options["iteration"], sizes=sizes,
            price=next(iter(prices.values()), None),
        )  # fmt: skip
    if prices and result.device not in prices:
        raise click.UsageError(f"--price {next(iter(prices))}: the job is on {result.device or 'an unknown device'}")
    save_plot(lambda: _charts(result), plot)
    print_result(result, json_)


def _job(model: str | None, path: str | None, texts: Sequence[str]) -> Any:
    """Return the job of the options."""
    from replay.workloads import job_sizes, read_job, training_job

    sizes: dict[str, Any] = {} if path is None else job_sizes(read_job(path))
    if model:
        sizes["model"] = model
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--set {text}: write KEY=VALUE, such as heads=32")
        sizes[key] = int(value) if value.isdecimal() else {"true": True, "false": False}.get(value, value)
    return training_job(sizes)


def _charts(result: Scaling) -> Any:
    from seqpoint.plots import stacked

    times = result.plot_times()
    return stacked([result.plot(), times]) if result.varied else times


@click.command("sweep")
@click.argument("plan", type=click.Path())
@output_option("NAME.parquet", "Parquet file for a row of each scenario.", required=False)
@click.option("--cluster", "address", metavar="ADDRESS", help="Dask scheduler whose workers time the scenarios.")
@click.option("--jobs", "-j", type=click.IntRange(1, 1024), help="Processes.  [default: one for each core]")
@click.option("--html", metavar="FILE.html", type=click.Path(), help="Write the chart of the Pareto front.")
@price_option
@output_options
def sweep_command(plan: str, output: str | None, json_: bool, **options: Any) -> None:
    """Time the scenarios of PLAN: a grid or a search over sizes of a job, devices and what-ifs.

    PLAN is a TOML file with a table [job], or the path of a trace; a table [grid] of lists; lists of devices and
    what_ifs; and [search] for a grid that is too large to time all of it. docs/sweeps.md explains them. With --output,
    a sweep that was stopped goes on where it was.

    With --json: scenarios, tried, failed, errors, best, cheapest (with --price), least_energy, cost_front, devices
    (usable_bytes and best of each), pareto (by what_if and device), nearest (what almost fits, with usable_bytes and
    memory_share), and rows, each with the values of the grid, device, what_if, gpus, step_s, low_s, high_s,
    tokens_per_s, tokens_per_gpu_s, memory_bytes, fit, fits, basis and error.

    \b
    seqpoint sweep plan.toml -o result.parquet
    seqpoint sweep plan.toml --price H100-SXM5-80GB=2.5 --price A100-SXM4-80GB=1.3
    seqpoint sweep plan.toml -o result.parquet --cluster tcp://scheduler:8786
    """
    from seqpoint.sweeps import sweep

    if options["address"]:
        refuse_options(("jobs",), "beside --cluster, whose workers time the scenarios")
    prices, jobs = options["prices"], options["jobs"] or 0
    with dask_executor(options["address"]) as executor:
        result = sweep(plan, output, executor=executor, jobs=jobs, progress=progress("timing"), prices=prices)
    if result.resumed:
        message(f"{result.resumed} chunks of scenarios had been timed before")
    if result.finished:
        message(f"{output} has the result of this plan already, and was read; delete it to time the scenarios again")
    written = None if result.finished else output
    for path in filter(None, (written, options["html"] and result.plot().save(options["html"]))):
        message(f"wrote {path}")
    print_result(result, json_)
