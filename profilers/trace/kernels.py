"""Classes of kernels, by name: `classify`, and the table of rules behind it, `datasets/kernel_classes.toml`.

The classes are those of the BERT characterisation (arXiv 2104.08335, section 3), and convolution, embedding, sorting
and communication. The name decides, since it is the only property that every profiler writes. Rules are tried in their
order, and the first whose pattern occurs in the name gives the class: a special rule stands before a general one.
"""

import fnmatch
import re
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from functools import cache, lru_cache
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import dataset_path, read_toml, typed_table

COLLECTIVE = "collective"
_OTHER = "other"

#: Every class that `classify` can return.
CLASSES: tuple[str, ...] = (
    *(COLLECTIVE, "elementwise", "normalization", "softmax", "reduction", "attention", "copy", "convolution"),
    *("embedding", "gemm", "rnn", "optimizer", "pooling", "dropout", "sort", _OTHER),
)

#: Classes whose large kernels are bound by arithmetic rather than by memory.
COMPUTE_BOUND = frozenset({"gemm", "convolution", "attention", "rnn"})


class KindRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"class_": "class"}):
    """The class of the kernels whose names contain a pattern.

    Parameters
    ----------
    class_ : str
        One of `CLASSES`.
    patterns : tuple of str
        Regular expressions, of which one occurs anywhere in the name, whatever its case.
    example : str
        Name of a kernel, or its beginning, that the rule is for.
    why : str
        Library that writes such names, and why the class is theirs.
    """

    class_: str
    patterns: tuple[str, ...]
    example: str
    why: str


class _Rules(msgspec.Struct, forbid_unknown_fields=True):
    """The shipped rules, in the order in which they are tried."""

    rules: tuple[KindRule, ...]


@cache
def shipped_rules() -> tuple[KindRule, ...]:
    """Return the shipped rules, in the order in which they are tried."""
    file = dataset_path("kernel_classes.toml")
    return typed_table(read_toml(file, "classes of kernels"), _Rules, str(file)).rules


#: Characters of a name that count. Names of templates are longer, and their first words say what they are.
_LENGTH = 8192


@cache
def _compiled() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Return the rules as (class, compiled pattern), with one pattern for successive rules of a class."""
    patterns = [
        (name, "|".join(pattern for rule in run for pattern in rule.patterns))
        for name, run in groupby(shipped_rules(), key=lambda rule: rule.class_)
    ]
    return tuple((name, re.compile(pattern, re.IGNORECASE | re.DOTALL)) for name, pattern in patterns)


class ClassRule(NamedTuple):
    """A user's own rule, which comes before the shipped ones: the class of the kernels whose whole name fits a pattern.

    Parameters
    ----------
    pattern : str
        Name in which ``*`` stands for any text and ``?`` for one character.
    class_ : str
        One of `CLASSES`.
    """

    pattern: str
    class_: str

    def fits(self, name: str) -> bool:
        """Return whether the whole name of a kernel fits the pattern."""
        return _matcher(self.pattern).match(name, 0, _LENGTH) is not None


@lru_cache(maxsize=1024)
def _matcher(pattern: str) -> re.Pattern[str]:
    # Brackets are common in names of kernels, so they stand for themselves.
    return re.compile(fnmatch.translate(pattern.replace("[", "[[]")))


def classify(name: str, rules: Sequence[ClassRule] = ()) -> str:
    """Return the class of a kernel.

    Parameters
    ----------
    name : str
        Name of the kernel, as the profiler writes it.
    rules : sequence of ClassRule
        A user's own rules, which come first.

    Examples
    --------
    >>> classify("ncclDevKernel_Generic(ncclDevComm*)"), classify("ampere_sgemm_128x64_nn")
    ('collective', 'gemm')
    >>> classify("blur_kernel"), classify("blur_kernel", [ClassRule("blur_*", "convolution")])
    ('other', 'convolution')
    """
    if (label := class_by_rules(name, rules)) is not None:
        return label
    return _shipped_class(name)


@lru_cache(maxsize=4096)
def _shipped_class(name: str) -> str:
    """Return the class of a kernel by the shipped rules, which take 0.1 to 10 ms for a name."""
    return next((label for label, pattern in _compiled() if pattern.search(name, 0, _LENGTH)), _OTHER)


def class_by_rules(name: str, rules: Sequence[ClassRule]) -> str | None:
    """Return the class of a kernel by a user's own rules, or None if none fits.

    Parameters
    ----------
    name : str
        Name of the kernel, as the profiler writes it.
    rules : sequence of ClassRule
        The rules; the first that fits counts.
    """
    return next((rule.class_ for rule in rules if rule.fits(name)), None)


def is_collective(name: str, rules: Sequence[ClassRule] = ()) -> bool:
    """Return whether a kernel belongs to a communication library.

    Parameters
    ----------
    name : str
        Name of the kernel, as the profiler writes it.
    rules : sequence of ClassRule
        A user's own rules, which come first.

    Examples
    --------
    >>> is_collective("void at::native::reduce_kernel<512>")
    False
    """
    return classify(name, rules) == COLLECTIVE


#: Most rules of a file, and most characters of a pattern; such files are written by hand.
_MOST_RULES, _LONGEST_PATTERN = 1000, 500
_LAYOUT = '[[classes]] tables with pattern = "NAME*" and class = "gemm"'


class _RuleTable(msgspec.Struct, forbid_unknown_fields=True, rename={"class_": "class"}):
    """One rule of a file."""

    pattern: Annotated[str, msgspec.Meta(min_length=1, max_length=_LONGEST_PATTERN)]
    class_: str


def read_class_rules(path: str | PathLike[str]) -> tuple[ClassRule, ...]:
    """Read a user's own classes of kernels.

    Parameters
    ----------
    path : str or path
        TOML file: tables ``[[classes]]``, each with ``pattern`` (with ``*`` and ``?``) and ``class``.

    Raises
    ------
    NotFoundError
        The file is missing, or a rule names an unknown class; the message offers near names.
    InvalidInputError
        The file is no TOML, or a rule lacks a pattern or a class, or has another key. The message counts rules from 1.
    """
    path = Path(path)
    content = read_toml(path, "classes of kernels")
    rows = content.get("classes")
    if set(content) != {"classes"} or not isinstance(rows, list) or not rows:
        raise InvalidInputError(f"{path}: a file of classes holds {_LAYOUT}, and nothing else")
    if len(rows) > _MOST_RULES:
        raise InvalidInputError(f"{path}: {len(rows)} rules; at most {_MOST_RULES} are read")
    return tuple(_class_rule(row, f"{path}: rule {number}") for number, row in enumerate(rows, 1))


def _class_rule(row: Any, where: str) -> ClassRule:
    """Return one table of a file as a rule."""
    table = typed_table(row, _RuleTable, where)
    if table.class_ not in CLASSES:
        near = ", ".join(get_close_matches(table.class_, CLASSES, 3, 0.5) or CLASSES)
        raise NotFoundError(f"{where}: no class of kernels is called {table.class_[:60]!r}; near names: {near}")
    return ClassRule(table.pattern, table.class_)


def check_rules(rules: Sequence[ClassRule], names: Collection[str]) -> None:
    """Check that a user's own rules have an effect: at least one of them fits a kernel.

    Parameters
    ----------
    rules : sequence of ClassRule
        The rules.
    names : collection of str
        Names of the kernels of a trace.

    Raises
    ------
    InvalidInputError
        None fits; the message lists near names.
    """
    if not rules or any(class_by_rules(name, rules) is not None for name in names):
        return
    pattern = rules[0].pattern
    near = get_close_matches(pattern, names, 3, 0.3) or sorted(names)[:3]
    listed = ", ".join(repr(name[:80]) for name in near) or "none: the trace has no kernel"
    raise InvalidInputError(
        f"no rule of --classes fits a kernel of the trace (the first pattern is {pattern!r}; near names: {listed}); a "
        "pattern fits whole names, with * for any text"
    )
