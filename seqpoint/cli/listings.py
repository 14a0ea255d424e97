"""Commands that list what is there: `seqpoint devices`, `readers`, `selectors` and `formats`."""

import inspect
from typing import TYPE_CHECKING, Any

import click

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError
from seqpoint import front_door
from seqpoint.cli.options import output_options, refuse_options
from seqpoint.cli.output import message, print_json, print_result, print_table

if TYPE_CHECKING:
    from replay.formats import Format


@click.command("devices")
@click.argument("name", required=False)
@output_options
def devices_command(name: str | None, json_: bool) -> None:
    """List the device catalogue, or every figure of the device NAME with its source.

    Devices of your own come from the TOML files that the environment variable SEQPOINT_DEVICES names; docs/devices.md
    shows one.

    \b
    seqpoint devices
    seqpoint devices MI300X
    """
    if name is None:
        _print_catalogue(json_)
    else:
        _print_device(name, json_)


def _print_device(name: str, json_: bool) -> None:
    device = find_device(name)
    rows = [(k, f"{f.value:g}", f.unit, f.certainty, f.source) for k, f in device.figures.items()]
    if json_:
        keys = ("figure", "value", "unit", "certainty", "source")
        print_json({"name": device.name, "figures": [dict(zip(keys, row, strict=True)) for row in rows]})
    else:
        print_table(device.name, ("figure~", "value", "unit~", "certainty~", "source~"), rows)


def _print_catalogue(json_: bool) -> None:
    columns = ("compute_units", "clock_mhz", "fp32_tflops", "fp16_tflops", "memory_gbps", "link_gbps")
    rows = [
        (d.name, d.vendor, *(f"{d.figures[c].value:g}" if c in d.figures else "-" for c in columns))
        for d in front_door.devices().values()
    ]
    if json_:
        print_json([dict(zip(("name", "vendor", *columns), row, strict=True)) for row in rows])
    else:
        print_table("Devices", ("name~", "vendor~", *columns), rows)


@click.command("readers")
@output_options
def readers_command(json_: bool) -> None:
    """List the trace formats that can be read, the package that brings each, and why one could not be loaded.

    A package adds a format by an entry point in the group `seqpoint.readers`.

    \b
    seqpoint readers
    seqpoint readers --json
    """
    rows = [
        {
            "name": plugin.name,
            # The first line of the docstring of the reader's class.
            "formats": plugin.value and (inspect.getdoc(type(plugin.value)) or "").split("\n", 1)[0].replace("`", ""),
            "distribution": plugin.package,
            "error": plugin.problem or None,
        }
        for plugin in front_door.readers()
    ]
    if json_:
        print_json(rows)
        return
    cells = [(r["name"], r["formats"] or f"cannot be loaded: {r['error']}", r["distribution"]) for r in rows]
    print_table("Readers", ("name~", "formats~", "package~"), cells)


@click.command("selectors")
@output_options
def selectors_command(json_: bool) -> None:
    """List the selectors of iterations, the package that brings each, and why one could not be loaded.

    A package adds a selector by an entry point in the group `seqpoint.selectors`.

    \b
    seqpoint selectors
    seqpoint select log.csv --selector median
    """
    from seqpoint.selection.selecting import METHODS, selector_plugins

    rows = [{"name": name, "summary": method.summary, **_origin()} for name, method in METHODS.items()]
    for plugin in selector_plugins():
        summary = None if plugin.value is None else plugin.value.summary
        rows.append({"name": plugin.name, "summary": summary, **_origin(plugin.package, plugin.problem)})
    if json_:
        print_json(rows)
        return
    cells = [(r["name"], r["summary"] or f"cannot be loaded: {r['error']}", r["package"]) for r in rows]
    print_table("Selectors", ("name~", "what it chooses~", "package~"), cells)


def _origin(package: str = "seqpoint", problem: str = "") -> dict[str, str | None]:
    return {"package": package, "error": problem or None}


@click.command("doctor")
@output_options
def doctor_command(json_: bool) -> None:
    """Check the installation: versions, extras, readers, profilers, caches; each gap has the command that fills it.

    Ends with 1 if something must be mended before all commands work. Nothing is changed.

    \b
    seqpoint doctor
    seqpoint doctor --all
    """
    from seqpoint.installation import doctor

    found = doctor()
    print_result(found, json_)
    if found.wrong:
        click.get_current_context().exit(1)


@click.command("formats")
@click.argument("file", required=False, metavar="[FILE.npy]", type=click.Path())
@click.option(
    "--format", "names", metavar="NAME,...", help="Formats, parted by commas.  [default: all, or all that fit the axis]"
)
@click.option("--axis", type=int, default=-1, show_default=True, help="Axis that the blocks lie along.")
@click.option(
    "--job", metavar="FILE.toml", type=click.Path(), help="Memory of the job of a file, with copies of its weights."
)
@click.option("--device", metavar="NAME", help="With --job: device that all ranks run on.  [default: MI300X]")
@output_options
def formats_command(
    file: str | None, names: str | None, axis: int, job: str | None, device: str | None, json_: bool
) -> None:
    """List the data formats, or show the size and the error of the array in FILE.npy in each of them.

    The array holds float16, float32 or float64, as `numpy.save` writes it. With --job: the memory of a job that trains
    with copies of its weights in --format, all of them kept or made just in time, and what that allows.

    \b
    seqpoint formats
    seqpoint formats weights.npy --format mx9,mxfp8_e4m3 --axis 0
    seqpoint formats --job job.toml --format mx9,mx6 --device MI300X
    """
    from replay.formats import FORMATS, find_format

    if job is not None:
        refuse_options(["file", "axis"], "with --job")
        _print_copies(job, names, device, json_)
        return
    refuse_options(["device"], "without --job")
    chosen = [find_format(name) for name in names.split(",")] if names is not None else list(FORMATS.values())
    if file is None:
        refuse_options(["axis"], "without FILE.npy")
        _print_formats(chosen, json_)
    else:
        _print_errors(file, chosen, axis, fitting_only=names is None, json_=json_)


def _print_copies(file: str, names: str | None, device: str | None, json_: bool) -> None:
    from replay.workloads import read_job
    from seqpoint.weight_copying import weight_copies

    if names is None:
        raise click.UsageError("--job needs the formats of the copies, such as --format mx9,mx6")
    copies = weight_copies(read_job(file), names.split(","), device=device or "MI300X")
    print_result(copies, json_)


def _print_formats(formats: "list[Format]", json_: bool) -> None:
    if json_:
        keys = (
            *("name", "kind", "element_bits", "exponent_bits", "mantissa_bits", "block", "scale", "scale_bits"),
            *("pair", "pair_bits", "tensor_bits", "largest", "bits_per_value", "source"),
        )
        values = [{key: getattr(each, key) for key in keys} for each in formats]
        print_json([{**row, **{k: float(row[k]) for k in ("largest", "bits_per_value")}} for row in values])
        return
    columns = ("name~", "kind~", "bits a value", "element~", "largest", "block", "scale~", "pair", "source~")
    rows = [
        (
            *(each.name, each.kind, f"{float(each.bits_per_value):g}"),
            f"1+{each.exponent_bits}+{each.mantissa_bits}",
            f"{float(each.largest):.4g}",
            *(each.block if each.is_directional else "-", each.scale, each.pair if each.pair_bits else "-"),
            each.source,
        )
        for each in formats
    ]
    print_table("Data formats", columns, rows)


def _print_errors(file: str, formats: "list[Format]", axis: int, *, fitting_only: bool, json_: bool) -> None:
    from dataclasses import asdict

    from replay.formats import error_statistics, load_array, quantize

    array = load_array(file)
    rows: list[dict[str, Any]] = []
    unfit: list[str] = []
    for each in formats:
        try:
            copy = quantize(array, each, axis)
        except InvalidInputError:
            # Of all formats, those whose blocks do not fit are left out; another fault is that of all formats.
            if not (
                fitting_only and each.is_directional and -array.ndim <= axis < array.ndim and array.dtype.kind == "f"
            ):
                raise
            unfit.append(each.name)
            continue
        size = {"bytes": copy.nbytes, "share_of_array": copy.nbytes / max(array.nbytes, 1)}
        rows.append({"format": each.name, **size, **asdict(error_statistics(array, copy))})
    if unfit:
        message(f"note: axis {axis} of {array.shape} is no whole number of blocks of {', '.join(unfit)}")
    if rows and (share := rows[0]["not_finite"]):
        message(
            f"note: {round(share * array.size):,} of {array.size:,} values are not finite (infinity or NaN); "
            "errors are those of the others, and a block with one of them becomes NaN"
        )
    if json_:
        print_json(rows)
        return
    _print_error_table(f"Data formats on {file}, {array.dtype} of shape {array.shape}", rows)


def _print_error_table(title: str, rows: list[dict[str, Any]]) -> None:
    """Print sizes and errors; a column of values that are not finite if the array has any."""
    errors = {"mean_absolute": "mean error", "maximum": "largest error"}
    shares = {"saturated": "saturated %", "flushed": "to zero %", "lost": "lost %"}
    if any(row["not_finite"] for row in rows):
        shares["not_finite"] = "not finite %"
    columns = ("format~", "bytes", "size %", *errors.values(), "SQNR dB", *shares.values())
    cells = [
        (
            *(row["format"], f"{row['bytes']:,}", f"{100 * row['share_of_array']:.1f}"),
            *(_known(f"{row[key]:.3g}") for key in errors),
            _known(f"{row['sqnr_db']:.1f}"),
            *(_known(f"{100 * row[key]:.3g}") for key in shares),
        )
        for row in rows
    ]
    print_table(title, columns, cells)


def _known(text: str) -> str:
    return "-" if text == "nan" else text
