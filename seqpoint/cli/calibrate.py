"""`seqpoint calibrate`."""

import math
from dataclasses import asdict
from pathlib import Path

import click
from msgspec.structs import asdict as asdict_of

from profilers.devices.catalogue import DTYPES, find_device
from profilers.files import file_to_write, is_folder
from replay.contention import calibrate_contention, read_contention, write_contention_fit
from replay.contention.reading import TABLE
from replay.contention.traces import calibrate_traces
from replay.costs.collectives import (
    FABRICS,
    calibrate_collectives,
    load_collectives,
    read_collectives,
    write_collective_calibration,
)
from replay.costs.kernels import calibrate, load_calibration, write_calibration
from replay.costs.shipped import load_parameters
from replay.gemms import fit_library, read_candidates, write_variant_fit
from replay.workloads import calibrate_training, read_steps, write_training_fit
from seqpoint.cli.options import explain_option, load, output_option
from seqpoint.cli.output import print_lines, print_table, print_tables, progress, working
from seqpoint.notebook import table_of
from seqpoint.validation.kernels import read_kernels

_paths = click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path())
_output = output_option("FILE.json", "Calibration to write.")


@click.group("calibrate")
def command() -> None:
    """Fit models to your own measurements.

    \b
    seqpoint calibrate kernels measured.parquet -o mine.json
    seqpoint calibrate collectives h100_all_reduce.csv -o mine.json
    seqpoint calibrate training steps.csv -o mine.json
    seqpoint calibrate contention recording/ -o mine.json
    seqpoint calibrate gemms candidates.parquet --device MI100 --dtype fp32 -o mine.json
    """


@command.command("kernels")
@explain_option
@_paths
@_output
@click.option("--fresh", is_flag=True, help="Without the shipped fits of other devices.")
@click.option("--library", metavar="NAME", help="Framework to fit, of tables that name several, such as trtllm.")
def kernels(paths: tuple[str, ...], output: str, fresh: bool, library: str | None) -> None:
    """Fit durations of operators, by kind and device, to the tables (or folders of tables) PATH.

    The columns are those of `seqpoint validate kernels`. Devices that are not in the tables keep the shipped fits;
    from all of them, parameters are carried over to devices that were never measured.

    \b
    seqpoint calibrate kernels linear.parquet softmax.csv -o mine.json
    """
    target = file_to_write(Path(output))
    with working(f"reading {len(paths)} tables"):
        measured = [operators for path in paths for operators in read_kernels(path, library=library)]
    with working(f"fitting {sum(map(len, measured)):,} operators"):
        calibration = calibrate(measured, None if fresh else load_calibration())
    write_calibration(target, calibration)
    new = {(operators.kind, operators.device.name, operators.dtype, operators.library) for operators in measured}
    print_table(
        "Fits",
        ("operator~", "device~", "type~", "library~", "measurements", "off by at most, 9 in 10"),
        [
            (*key, fit.rows, f"{100 * math.expm1(fit.spread):.0f} %")
            for key, fit in sorted(calibration.fits.items())
            if key in new
        ],
    )


@command.command("collectives")
@explain_option
@_paths
@_output
@click.option("--device", metavar="NAME", help="That was measured, where neither a column nor the file's name says it.")
@click.option(
    "--fabric", type=click.Choice(FABRICS), help="How the devices of a node are joined, where it is not said."
)
@click.option("--fresh", is_flag=True, help="Without the shipped fits of other groups.")
def collectives(paths: tuple[str, ...], output: str, device: str | None, fabric: str | None, fresh: bool) -> None:
    """Fit times of collectives, by device and group of workers, to the tables (or folders of tables) PATH.

    The columns are those of `seqpoint validate collectives`. Of more than 40 sizes, one quarter is not fitted, for that
    command to score. Groups that are not in the tables keep the shipped fits; what was never measured is carried over.

    \b
    seqpoint calibrate collectives a100_dgx_all_reduce.csv -o mine.json
    seqpoint calibrate collectives measured.csv --device H200 -o mine.json
    """
    target = file_to_write(Path(output))
    with working(f"reading {len(paths)} tables"):
        measured = [group for path in paths for group in read_collectives(path, device, fabric)]
    with working(f"fitting {sum(map(len, measured)):,} collectives"):
        calibration = calibrate_collectives(measured, None if fresh else load_collectives())
    write_collective_calibration(target, calibration)
    new = {
        (group.kind, group.device.name, group.topology.n_workers, group.topology.devices_per_node) for group in measured
    }
    columns = {
        "collective~": "{fit.kind}", "device~": "{fit.device}", "fabric~": "{fit.topology.fabric}",
        "workers": "{fit.topology.n_workers}", "a node": "{fit.topology.devices_per_node}",
        "measurements": "{fit.rows}", "lines": "{lines}",
    }  # fmt: skip
    rows = [
        {"fit": fit, "lines": len(fit.curve.betas)}
        for fit in calibration.fits
        if (fit.kind, fit.device, fit.topology.n_workers, fit.topology.devices_per_node) in new
    ]
    print_tables([table_of("Fits", columns, rows)])


@command.command("training")
@explain_option
@_paths
@_output
@click.option("--device", metavar="NAME", default="A100-SXM4-80GB", show_default=True, help="That was measured.")
@click.option("--node-devices", type=click.IntRange(1), default=8, show_default=True, help="Devices of a node.")
@click.option("--share", type=float, default=0.1, show_default=True, help="Of the steps, what is fitted.")
def training(paths: tuple[str, ...], output: str, device: str, node_devices: int, share: float) -> None:
    """Fit the costs of host and optimizer to measured training steps in the tables (or folders of tables) PATH.

    The columns are those of `seqpoint validate training`. Which steps are fitted is chosen by a hash of what they run;
    the others are for that command to score.

    \b
    seqpoint calibrate training megatron_a100_single_node.csv -o mine.json
    seqpoint calibrate training steps.csv --device H100-SXM5-80GB --share 1 -o mine.json
    """
    target = file_to_write(Path(output))
    measured = [step for path in paths for step in read_steps(path, node_devices)]
    with working(f"fitting a share of {share:g} of {len(measured):,} steps"):
        fit = calibrate_training(measured, find_device(device), parameters=load_parameters(), share=share)
    write_training_fit(target, fit)
    layers = "recomputed" if fit.recompute else "not recomputed"
    print_lines(
        f"fitted to {fit.source}; layers are {layers} there; off by at most {100 * math.expm1(fit.spread):.0f} %, "
        "9 in 10"
    )
    print_table(
        f"Costs on {fit.device}",
        ("cost~", "value"),
        [(name, f"{value:.4g}") for name, value in asdict(fit.costs).items()],
    )


@command.command("gemms")
@explain_option
@click.argument("table", type=click.Path())
@_output
@click.option("--device", metavar="NAME", help="That was measured, if the file's name does not say it.")
@click.option("--dtype", type=click.Choice(list(DTYPES)), help="Of the operands, if the table does not say it.")
@click.option("--most", type=click.IntRange(1, 1000), default=160, show_default=True, help="Kernels to keep at most.")
def gemms(table: str, output: str, device: str | None, dtype: str | None, most: int) -> None:
    """Fit times of kernel variants to TABLE, which has the time of every candidate kernel on a set of GEMMs.

    The columns are those of `seqpoint validate gemms`, which scores such a fit on GEMMs that it did not see. The
    kernels that are worth having are written with the fit.

    \b
    seqpoint calibrate gemms tensile_candidates_mi100_f32.parquet -o mine.json
    seqpoint calibrate gemms measured.csv --device H100-SXM5-80GB --dtype bf16 -o mine.json
    """
    target = file_to_write(Path(output))
    with working("reading candidates"):
        candidates = read_candidates(table, device, dtype)
    with working(f"fitting {len(candidates.time_ns):,} times"):
        fit = fit_library(candidates, most=most)
    write_variant_fit(target, fit)
    print_lines(
        f"fitted to {fit.source}, on {fit.device.name}; {len(fit.variants)} kernels are kept; rows without a time: "
        f"{candidates.failed}; repeated rows: {candidates.repeated}"
    )
    print_table(
        "Constants",
        ("constant~", "value"),
        [(name, f"{value:.4g}") for name, value in asdict_of(fit.model.constants).items()],
    )


@command.command("contention")
@explain_option
@_paths
@_output
def contention(paths: tuple[str, ...], output: str) -> None:
    """Fit how kernels and copies slow each other to traces or recordings of one device: files or folders PATH.

    In a trace, kernels that ran beside other work are compared with the same kernels alone.

    A recording is what `python -m benchmarks.gpu --output DIR` writes. Half of the scenarios are fitted, chosen by a
    hash of their works, so that the same works under another policy are on the same side; the others are for
    `seqpoint validate contention --calibration` to score. What the recordings do not determine keeps its shipped range.

    \b
    seqpoint calibrate contention job.trace -o mine.json
    seqpoint calibrate contention recording/ -o mine.json
    seqpoint project job.trace --contention mine.json
    """
    target, shipped = file_to_write(Path(output)), load_parameters()
    recorded = [path for path in map(Path, paths) if is_folder(path) and next(path.rglob(TABLE), None)]
    if recorded and len(recorded) < len(paths):
        raise click.UsageError("give traces or recordings, not both")
    if recorded:
        with working(f"reading {len(paths)} folders"):
            recordings = [recording for path in paths for recording in read_contention(path)]
        fit = calibrate_contention(recordings, parameters=shipped, progress=progress("fitting"))
    else:
        traces = [load(path) for path in paths]
        fit = calibrate_traces(traces, parameters=shipped, progress=progress("fitting"))
    write_contention_fit(target, fit)
    print_lines(
        f"fitted to {fit.source}, on {fit.device}; off by at most {100 * math.expm1(fit.spread):.0f} %, 9 in 10"
    )
    print_table(
        "Parameters (90 % ranges)",
        ("parameter~", "value", "range", "shipped"),
        [
            (name, f"{fitted.value:.3g}", f"{fitted.low:.3g} - {fitted.high:.3g}", f"{shipped[name]:.3g}")
            for name, fitted in fit.ranges.items()
        ],
    )
    if fit.undetermined:
        print_lines(f"not determined by these recordings, left as shipped: {', '.join(fit.undetermined)}")
