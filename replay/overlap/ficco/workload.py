"""Scenarios: a matrix product whose left operand is gathered from, or exchanged with, all devices; read from TOML."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from profilers.datasets import dataset_path
from profilers.devices import Device, find_device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.toml_text import read_toml
from replay.collectives import Topology
from replay.overlap.products import Product
from replay.overlap.transfers import Transfer
from replay.sizes import LARGEST, checked_size

__all__ = ["COLLECTIVES", "Scenario", "load_scenarios"]

#: What a product can wait for.
COLLECTIVES = ("all_gather", "all_to_all")
_HARDWARE: Mapping[str, type] = MappingProxyType(
    {"device": str, "workers": int, "fabric": str, "dtype": str, "collective": str, "source": str}
)
_SIZES: Mapping[str, type] = MappingProxyType({"m": int, "n": int, "k": int, "source": str})
_FABRICS = ("mesh", "switch", "ring")
_SHOWN = 60


@dataclass(frozen=True)
class Scenario:
    """A product of m x k by k x n over P devices, each with m / P rows of the left operand, n / P columns of the right.

    Each device gathers the left operand, or receives as many rows of its own in an all-to-all, and multiplies it with
    its columns.

    Parameters
    ----------
    name : str
    m, n, k : int
        Of the whole product; m a multiple of P squared, n and k of P.
    device : Device
    topology : Topology
        A mesh, a switch or a ring of one node.
    dtype : str
    collective : str
        One of `COLLECTIVES`; on a ring ``"all_gather"``.

    Raises
    ------
    InvalidInputError
        A size is no multiple of what it has to be, or there is no such collective or fabric here.
    """

    name: str
    m: int
    n: int
    k: int
    device: Device
    topology: Topology
    dtype: str = "bf16"
    collective: str = "all_gather"

    def __post_init__(self) -> None:
        peers = self.topology.n_workers
        if peers < 2 or self.topology.nodes > 1 or self.topology.fabric not in _FABRICS:
            raise InvalidInputError(f"a scenario is of two or more devices of one node: {', '.join(_FABRICS)}")
        if self.collective not in COLLECTIVES or (self.topology.fabric, self.collective) == ("ring", "all_to_all"):
            raise InvalidInputError(
                f"{self.collective!r} on a {self.topology.fabric}; give one of {', '.join(COLLECTIVES)}, on a ring an "
                "all_gather"
            )
        for size, value, of in (("m", self.m, peers**2), ("n", self.n, peers), ("k", self.k, peers)):
            if checked_size(size, value, LARGEST) % of:
                raise InvalidInputError(f"{size} = {value}: pieces for {peers} devices need a multiple of {of}")

    @property
    def peers(self) -> int:
        """Other devices."""
        return self.topology.n_workers - 1

    @property
    def product(self) -> Product:
        """What one device computes."""
        return Product(self.m, self.n // self.topology.n_workers, self.k, self.device, self.dtype)

    @property
    def transfer(self) -> Transfer:
        """What the product waits for, as one collective."""
        return Transfer(self.collective, self.product.operand_bytes[0], self.topology, self.device)


def load_scenarios(path: str | Path | None = None) -> Mapping[str, Scenario]:
    """Read scenarios from a TOML file in the layout of `datasets/workloads/ficco.toml`, by default that one.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file; or it is no such file: the entry and the key are named.

    Examples
    --------
    >>> scenario = load_scenarios()["g1"]
    >>> scenario.product.n, round(scenario.transfer.size_bytes / 1e9, 2)
    (2048, 4.29)
    """
    return _shipped() if path is None else _read(Path(path))


@cache
def _shipped() -> Mapping[str, Scenario]:
    return _read(dataset_path("workloads/ficco.toml"))


def _read(file: Path) -> Mapping[str, Scenario]:
    content = read_toml(file, "scenarios")
    hardware = _row(f"{file}: hardware", content.get("hardware"), _HARDWARE)
    rows = content.get("scenarios")
    if not isinstance(rows, dict) or not rows:
        raise InvalidInputError(f"{file}: no table [scenarios.NAME]; see datasets/workloads/ficco.toml")
    found = {}
    for name, row in rows.items():
        where = f"{file}: scenarios.{name}"
        sizes = _row(where, row, _SIZES)
        try:
            found[name] = _scenario(name, sizes, hardware)
        except (InvalidInputError, NotFoundError) as error:
            raise InvalidInputError(f"{where}: {error}") from error
    return MappingProxyType(found)


def _row(where: str, row: object, known: Mapping[str, type]) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise InvalidInputError(f"{where} is no table; see datasets/workloads/ficco.toml")
    for key, value in row.items():
        if key not in known or not isinstance(value, known[key]) or isinstance(value, bool):
            text = f"{key} = {value!r}"[:_SHOWN]
            raise InvalidInputError(f"{where}: {text}; keys are {', '.join(known)}")
    if missing := [key for key in known if key not in row]:
        raise InvalidInputError(f"{where} lacks {', '.join(missing)}")
    return dict(row)


def _scenario(name: str, sizes: Mapping[str, Any], hardware: Mapping[str, Any]) -> Scenario:
    return Scenario(
        name,
        sizes["m"],
        sizes["n"],
        sizes["k"],
        find_device(hardware["device"]),
        Topology(hardware["workers"], fabric=hardware["fabric"]),
        hardware["dtype"],
        hardware["collective"],
    )
