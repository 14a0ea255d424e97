"""Notes of several iterations, each told once."""

import re
from collections.abc import Sequence

__all__ = ["joined_notes"]

_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")


def joined_notes(notes: Sequence[Sequence[str]], iterations: Sequence[int] = ()) -> tuple[str, ...]:
    """Return notes that differ only in whole numbers as one, with the range of these and the iterations it holds for.

    Parameters
    ----------
    notes : sequence of sequence of str
        Of each iteration.
    iterations : sequence of int
        Their numbers, as many; empty where they have none.

    Examples
    --------
    >>> joined_notes([["change_dtype: 12 kernels in fp32"], ["change_dtype: 9 kernels in fp32", "odd"]], [4, 5])
    ('change_dtype: 9 to 12 kernels in fp32 (each of 2 iterations)', 'odd (iteration 5)')
    >>> joined_notes([["12 kernels"]])
    ('12 kernels',)
    """
    found: dict[str, dict[int, str]] = {}
    for place, several in enumerate(notes):
        for note in several:
            found.setdefault(_NUMBER.sub("#", note), {}).setdefault(place, note)
    return tuple(_joined(same, len(notes), iterations) for same in found.values())


def _joined(same: dict[int, str], n: int, iterations: Sequence[int]) -> str:
    numbers = [[int(number) for number in _NUMBER.findall(note)] for note in same.values()]
    ranges = iter([(min(column), max(column)) for column in zip(*numbers, strict=True)])

    def shown(_: re.Match[str]) -> str:
        low, high = next(ranges)
        return str(low) if low == high else f"{low} to {high}"

    text = _NUMBER.sub(shown, next(iter(same.values())))
    if n == 1:
        return text
    if len(same) == n:
        return f"{text} (each of {n} iterations)"
    if not iterations:
        return f"{text} ({len(same)} of {n} iterations)"
    names = ", ".join(str(iterations[place]) for place in same)
    return f"{text} (iteration{'s' * (len(same) > 1)} {names})"
