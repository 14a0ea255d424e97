"""What may stand in a log: whole numbers, finite statistics, and names that no other column has."""

import math
import operator
import re
from collections.abc import Mapping
from numbers import Real
from typing import Any

from profilers.errors import InvalidInputError

__all__ = ["LIMIT", "checked_names", "finite", "whole"]

#: The largest whole number up to which a float64, as statistics are read, is exact; in ns, 104 days.
LIMIT = 1 << 53
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
#: Names that `read_log` gives a meaning; it reads NAME_ns as NAME.
_TAKEN = frozenset({"iteration", "rank", "start", "sequence_length", "batch", "duration"})


def whole(value: Any, name: str, least: int) -> int:
    """Return a whole number.

    Parameters
    ----------
    value : int, or what can stand for one (a NumPy integer)
    name : str
        For the message.
    least : int
        The smallest that is allowed.

    Raises
    ------
    InvalidInputError
        It is no whole number, too small, or above `LIMIT`.

    Examples
    --------
    >>> whole(37, "sequence_length", 1)
    37
    """
    if type(value) is not int:
        value = _index(value, name)
    if not least <= value <= LIMIT:
        raise InvalidInputError(f"{name} is {value}; it must be from {least} to {LIMIT}")
    return value  # type: ignore[no-any-return]


def _index(value: Any, name: str) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError as error:
        kind = type(value).__name__
        raise InvalidInputError(f"{name} is {_shown(value)} ({kind}); it must be a whole number") from error


def finite(value: Any, name: str) -> float:
    """Return the value of a statistic.

    Raises
    ------
    InvalidInputError
        It is no number, not finite, or a tensor, whose value would have to be waited for.

    Examples
    --------
    >>> finite(3, "padding")
    3.0
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidInputError(
            f"statistic {name} is {_shown(value)} ({type(value).__name__}); give a number (of a tensor: tensor.item())"
        )
    number = float(value)
    if not math.isfinite(number):
        raise InvalidInputError(f"statistic {name} is {number}; a log holds finite numbers only")
    return number


def checked_names(statistics: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of statistics, in their order.

    Raises
    ------
    InvalidInputError
        One is no plain identifier, or would be read as another column.

    Examples
    --------
    >>> checked_names({"loss_tokens": 512})
    ('loss_tokens',)
    """
    stems: set[str] = set()
    for name in statistics:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidInputError(
                f"{_shown(name)} cannot name a statistic; use letters, digits and _, at most 100, no digit first"
            )
        stem = name.removesuffix("_ns")
        if stem in _TAKEN or stem in stems:
            raise InvalidInputError(f"a statistic cannot be called {name!r}: another column of the log has that name")
        stems.add(stem)
    return tuple(statistics)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
