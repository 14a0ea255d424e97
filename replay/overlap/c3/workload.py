"""Scenarios: a matrix product and a collective that run side by side, read from TOML."""

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

__all__ = ["WEIGHTS", "Scenario", "load_scenarios", "weight_bytes"]

#: Parts of a model whose weights sharded training gathers at once.
WEIGHTS = ("projection", "attention", "matrix", "feedforward", "layer")
_TABLES: Mapping[str, Mapping[str, type]] = MappingProxyType(
    {
        "hardware": {"device": str, "workers": int, "fabric": str, "source": str},
        "models": {"hidden": int, "key_value": int, "feedforward": int, "matrices": int, "source": str},
        "products": {"model": str, "tokens": int, "source": str},
        "scenarios": {"product": str, "collective": str, "model": str, "weights": str, "ratio": float},
    }
)
_SHOWN, _ELEMENT_BYTES = 60, 2


@dataclass(frozen=True)
class Scenario:
    """A product and a transfer that need not wait for each other.

    Parameters
    ----------
    name : str
    product : Product
    transfer : Transfer
    """

    name: str
    product: Product
    transfer: Transfer


def weight_bytes(model: Mapping[str, int], weights: str) -> int:
    """Return the size of one of `WEIGHTS` in bf16.

    Examples
    --------
    >>> weight_bytes({"hidden": 4, "key_value": 2, "feedforward": 8, "matrices": 3}, "layer")
    288
    """
    hidden, wide = model["hidden"], model["feedforward"]
    attention, matrix = 2 * hidden * (hidden + model["key_value"]), hidden * wide
    elements = {
        "projection": hidden * hidden,
        "attention": attention,
        "matrix": matrix,
        "feedforward": model["matrices"] * matrix,
        "layer": attention + model["matrices"] * matrix,
    }
    return _ELEMENT_BYTES * elements[weights]


def load_scenarios(path: str | Path | None = None) -> Mapping[str, Scenario]:
    """Read scenarios from a TOML file in the layout of `datasets/workloads/c3.toml`, by default that one.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file; or it is no such file: the entry and the key are named.

    Examples
    --------
    >>> scenario = load_scenarios()["cb1_all_gather_half"]
    >>> scenario.product.n, round(scenario.transfer.size_bytes / 1e6)
    (57344, 1208)
    """
    return _shipped() if path is None else _read(Path(path))


@cache
def _shipped() -> Mapping[str, Scenario]:
    return _read(dataset_path("workloads/c3.toml"))


def _read(file: Path) -> Mapping[str, Scenario]:
    content = read_toml(file, "scenarios")
    hardware = _row(file, "hardware", content.get("hardware"), "hardware")
    tables = {table: _table(file, content, table) for table in ("models", "products", "scenarios")}
    try:
        device = find_device(hardware["device"])
        topology = Topology(hardware["workers"], fabric=hardware["fabric"])
    except (InvalidInputError, NotFoundError) as error:
        raise InvalidInputError(f"{file}: hardware: {error}") from error
    found = {}
    for name, row in tables["scenarios"].items():
        try:
            found[name] = _scenario(name, row, tables, (device, topology))
        except InvalidInputError as error:
            raise InvalidInputError(f"{file}: scenarios.{name}: {error}") from error
    return MappingProxyType(found)


def _table(file: Path, content: Mapping[str, Any], table: str) -> dict[str, dict[str, Any]]:
    rows = content.get(table)
    if not isinstance(rows, dict) or not rows:
        raise InvalidInputError(f"{file}: no table [{table}.NAME]; see datasets/workloads/c3.toml")
    return {name: _row(file, f"{table}.{name}", row, table) for name, row in rows.items()}


def _row(file: Path, where: str, row: object, table: str) -> dict[str, Any]:
    known = _TABLES[table]
    if not isinstance(row, dict):
        raise InvalidInputError(f"{file}: {where} is no table; see datasets/workloads/c3.toml")
    for key, value in row.items():
        if key not in known or not isinstance(value, known[key]) or isinstance(value, bool):
            text = f"{key} = {value!r}"[:_SHOWN]
            raise InvalidInputError(f"{file}: {where}: {text}; keys are {', '.join(known)}")
        if known[key] is int:
            checked_size(f"{file}: {where}: {key}", value, LARGEST)
    if missing := [key for key in known if key not in row]:
        raise InvalidInputError(f"{file}: {where} lacks {', '.join(missing)}")
    return dict(row)


def _scenario(name: str, row: Mapping[str, Any], tables: Mapping[str, Any], place: tuple[Device, Topology]) -> Scenario:
    device, topology = place
    product = _named(tables, "products", row["product"])
    shape, gathered = _named(tables, "models", product["model"]), _named(tables, "models", row["model"])
    if row["weights"] not in WEIGHTS:
        raise InvalidInputError(f"no weights are called {row['weights']!r}; there are {', '.join(WEIGHTS)}")
    # A gate's matrix and the one that it gates are multiplied at once.
    n = shape["feedforward"] * (2 if shape["matrices"] == 3 else 1)
    return Scenario(
        name,
        Product(product["tokens"], n, shape["hidden"], device),
        Transfer(row["collective"], float(weight_bytes(gathered, row["weights"])), topology, device),
    )


def _named(tables: Mapping[str, Any], table: str, name: str) -> dict[str, Any]:
    if name not in tables[table]:
        raise InvalidInputError(f"no {table}.{name}; there are {', '.join(tables[table])}")
    found: dict[str, Any] = tables[table][name]
    return found
