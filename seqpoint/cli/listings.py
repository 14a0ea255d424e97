"""Commands that list what is there: `seqpoint devices`, `seqpoint readers` and `seqpoint selectors`."""

import inspect

import click

from profilers.devices.catalogue import find_device
from seqpoint import front_door
from seqpoint.cli.options import output_options
from seqpoint.cli.output import print_json, print_table


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
