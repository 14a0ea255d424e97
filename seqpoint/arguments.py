"""The check at the door: arguments of the public functions, against the types that their signatures name.

`checked` wraps a function once, when `seqpoint` loads it. A wrong argument is one line: what was given, what is wanted,
and an example. Types are compared by name, so that the check loads no module.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set, ValuesView
from dataclasses import fields, is_dataclass
from functools import cache, wraps
from numbers import Integral, Real
from os import PathLike
from reprlib import repr as short_repr
from types import MappingProxyType
from typing import Any, TypeVar

from profilers.errors import InvalidInputError

F = TypeVar("F", bound=Callable[..., Any])
#: Types of arguments that are shown with their value; of others the name is shown.
_SHOWN = (type(None), bool, int, float, str, bytes, list, tuple, dict, set)
#: Characters of a value that a message shows.
_GIVEN = 80
#: Tests of a value, by the name of a type in a signature.
_TESTS: Mapping[str, Callable[[Any], bool]] = MappingProxyType(
    {
        "Any": lambda value: True,
        "Union": lambda value: True,
        "None": lambda value: value is None,
        "str": lambda value: isinstance(value, str),
        "int": lambda value: isinstance(value, Integral) and not isinstance(value, bool),
        "float": lambda value: isinstance(value, Real) and not isinstance(value, bool),
        "bool": lambda value: isinstance(value, Integral) or type(value).__name__ == "bool",
        "PathLike": lambda value: isinstance(value, PathLike),
        "Mapping": lambda value: isinstance(value, Mapping),
        "Callable": callable,
    }
)
#: Words for a type of a signature.
_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "None": "None", "str": "a text", "int": "a whole number", "float": "a number", "bool": "True or False",
        "PathLike": "a path", "Mapping": "a mapping (a dict)", "Callable": "a function", "Trace": "a trace",
    }
)  # fmt: skip
_PATHS = "str | PathLike[str] | Sequence[str | PathLike[str]]"
_TRACE = 'sp.open("rank*.json.gz"), or the path of its files'
_COMPOSED = '["overlap:ideal", "scale_device:MI355X"]; to compose what-ifs, join them in one text: "overlap:ideal+t3"'
#: Examples by the name of the parameter.
_EXAMPLES: Mapping[str, str] = MappingProxyType(
    {
        "trace": _TRACE, "before": _TRACE, "after": _TRACE, "base": _TRACE,
        "paths": '"job.json.gz", or ["rank0.json.gz", "rank1.json.gz"]',
        "what_ifs": _COMPOSED, "what_if": '"overlap:ideal"; "overlap:ideal+t3" composes two',
        "device": '"H100" (sp.devices() has all)', "selection": "what sp.select returns",
        "shapes": "[[1, 4096, 4096, 4096]]",
        "output": '"report.html"', "suite": '"kernels"',
    }
)  # fmt: skip


def checked(function: F) -> F:
    """Return a function that checks its arguments, and makes lists of iterators and arrays where it wants a sequence.

    Parameters
    ----------
    function : callable
        A public function with types in its signature.

    Raises
    ------
    InvalidInputError
        When called: an argument is missing, unknown or of another type.

    Examples
    --------
    >>> def halve(number: int) -> float:
    ...     return number / 2
    >>> checked(halve)("two")
    Traceback (most recent call last):
    profilers.errors.InvalidInputError: sp.halve: number is 'two'; it must be a whole number
    """
    signature, name = inspect.signature(function), f"sp.{function.__name__}"

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            names = ", ".join(signature.parameters)
            raise InvalidInputError(f"{name}: {error}; its arguments are {names}") from None
        for parameter, value in bound.arguments.items():
            wanted = _type_text(signature.parameters[parameter].annotation)
            bound.arguments[parameter] = _listed(value, wanted)
            if not _fits(bound.arguments[parameter], wanted):
                raise InvalidInputError(_message(f"{name}: {parameter}", value, wanted, _EXAMPLES.get(parameter, "")))
            if is_dataclass(value) and parameter == "options":
                _check_fields(name, value)
        return function(*bound.args, **bound.kwargs)

    call.__module__ = "seqpoint"  # where the function is found by its name, as pickle needs
    return call  # type: ignore[return-value]


def _check_fields(name: str, options: Any) -> None:
    """Raise an error if a field of frozen options is of another type than it says."""
    for each in fields(options):
        value, wanted = getattr(options, each.name), _type_text(each.type)
        if not _fits(value, wanted):
            raise InvalidInputError(_message(f"{name}: options.{each.name}", value, wanted, ""))


def _type_text(annotation: Any) -> str:
    """Return the type of a parameter as a text without the names of modules."""
    text = annotation.__name__ if isinstance(annotation, type) and "[" not in str(annotation) else str(annotation)
    return re.sub(r"\bPaths\b", _PATHS, re.sub(r"\b(?:\w+\.)+(?=\w)", "", text))


@cache
def _alternatives(text: str) -> tuple[str, ...]:
    """Return the types of a union; each may have arguments in brackets.

    Examples
    --------
    >>> _alternatives("str | Sequence[str | int] | None")
    ('str', 'Sequence[str | int]', 'None')
    """
    parts, depth = [""], 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return tuple(part.strip() for part in parts)


def _items(alternative: str) -> str:
    """Return the type of the items of a sequence; "" for another type."""
    match = re.fullmatch(r"(?:Sequence|Iterable)\[(.*)\]", alternative)
    return match[1] if match else ""


def _listed(value: Any, wanted: str) -> Any:
    """Return a list of an iterator or an array if a sequence is wanted; other values as they are."""
    sequences = [each for each in _alternatives(wanted) if each.startswith("Sequence[")]
    if not sequences or any(each.startswith(("Iterable[", "ndarray")) for each in _alternatives(wanted)):
        return value
    if hasattr(value, "tolist"):
        items = value.tolist()
        return items if isinstance(items, list) else value
    return list(value) if isinstance(value, Iterator | Set | ValuesView) else value


def _fits(value: Any, wanted: str) -> bool:
    """Return whether a value is of one of the types of a union."""
    return any(_is_a(value, alternative) for alternative in _alternatives(wanted))


def _is_a(value: Any, alternative: str) -> bool:
    if items := _items(alternative):
        if isinstance(value, str):
            return _fits("", items)  # one text stands for a list of it
        if isinstance(value, Iterator):
            return alternative.startswith("Iterable")  # its items are checked as they come
        return _is_sequence(value) and all(_fits(item, items) for item in value)
    name = alternative.partition("[")[0]
    if name in _TESTS:
        return _TESTS[name](value)
    return any(base.__name__ == name for base in type(value).__mro__)


def _is_sequence(value: object) -> bool:
    """Return whether a value is a list of some kind: no text, mapping, number or table."""
    if hasattr(value, "tolist"):
        return isinstance(value.tolist(), list)
    return isinstance(value, Sequence | Set | ValuesView) and not isinstance(value, str | bytes)


def _message(where: str, value: object, wanted: str, example: str) -> str:
    """Return the message of a refused argument: what was given, what is wanted, and an example."""
    given = short_repr(value) if isinstance(value, _SHOWN) else f"a {type(value).__name__}"
    if len(given) > _GIVEN:
        given = f"a {type(value).__name__}"
    return f"{where} is {given}; it must be {_words(wanted)}{f', such as {example}' if example else ''}"


def _words(wanted: str) -> str:
    """Return the words for a union of types."""
    words: dict[str, None] = {}
    for alternative in _alternatives(wanted):
        name = alternative.partition("[")[0]
        items = _items(alternative)
        article = "an" if name[0] in "AEIOU" else "a"
        words[f"a list of {_plural(items)}" if items else _WORDS.get(name, f"{article} {name}")] = None
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def _plural(items: str) -> str:
    """Return the words for the items of a sequence."""
    names = {"str": "texts", "PathLike": "paths", "int": "whole numbers", "float": "numbers", "Sequence": "lists",
             "WhatIf": "what-ifs", "Trace": "traces"}  # fmt: skip
    return " or ".join(dict.fromkeys(
        names.get(each.partition("[")[0], each.partition("[")[0]) for each in _alternatives(items)
    ))  # fmt: skip
