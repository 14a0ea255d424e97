"""Files of fitted parameters, as `seqpoint calibrate` writes them: read, or named with what is wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from profilers.errors import InvalidInputError, NotFoundError, SeqPointError

__all__ = ["read_calibration_file"]

Content = TypeVar("Content")
#: Characters of a message that are shown: a file may hold anything.
_SHOWN = 200
#: Of a file: the largest that is written has some hundred thousand digests of 17.
_BYTES = 2**24
#: What content of any shape can raise: no JSON or no number, a missing key or place, another type, too deep, too large.
_STUMBLES = (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError, OverflowError, OSError)


def read_calibration_file(path: str | Path, absent: str, wrong: str, build: Callable[[Any], Content]) -> Content:
    """Read a JSON file and make of it what `build` does.

    Parameters
    ----------
    path : str or Path
    absent, wrong : str
        What is said, after the file's name, where there is none, and where it holds something else.
    build : callable
        From the content; whatever it stumbles over is what is wrong with the file.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file, or it holds something else.
    """
    file = Path(path)
    if not file.is_file():
        raise NotFoundError(f"{file}: {absent}")
    if file.stat().st_size > _BYTES:
        raise InvalidInputError(f"{file}: {wrong} (larger than {_BYTES} bytes)")
    try:
        return build(json.loads(file.read_text(encoding="utf-8")))
    except (*_STUMBLES, SeqPointError) as error:
        why = f"{type(error).__name__}: {error}"[:_SHOWN]
        raise InvalidInputError(f"{file}: {wrong} ({why})") from error
