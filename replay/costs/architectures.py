"""Traits of architectures, one table for all models of durations (`datasets/architectures.toml` has their meaning)."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

import msgspec

from profilers.devices.catalogue import Device
from profilers.files import dataset_path, read_toml, typed_tables

#: Row of architectures without a row of their own; it has what other rows leave out.
_UNKNOWN = "unknown"


class Architecture(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Traits of an architecture."""

    family: str
    process_nm: int
    dual_issue: bool
    wide: bool
    matrix: bool
    asynchronous: bool
    block_scales: bool
    die_units: int
    mesh: bool
    reducing: bool
    link_share: float
    pcie_gbps: float


@cache
def load_architectures() -> Mapping[str, Architecture]:
    """Return the traits of architectures by name, each family from its oldest architecture on."""
    file = dataset_path("architectures.toml")
    rows = read_toml(file, "architectures")["architectures"]
    tables = {"architectures": {name: {**rows[_UNKNOWN], **row} for name, row in rows.items()}}
    return MappingProxyType(typed_tables(tables, "architectures", Architecture, file))


def architecture_of(name: str) -> Architecture:
    """Return the traits of an architecture, or the row of unknown architectures if it has none.

    Parameters
    ----------
    name : str
        Name of the architecture in the catalogue of devices.

    Examples
    --------
    >>> architecture_of("Hopper").asynchronous, architecture_of("Xe2") == architecture_of("unknown")
    (True, True)
    """
    rows = load_architectures()
    return rows.get(name, rows[_UNKNOWN])


def architecture_notes(device: Device) -> list[str]:
    """Return a note if the traits of a device's architecture are not known.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> architecture_notes(find_device("H100"))
    []
    """
    if device.architecture in load_architectures():
        return []
    return [
        f"{device.name}: nothing is known of the architecture {device.architecture or 'that it has'}; links, matrix "
        "units and power are taken to be usual ones"
    ]
