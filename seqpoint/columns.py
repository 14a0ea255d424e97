"""A sentence on each column of each table that the project prints: what `--explain` and a report show.

The sentences are in `datasets/columns.toml`. A test fails on a column without a sentence; to add a column, add its
sentence there.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache

import msgspec

from profilers.files import shipped_table


class Sentences(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sentences of columns: `shared` by all tables, and `tables` by the title of a table."""

    shared: dict[str, str]
    tables: dict[str, dict[str, str]]


@cache
def all_sentences() -> Sentences:
    """Return the sentences on all columns."""
    return shipped_table("columns.toml", "sentences on columns", Sentences)


def sentences(title: str, names: Sequence[str]) -> dict[str, str]:
    """Return the sentence on each column of a table; columns without one are left out.

    Parameters
    ----------
    title : str
        Title of the table.
    names : sequence of str
        Headings of its columns.

    Examples
    --------
    >>> sentences("Events", ["kind", "no such column"])
    {'kind': 'Kind of event.'}
    """
    of_table = [columns for pattern, columns in all_sentences().tables.items() if fnmatchcase(title, pattern)]
    explained = {name: _sentence(" ".join(name.split()), of_table) for name in names}
    return {name: sentence for name, sentence in explained.items() if sentence}


def _sentence(name: str, of_table: Sequence[Mapping[str, str]]) -> str:
    """Return the sentence on a column: that of its table, the shared one, or that of a pattern of its table."""
    for columns in (*of_table, all_sentences().shared):
        if name in columns:
            return columns[name]
    patterns = [(pattern, text) for columns in of_table for pattern, text in columns.items()]
    return next((text for pattern, text in patterns if fnmatchcase(name, pattern)), "")
