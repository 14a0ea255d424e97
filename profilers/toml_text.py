"""TOML that somebody else wrote: parsed in a time that grows with its size, whatever it holds."""

import re
import tomllib
from pathlib import Path
from typing import Any

from profilers.errors import InvalidInputError, NotFoundError

__all__ = ["parse_toml", "read_toml"]

_LIMIT_BYTES = 2**20

#: Dots of a key; the TOML reader takes time that grows with their square.
_DOTS = 64
#: Where dots are of no key: texts, also those that do not end, and comments.
_NO_KEY = re.compile(
    r'"""(?:\\.?|[^\\])*?(?:"""|\Z)'
    r"|'''.*?(?:'''|\Z)"
    r'|"(?:\\.|[^"\\\n])*"?'
    r"|'[^'\n]*'?"
    r"|#[^\n]*",
    re.DOTALL,
)


def parse_toml(text: str) -> dict[str, Any]:
    """Return the content of a TOML document.

    Raises
    ------
    ValueError
        It is none, has a key of more than 64 dots, is nested too deep, or has a number of thousands of digits. The
        caller names the file.

    Examples
    --------
    >>> parse_toml("a.b = 1")
    {'a': {'b': 1}}
    """
    if any(part.count(".") > _DOTS for part in re.split(r"[=,{}\[\]\n]", _NO_KEY.sub("_", text))):
        raise ValueError(f"a key has more than {_DOTS} dots")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    except ValueError as error:  # Python reads no number that is longer
        raise ValueError("a number has thousands of digits") from error


def read_toml(file: Path, what: str) -> dict[str, Any]:
    """Return the content of a TOML file of at most 1 MiB.

    Parameters
    ----------
    file : Path
    what : str
        What it is a file of, for messages.

    Raises
    ------
    NotFoundError
        There is no such file.
    InvalidInputError
        It is larger, cannot be read, or is no TOML.
    """
    if not file.is_file():
        raise NotFoundError(f"{file}: no such file of {what}")
    try:
        with file.open("rb") as stream:
            text = stream.read(_LIMIT_BYTES + 1)
        if len(text) > _LIMIT_BYTES:
            raise InvalidInputError(f"{file}: larger than 1 MiB, which is no file of {what}")
        return parse_toml(text.decode("utf-8"))
    except OSError as error:
        raise InvalidInputError(f"{file}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise InvalidInputError(f"{file}: no TOML ({error})") from error
