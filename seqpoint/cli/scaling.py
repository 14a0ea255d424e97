"""The command `scaling`: the time and communication of a job, or of a trace, at other sizes and on other hardware."""

from collections.abc import Sequence
from typing import Any

import click

from seqpoint.cli.options import load, output_options, parameters, plot_option, reading_options, refuse_options
from seqpoint.cli.output import print_result, save_plot, working
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


class _Values(click.ParamType[tuple[float, ...]]):
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
        function = click.option(f"--{name}", axis, type=_Values(), help=text)(function)
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
@parameters(scaling, "iteration", "device")
@plot_option("Write charts of shares and times here.")
@reading_options
@output_options
def command(trace: str | None, plot: str | None, json_: bool, **options: Any) -> None:
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
    with working("scaling"):
        result = scaling(job, axes, device=options["device"], iteration=options["iteration"], sizes=sizes)
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
