"""Commands that list what is there: `seqpoint devices` and `seqpoint readers`."""

import inspect
from importlib.metadata import entry_points

import click

from profilers.devices.catalogue import find_device, load_devices
from profilers.readers.common.reader import Reader, readers
from seqpoint.cli.options import as_json
from seqpoint.cli.output import print_json, print_table


@click.command("devices")
@click.argument("name", required=False)
@as_json
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
        for d in load_devices().values()
    ]
    if json_:
        print_json([dict(zip(("name", "vendor", *columns), row, strict=True)) for row in rows])
    else:
        print_table("Devices", ("name~", "vendor~", *columns), rows)


@click.command("readers")
@as_json
def readers_command(json_: bool) -> None:
    """List the trace formats that can be read, the package that brings each, and why one could not be loaded.

    A package adds a format by an entry point in the group `seqpoint.readers`.

    \b
    seqpoint readers
    seqpoint readers --json
    """
    brought = {p.name: p.dist.name if p.dist else None for p in entry_points(group="seqpoint.readers")}
    rows = [
        {
            "name": name,
            "formats": _formats(reader) if isinstance(reader, Reader) else None,
            "distribution": brought.get(name),
            "error": _why_not(reader),
        }
        for name, reader in readers().items()
    ]
    if json_:
        print_json(rows)
        return
    cells = [(r["name"], r["formats"] or f"cannot be loaded: {r['error']}", r["distribution"] or "-") for r in rows]
    print_table("Readers", ("name~", "formats~", "from~"), cells)


def _why_not(reader: object) -> str | None:
    """Return why there is no reader; None where there is one."""
    if isinstance(reader, Reader):
        return None
    return str(reader) if isinstance(reader, ImportError) else "has not what a reader has: name, sniff, read"


def _formats(reader: Reader) -> str:
    """Return the first line of what the reader's class says of itself."""
    return (inspect.getdoc(type(reader)) or "").split("\n", 1)[0].replace("`", "")
