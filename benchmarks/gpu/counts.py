"""`remembered`: numbers of launches, chosen once a folder, so that every take and every resumed call does the same."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["MOST_LAUNCHES", "remembered"]

NAME = "launches.jsonl"
#: A stream takes so many launches before the host has to wait.
MOST_LAUNCHES = 256


def remembered(folder: Path, key: str, number: int, choose: Callable[[], list[int]]) -> list[int]:
    """Return the counts under a key; where there are not so many yet, what `choose` returns, which is kept.

    A line that cannot be read (the process ended while it was written), or holds what no plan chooses, is passed over,
    and its counts chosen again.
    """
    entries = _entries(folder / NAME)
    found = next((counts for name, counts in entries if name == key and len(counts) == number), None)
    if found is not None:
        return found
    counts = choose()
    with (folder / NAME).open("a", encoding="utf-8") as file:
        # A line before that has no end must not take this one with it.
        file.write("\n" + json.dumps([key, counts]) + "\n")
    return counts


def _entries(path: Path) -> Iterator[tuple[str, list[int]]]:
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            key, counts = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            continue
        if not isinstance(key, str) or not isinstance(counts, list):
            continue
        if all(type(n) is int and 0 < n <= MOST_LAUNCHES for n in counts):
            yield key, counts
