"""`checked`: rows are what `TABLES` says, before they are written down: a wrong one fails its step, not the packing."""

import math
from collections.abc import Mapping
from typing import Any

from benchmarks.gpu.step import TABLES, Row, Tables

__all__ = ["checked"]

PYTHON_TYPES = {"string": str, "int64": int, "double": (int, float)}


def checked(tables: Tables) -> Tables:
    """Return tables as they are.

    Raises
    ------
    ValueError
        A table or column that is not in `TABLES`, or a value of another type; the message names it.

    Examples
    --------
    >>> checked({"steps": [{"model": "gru", "duration_ns": 1.5}]})
    Traceback (most recent call last):
    ValueError: table steps, row 0, column duration_ns: 1.5 is no int64
    """
    for name, rows in tables.items():
        if name not in TABLES:
            raise ValueError(f"no table is called {name!r}; there are {', '.join(TABLES)}")
        for number, row in enumerate(rows):
            _check(name, number, row, TABLES[name])
    return tables


def _check(table: str, number: int, row: Row, columns: Mapping[str, str]) -> None:
    for column, value in row.items():
        if column not in columns:
            raise ValueError(f"table {table}, row {number}: no column is called {column!r}")
        if not _fits(value, columns[column]):
            raise ValueError(f"table {table}, row {number}, column {column}: {value!r} is no {columns[column]}")


def _fits(value: Any, kind: str) -> bool:
    if value is None:
        return True
    if isinstance(value, bool) or not isinstance(value, PYTHON_TYPES[kind]):
        return False
    return kind == "string" or (math.isfinite(value) and abs(value) < 2**63)
