"""The error for an unknown name, with the nearest ones offered."""

import difflib
from collections.abc import Iterable

from profilers.errors import NotFoundError

__all__ = ["unknown"]

#: Names compared at most, and characters of each: a trace can have any number of any length.
_COMPARED, _COMPARED_LENGTH, _SHOWN, _SHOWN_LENGTH = 2000, 120, 12, 60


def unknown(what: str, name: str, known: Iterable[str]) -> NotFoundError:
    """Return the error that says that `what` is not `name`, and which of `known` may be meant.

    Examples
    --------
    >>> print(unknown("no class is called", "gem", ["gemm", "softmax"]))
    no class is called 'gem'; did you mean gemm?
    """
    names = [one[:_COMPARED_LENGTH] for one, _ in zip(dict.fromkeys(known), range(_COMPARED), strict=False)]
    near = difflib.get_close_matches(name[:_COMPARED_LENGTH], names, n=3, cutoff=0.4)
    if near:
        return NotFoundError(f"{what} {name!r}; did you mean {', '.join(map(_short, near))}?")
    shown = ", ".join(map(_short, names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")
    return NotFoundError(f"{what} {name!r}; there {'is' if len(names) == 1 else 'are'} {shown or 'none'}")


def _short(name: str) -> str:
    return name if len(name) <= _SHOWN_LENGTH else f"{name[: _SHOWN_LENGTH - 3]}..."
