"""What an export says of the machine, its clock and itself."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from profilers.arrays import MISSING
from profilers.nsys.processes import Processes
from profilers.nsys.tables import Tables, until_damage
from profilers.schema import OWN_RANK
from profilers.trace import DeviceProperties

__all__ = ["clock_base_ns", "devices", "version"]

_EXPORT = ("META_DATA_EXPORT", "EXPORT_META_DATA")


def version(tables: Tables) -> str:
    """Return the version of the schema and of the product that wrote it, as far as the export says."""
    found: dict[str, Any] = {}
    for table in _EXPORT:
        for row in _rows(tables, table, ("name", "value")):
            found.setdefault(str(row["name"]), row["value"])
    parts = [("schema", found.get("EXPORT_SCHEMA_VERSION")), ("nsys", found.get("EXPORT_PRODUCT_VERSION"))]
    return ", ".join(f"{what} {value}" for what, value in parts if value) or "schema unknown"


def clock_base_ns(tables: Tables) -> int:
    """Return when the session started, ns since the epoch; 0 where the export does not say."""
    for row in _rows(tables, "TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)):
        if isinstance(row["utcEpochNs"], int) and row["utcEpochNs"] > 0:
            return row["utcEpochNs"]
    return 0


def devices(tables: Tables, processes: Processes) -> tuple[DeviceProperties, ...]:
    """Return the devices: with several ranks those that each used, else all of them."""
    known = {
        row["id"]: row
        for row in _rows(tables, "TARGET_INFO_GPU", ("id", "name", "smCount", "totalMemory"))
        if isinstance(row["id"], int)
    }
    used = processes.devices if processes.ranks else [(OWN_RANK, device) for device in sorted(known)]
    return tuple(
        DeviceProperties(
            rank=rank,
            device=device,
            name=str(known[device]["name"] or ""),
            compute_units=_positive(known[device]["smCount"]),
            memory_bytes=_positive(known[device]["totalMemory"]),
        )
        for rank, device in used
        if device in known
    )


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _rows(tables: Tables, table: str, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a small table, nothing where there is none."""
    if table not in tables.tables:
        return
    for batch in until_damage(tables.read(table, columns)):
        lists = [_list(batch[name]) for name in columns]
        for values in zip(*lists, strict=True):
            yield dict(zip(columns, values, strict=True))


def _list(values: Any) -> list[Any]:
    if isinstance(values, np.ndarray):
        return [None if value == MISSING else value for value in values.tolist()]
    return list(values.to_pylist())
