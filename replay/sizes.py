"""Sizes of a job: whole numbers of 1 or more, and bounded, since they come from outside and loops go by them."""

from operator import index

from profilers.errors import InvalidInputError

__all__ = ["LARGEST", "checked_size"]

#: Of any size: no model, batch or sequence comes near, and products of four are far below what a double holds.
LARGEST = 2**31
_SHOWN, _SHOWN_BITS = 40, 64


def checked_size(name: str, value: object, most: int = LARGEST) -> int:
    """Return a size as an int.

    Parameters
    ----------
    name : str
        For the message.
    value : object
        An integer of Python or NumPy.
    most : int

    Raises
    ------
    InvalidInputError
        It is no whole number, below 1 or above `most`.

    Examples
    --------
    >>> checked_size("layers", 24)
    24
    >>> checked_size("hidden", 10**400)
    Traceback (most recent call last):
    profilers.errors.InvalidInputError: hidden is about 2^1328; it must be at most 2,147,483,648
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InvalidInputError(f"{name} is {repr(value)[:_SHOWN]}; it must be a whole number of 1 or more")
    number = index(value)
    # A number of thousands of digits cannot be written out (and Python refuses to).
    shown = str(number) if number.bit_length() <= _SHOWN_BITS else f"about 2^{number.bit_length() - 1}"
    if number < 1:
        raise InvalidInputError(f"{name} is {shown}; it must be 1 or more")
    if number > most:
        raise InvalidInputError(f"{name} is {shown}; it must be at most {most:,}")
    return number
