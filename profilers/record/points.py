"""Which iterations to profile: a list of numbers, or what `seqpoint select --json` wrote."""

import json
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

from profilers.errors import InvalidInputError, NotFoundError
from profilers.record.values import whole

__all__ = ["read_points"]

#: A selection has a few points of 150 bytes each.
_LIMIT_BYTES = 1 << 26
#: The number of a step is read up to nine digits.
_LARGEST = 10**9 - 1


def read_points(points: Iterable[int] | str | PathLike[str]) -> dict[int, int | None]:
    """Return the chosen iterations in rising order, each once, with its length where that is known.

    Parameters
    ----------
    points : iterable of int, or path
        Numbers of iterations, from 0, in any order; or the file that `seqpoint select --json` wrote.

    Raises
    ------
    NotFoundError, InvalidInputError
        The file is missing or no selection, or a number is none of an iteration.

    Examples
    --------
    >>> read_points([7, 3, 7])
    {3: None, 7: None}
    """
    if isinstance(points, str | PathLike):
        found = _from_file(Path(points))
    elif isinstance(points, Iterable) and not isinstance(points, bytes):
        found = [(_number(point, "points"), None) for point in points]
    else:
        raise InvalidInputError(f"points are numbers of iterations or a file, not a {type(points).__name__}")
    if not found:
        raise InvalidInputError("no iteration is chosen; give at least one point")
    return dict(sorted(found, key=lambda pair: pair[0]))


def _number(value: Any, place: str) -> int:
    number = whole(value, f"{place}: iteration", 0)
    if number > _LARGEST:
        raise InvalidInputError(f"{place}: iteration is {number}; it must be at most {_LARGEST}")
    return number


def _from_file(path: Path) -> list[tuple[int, int | None]]:
    if not path.is_file():
        raise NotFoundError(f"{path}: no such selection; write one with `seqpoint select LOG --json > {path}`")
    rows = _points_of(path)
    found: dict[int, int | None] = {}
    for position, row in enumerate(rows):
        place = f"{path}: points[{position}]"
        if not isinstance(row, dict) or "iteration" not in row:
            raise InvalidInputError(f"{place}: has no iteration; give the output of `seqpoint select --json`")
        number, length = _number(row["iteration"], place), row.get("sequence_length")
        length = None if length is None else whole(length, f"{place}: sequence_length", 1)
        if found.setdefault(number, length) != length:
            raise InvalidInputError(f"{place}: gives iteration {number} a second length, {length}")
    return list(found.items())


def _points_of(path: Path) -> list[Any]:
    try:
        if path.stat().st_size > _LIMIT_BYTES:
            raise InvalidInputError(f"{path}: is larger than {_LIMIT_BYTES} bytes, which no selection is")
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"{path}: not the output of `seqpoint select --json` ({error})") from error
    rows = content.get("points") if isinstance(content, dict) else None
    if not isinstance(rows, list):
        raise InvalidInputError(f"{path}: has no list of points; give the output of `seqpoint select --json`")
    return rows
