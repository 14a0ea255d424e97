"""`remembered`: numbers of launches, chosen once a folder, so that every take and every resumed call does the same."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["remembered"]

NAME = "launches.jsonl"


def remembered(folder: Path, key: str, choose: Callable[[], list[int]]) -> list[int]:
    """Return the counts under a key; where there are none yet, what `choose` returns, which is kept.

    A line that cannot be read (the process ended while it was written) is passed over, and its counts chosen again.
    """
    found = next((counts for name, counts in _entries(folder / NAME) if name == key), None)
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
        if isinstance(key, str) and isinstance(counts, list) and all(type(n) is int and n > 0 for n in counts):
            yield key, counts
