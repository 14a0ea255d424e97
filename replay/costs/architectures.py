"""Traits of architectures, one table for all models of durations (`datasets/architectures.toml` has their meaning)."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

import msgspec

from profilers.devices.catalogue import Device
from profilers.files import dataset_path, read_toml, typed_tables

#: Row of architectures that have no row of their own.
_UNKNOWN = "unknown"


class Architecture(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Traits of an architecture; the defaults are those of an unknown one."""

    family: str = ""
    process_nm: int = 7
    dual_issue: bool = False
    wide: bool = False
    matrix: bool = True
    asynchronous: bool = False
    block_scales: bool = False
    die_units: int = 0
    mesh: bool = False
    reducing: bool = False
    link_share: float = 0.8
    pcie_gbps: float = 24.0


@cache
def load_architectures() -> Mapping[str, Architecture]:
    """Return the traits of architectures by name, those of a family from the oldest on."""
    file = dataset_path("architectures.toml")
    tables = typed_tables(read_toml(file, "architectures"), "architectures", Architecture, file)
    return MappingProxyType(tables)


def architecture_of(name: str) -> Architecture:
    """Return the traits of an architecture, or those that stand for an unknown one.

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
