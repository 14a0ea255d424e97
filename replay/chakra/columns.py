"""Columns of numbers as attributes of nodes, whichever columns there are: a row says only what is not most frequent."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.chakra.encoding import array_attribute
from profilers.chakra.nodes import Node
from profilers.errors import BrokenFileError, InvalidInputError

__all__ = ["NODE_ATTRIBUTE", "OWN", "Columns", "Described", "RowWriter", "columns_of", "described", "edge_lists",
           "filled", "joined_lists"]  # fmt: skip

#: What the names of our own attributes begin with, and the field of a node that holds attributes.
OWN = "seqpoint_"
NODE_ATTRIBUTE = 10

#: Types of columns.
_TYPES = frozenset(np.dtype(code).name for code in "?bhilBHILefd")

Columns = Mapping[str, npt.NDArray[Any]]
#: Of each column: the name of its type, how many numbers a row has (None: one, and no list), the usual row.
Described = Mapping[str, tuple[str, int | None, Any]]


def columns_of(table: Any) -> Columns:
    """Return the columns of `Tasks` or `Edges`, those left at None not.

    Raises
    ------
    InvalidInputError
        A column is no array of numbers of one or two dimensions.
    """
    found = {one.name: getattr(table, one.name) for one in fields(table)}
    arrays = {name: np.asarray(values) for name, values in found.items() if values is not None}
    for name, values in arrays.items():
        if values.ndim not in (1, 2) or values.dtype.kind not in "biuf":
            raise InvalidInputError(f"column {name} of {values.ndim} dimensions of {values.dtype} cannot be written")
    return arrays


def described(columns: Columns) -> Described:
    """Return what a reader has to know of columns: their types and usual rows."""
    return {
        name: (
            values.dtype.newbyteorder("=").name,
            values.shape[1] if values.ndim == 2 else None,
            _usual(values).tolist(),
        )
        for name, values in columns.items()
    }


def _usual(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the most frequent row; of several the smallest."""
    if not len(values):
        return np.zeros(values.shape[1:], values.dtype)
    rows, counts = np.unique(values, axis=0 if values.ndim == 2 else None, return_counts=True)
    return np.asarray(rows[np.argmax(counts)])


class RowWriter:
    """Writes rows of columns as attributes.

    Parameters
    ----------
    columns : mapping of str to array
        Of equal length.
    prefix : str
        What the names of the attributes begin with.
    """

    def __init__(self, columns: Columns, prefix: str) -> None:
        self.described = described(columns)
        self._named = [
            (f"{prefix}{name}", values, _differs(values, self.described[name][2]).tolist())
            for name, values in columns.items()
        ]

    def row(self, row: int) -> bytes:
        """Return the attributes of one row: those that are not the usual ones."""
        return b"".join(
            array_attribute(NODE_ATTRIBUTE, name, np.asarray(values[row]))
            for name, values, differs in self._named
            if differs[row]
        )


def _differs(values: npt.NDArray[Any], usual: Any) -> npt.NDArray[np.bool_]:
    """Return which rows have any other bit than the usual one."""
    expected = np.broadcast_to(np.asarray(usual, values.dtype), values.shape)
    if values.dtype.kind == "f":
        same = (values == expected) & (np.signbit(values) == np.signbit(expected)) | np.isnan(values) & np.isnan(
            expected
        )
    else:
        same = values == expected
    return np.asarray(~same if same.ndim == 1 else ~same.all(axis=1))


def filled(described_: Described, rows: Mapping[int, Node], prefix: str) -> dict[str, npt.NDArray[Any]]:
    """Return columns from the nodes that stand for their rows, 0 to n - 1.

    Raises
    ------
    BrokenFileError
        A node has a value that is not one of its column.
    """
    columns = {}
    for name, (type_, width, usual) in described_.items():
        if type_ not in _TYPES:
            raise BrokenFileError(f"column {name} is of the type {type_!r}, which no column has")
        shape = (len(rows),) if width is None else (len(rows), width)
        try:
            values = np.empty(shape, type_)
            values[...] = usual
            for row, node in rows.items():
                if (value := node.attributes.get(f"{prefix}{name}")) is not None:
                    values[row] = _numbers(value)
        except (ValueError, TypeError, OverflowError) as error:
            raise BrokenFileError(f"{prefix}{name}: has a value that is not one of its column ({error})") from error
        columns[name] = values
    return columns


def _numbers(value: Any) -> Any:
    """Return numbers; the reader gives those that are not finite as text, since JSON has none."""
    if isinstance(value, list):
        return [_numbers(one) for one in value]
    return float(value) if isinstance(value, str) else value


def edge_lists(columns: Columns, edges: npt.NDArray[np.int64], prefix: str) -> bytes:
    """Return some edges as attributes, a list a column."""
    return b"".join(
        array_attribute(NODE_ATTRIBUTE, f"{prefix}{name}", values[edges]) for name, values in columns.items()
    )


def joined_lists(described_: Described, nodes: Sequence[Node], prefix: str) -> dict[str, npt.NDArray[Any]]:
    """Return the edges of all nodes, in their order.

    Raises
    ------
    BrokenFileError
        The lists of a node differ in length, or hold what is no number.
    """
    columns = {}
    for name, (type_, _, _) in described_.items():
        values = [_numbers(node.attributes[key]) for node in nodes if (key := f"{prefix}{name}") in node.attributes]
        try:
            columns[name] = np.array([one for part in values for one in part], type_)
        except (ValueError, TypeError, OverflowError) as error:
            raise BrokenFileError(f"{prefix}{name}: is no list of numbers ({error})") from error
    if len({len(values) for values in columns.values()}) > 1:
        raise BrokenFileError(f"the lists of edges ({prefix}...) differ in length")
    return columns
