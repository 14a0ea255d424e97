"""Bounds of the factors that what-ifs take."""

from profilers.errors import InvalidInputError

__all__ = ["check_factor"]

#: Beyond a million times, or a millionth, a factor is a mistake.
_LEAST, _MOST = 1e-6, 1e6


def check_factor(what: str, factor: float, *, zero: bool = False, least: float = _LEAST) -> None:
    """Make sure that a factor is plausible.

    Parameters
    ----------
    what : str
        What the error calls it.
    factor : float
    zero : bool
        Whether it may be 0.
    least : float
        The smallest above zero.

    Raises
    ------
    InvalidInputError
        It is not.

    Examples
    --------
    >>> check_factor("scale_links", 2.0)
    """
    if not (least <= factor <= _MOST or (zero and factor == 0)):
        allowed = "zero, or one" if zero else "one above zero,"
        raise InvalidInputError(f"{what}: a factor of {factor:g}; give {allowed} from {least:g} to {_MOST:g}")
