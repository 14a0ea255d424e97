"""Which scenarios are fitted and which are scored: by group, so that the same works are never on both sides."""

from collections.abc import Mapping, Sequence
from hashlib import sha256

from profilers.errors import InvalidInputError
from replay.contention.recording import ContentionRecording

__all__ = ["fold_of", "kin_of"]


def kin_of(recordings: Sequence[ContentionRecording]) -> Mapping[str, str]:
    """Return for each group the first, by name, of those that it must not be parted from.

    Groups that run the same set of works belong together, whatever they are called, in all recordings.
    """
    root: dict[str, str] = {}

    def find(one: str) -> str:
        while root[one] != one:
            # Each step halves the way for the next, so that a long chain is not walked for every group of it.
            root[one] = one = root[root[one]]
        return one

    first: dict[frozenset[str], str] = {}
    # A pass over the scenarios, about 2 us each.
    for recording in recordings:
        for scenario in recording.scenarios:
            root.setdefault(scenario.group, scenario.group)
            works = frozenset(member.work for member in scenario.members)
            a, b = sorted((find(scenario.group), find(first.setdefault(works, scenario.group))))
            root[b] = a
    return {group: find(group) for group in root}


def fold_of(kin: str, folds: int) -> int:
    """Return which of so many parts a group and all its kin belong to: by a hash, so no time is looked at.

    Raises
    ------
    InvalidInputError
        There are fewer than two parts.

    Examples
    --------
    >>> sorted({fold_of(str(i), 2) for i in range(20)})
    [0, 1]
    """
    if folds < 2:
        raise InvalidInputError(f"{folds} parts; what is fitted and what is scored are two at least")
    return int(sha256(kin.encode()).hexdigest(), 16) % folds
