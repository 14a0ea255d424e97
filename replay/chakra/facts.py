"""Frozen dataclasses as JSON and back, by the types that they declare: a new field is carried without change here."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from profilers.errors import InvalidInputError

__all__ = ["from_json", "to_json"]


def to_json(value: Any) -> str:
    """Return a value as JSON; numbers keep every bit.

    Raises
    ------
    InvalidInputError
        It holds what JSON cannot, such as a function or an array.

    Examples
    --------
    >>> from replay.graph import Lane
    >>> to_json(Lane(0, None, 7))
    '{"rank":0,"device":null,"number":7}'
    """
    return json.dumps(_plain(value), separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return _plain(value.value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(content) for key, content in value.items()}
    if isinstance(value, Sequence):
        return [_plain(one) for one in value]
    raise InvalidInputError(f"a {type(value).__name__} cannot be written as JSON")


def from_json(declared: Any, text: str) -> Any:
    """Return what `to_json` wrote, as a value of the declared type; fields that are absent have their default.

    Raises
    ------
    ValueError, TypeError, KeyError
        The text is no such value.

    Examples
    --------
    >>> from replay.graph import Lane
    >>> from_json(tuple[Lane, ...], '[{"rank":0,"device":null,"number":7}]')
    (Lane(rank=0, device=None, number=7),)
    """
    try:
        return _typed(declared, json.loads(text))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _typed(declared: Any, value: Any) -> Any:
    origin, arguments = get_origin(declared), get_args(declared)
    if origin in (Union, UnionType):
        chosen = [one for one in arguments if one is not type(None)]
        return None if value is None else _typed(chosen[0], value)
    if is_dataclass(declared) and isinstance(declared, type):
        types = get_type_hints(declared)
        return declared(**{name: _typed(types[name], content) for name, content in dict(value).items()})
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_typed(arguments[0], one) for one in _listed(value))
        return tuple(_typed(one, content) for one, content in zip(arguments, _listed(value), strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {_typed(arguments[0], key): _typed(arguments[1], content) for key, content in dict(value).items()}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return tuple(_typed(arguments[0], one) for one in _listed(value))
    return _leaf(declared, value)


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"a {type(value).__name__} is no list")
    return value


def _leaf(declared: Any, value: Any) -> Any:
    if isinstance(declared, type) and issubclass(declared, Enum):
        return declared(value)
    if declared is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(declared, type) and not isinstance(value, declared):
        raise TypeError(f"a {type(value).__name__} is no {declared.__name__}")
    return value
