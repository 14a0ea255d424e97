"""`Call`: a recorded call of an operator, with its shapes, types and arguments."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from profilers.trace.serving import ServingStep
from replay.graph.operators import DTYPE_BYTES

Shape = tuple[int, ...]
#: Larger numbers are from a damaged file.
_DIGITS = 19


@dataclass(frozen=True)
class Call:
    """A call of an operator, as a profiler recorded it.

    Parameters
    ----------
    name : str
        Name of the operator, such as ``aten::mm``.
    shapes : sequence
        Dimensions of each argument: nested for a list of tensors, empty for an argument that is no tensor.
    dtypes : sequence of str
        Types of the arguments, as the profiler writes them.
    values : sequence
        Arguments that are no tensors, as text; empty for an argument that was not recorded.
    strides : sequence
        Strides of each argument in elements, nested as `shapes`; empty if they were not recorded.
    step : ServingStep, optional
        Requests of the step of serving that called it.
    ranks : int
        Ranks of the job, which may share a layer.
    """

    name: str
    shapes: Sequence[Any]
    dtypes: Sequence[Any] = ()
    values: Sequence[Any] = ()
    strides: Sequence[Any] = ()
    step: ServingStep | None = None
    ranks: int = 1

    @classmethod
    def of_row(cls, name: str | None, shapes: str | None, *others: str | None) -> "Call":
        """Return the call of a row of a trace's ops, from its JSON; anything but an array counts as not recorded.

        The other columns are types, values and strides.
        """
        columns = [_json_array(text) for text in (shapes, *others, None, None, None)]
        return cls(name or "", columns[0], columns[1], columns[2], columns[3])

    def shape(self, argument: int) -> Shape | None:
        """Return the dimensions of a tensor argument; None for an argument without dimensions."""
        return dimensions(self.shapes[argument]) if argument < len(self.shapes) else None

    def sizes(self, *arguments: int) -> list[Shape]:
        """Return the dimensions of tensor arguments; raise `UnknownShapeError` if one has none, or no element."""
        shapes = [shape for shape in map(self.shape, arguments) if shape is not None and min(shape) > 0]
        require(len(shapes) == len(arguments))
        return shapes

    def tensors(self) -> list[tuple[Shape, int]]:
        """Return the dimensions and element bytes of every tensor argument, those in lists included."""
        tensors: list[tuple[Shape, int]] = []
        for argument, shape in enumerate(self.shapes):
            shapes = shape if is_list_of_shapes(shape) else [shape]
            known = (dimensions(item) for item in shapes)
            tensors += [(sizes, self.element_bytes(argument)) for sizes in known if sizes is not None]
        return tensors

    def stored(self, argument: int) -> int:
        """Return the elements in memory of a tensor argument: a dimension of stride 0 repeats one; 0 for no tensor."""
        shape = self.shape(argument) or (0,)
        strides = dimensions(self.strides[argument]) if argument < len(self.strides) else None
        if strides is None or len(strides) != len(shape):
            return prod(shape)
        return prod(size for size, stride in zip(shape, strides, strict=True) if stride)

    def element_bytes(self, argument: int = 0) -> int:
        """Return the bytes of an element of an argument; 4 if its type is unknown."""
        name = self.dtypes[argument] if argument < len(self.dtypes) else None
        return DTYPE_BYTES.get(name, 4) if isinstance(name, str) else 4

    def integers(self, argument: int) -> list[int] | None:
        """Return an argument that is a list of whole numbers; None if it was not recorded."""
        value = self._value(argument)
        items = _json_array(value) if isinstance(value, str) else value
        if isinstance(items, list) and items and all(isinstance(item, int) for item in items):
            return items
        return None

    def flag(self, argument: int) -> bool:
        """Return a boolean argument; False if it was not recorded."""
        return str(self._value(argument)).lower() == "true"

    def text(self, argument: int) -> str:
        """Return an argument as text; empty if it was not recorded."""
        value = self._value(argument)
        return "" if value is None else str(value)

    def number(self, argument: int | None) -> int:
        """Return an argument that is a whole number; 0 if it was not recorded, or is none."""
        text = "" if argument is None else self.text(argument)
        return int(text) if text.isdecimal() and len(text) < _DIGITS else 0

    def _value(self, argument: int) -> Any:
        return self.values[argument] if argument < len(self.values) else None


class UnknownShapeError(Exception):
    """The shapes of a call do not tell its operator."""


def require(condition: bool) -> None:
    """Check a condition on the shapes of a call."""
    if not condition:
        raise UnknownShapeError


def _json_array(text: Any) -> list[Any]:
    """Return a JSON array; an empty list for anything else."""
    if not isinstance(text, str):
        return []
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return content if isinstance(content, list) else []


def dimensions(shape: Any) -> Shape | None:
    """Return the dimensions of a tensor; None for anything else."""
    if not isinstance(shape, list | tuple) or not shape or not all(type(size) is int for size in shape):
        return None
    return tuple(shape)


def is_list_of_shapes(shape: Any) -> bool:
    """Return whether an argument is a list of tensors."""
    return isinstance(shape, list | tuple) and bool(shape) and all(isinstance(item, list | tuple) for item in shape)
