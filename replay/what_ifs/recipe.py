"""`Recipe`: how a what-if is written, made and described."""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from profilers.errors import InvalidInputError
from replay.what_ifs.nearest import unknown
from replay.what_ifs.what_if import WhatIf
from replay.what_ifs.writing import number_text

__all__ = ["GROUPS", "Argument", "Recipe"]

#: The groups that what-ifs are listed in.
GROUPS: tuple[str, ...] = ("kernels", "device", "communication", "host", "scheduling")
_KINDS = ("text", "number", "whole")
#: An argument is a name or a number; longer is a mistake.
_LONGEST = 300
#: Whole numbers in plans are below.
_LARGEST = 2**63


@dataclass(frozen=True)
class Argument:
    """One argument of a what-if.

    Parameters
    ----------
    name : str
        As a plan file writes it, in lower case.
    about : str
        What it is, in a few words.
    kind : str
        ``"text"``, ``"number"`` or ``"whole"``.
    choices : tuple of str
        The only texts that it may be, if there are such.
    default : str, optional
        Where there is one, the argument can be left out.
    """

    name: str
    about: str
    kind: str = "text"
    choices: tuple[str, ...] = ()
    default: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise InvalidInputError(f"an argument's kind is one of {', '.join(_KINDS)}, not {self.kind!r}")

    def read(self, text: str) -> str | float | int:
        """Return the value that a text stands for.

        Raises
        ------
        InvalidInputError, NotFoundError
            It is no number, or none of the choices.
        """
        if len(text) > _LONGEST:
            raise InvalidInputError(f"{self.name} has {len(text)} characters; {_LONGEST} at most")
        if self.choices and text not in self.choices:
            raise unknown(f"{self.name} cannot be", text, self.choices)
        if self.kind == "text":
            return text
        try:
            return int(text) if self.kind == "whole" else float(text)
        except ValueError as error:
            what = "whole number" if self.kind == "whole" else "number"
            raise InvalidInputError(f"{self.name} {text!r} is no {what}") from error


@dataclass(frozen=True)
class Recipe:
    """How a what-if is written, made and described; what an entry point of the group ``seqpoint.what_ifs`` names.

    Parameters
    ----------
    name : str
        Letters, digits and ``_``.
    make : callable
        Takes the arguments' values in their order and returns the `WhatIf`.
    arguments : tuple of Argument
        Those with a default come last.
    summary : str
        One sentence.
    example : str
        As the command line writes it.
    group : str
        One of `GROUPS`, or another.
    about : str
        What it models, what it does not, and where that is from; by default the docstring of `make`.
    package : str
        The distribution that brings it; filled in for what-ifs of other packages.
    """

    name: str
    make: Callable[..., WhatIf]
    arguments: tuple[Argument, ...]
    summary: str
    example: str
    group: str = "kernels"
    about: str = ""
    package: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z]\w{0,63}", self.name, re.ASCII):
            raise InvalidInputError(f"a what-if cannot be called {self.name!r}: letters, digits and _, 64 at most")
        needed = [argument.default is None for argument in self.arguments]
        if needed != sorted(needed, reverse=True):
            raise InvalidInputError(f"{self.name}: arguments that can be left out come last")

    @property
    def form(self) -> str:
        """How it is written: ``NAME:ARGUMENT[:OPTIONAL]``."""
        parts = (f":{a.name.upper()}" if a.default is None else f"[:{a.name.upper()}]" for a in self.arguments)
        return self.name + "".join(parts)

    @property
    def documentation(self) -> str:
        """What it models and what not: `about`, without the sections on errors."""
        text = inspect.cleandoc(self.about or self.make.__doc__ or "")
        return re.split(r"\n\n(?:Raises|Examples|Parameters)\n-{3,}", text)[0].strip()

    def made(self, given: Sequence[str]) -> WhatIf:
        """Return the what-if with these texts as its first arguments.

        Raises
        ------
        InvalidInputError, NotFoundError
            There are too few or too many, or one is not what it has to be.
        """
        least = sum(argument.default is None for argument in self.arguments)
        if not least <= len(given) <= len(self.arguments):
            shown = ":".join((self.name, *given))
            raise InvalidInputError(f"{shown[:_LONGEST]!r}: write {self.form}, as in {self.example}")
        defaults = [argument.default or "" for argument in self.arguments]
        texts = [*given, *defaults[len(given) :]]
        return self.make(*(a.read(text) for a, text in zip(self.arguments, texts, strict=True)))

    def texts(self, named: dict[str, str | float | int]) -> list[str]:
        """Return the texts of named arguments, in their order, up to the last that is given.

        Raises
        ------
        InvalidInputError, NotFoundError
            A name is unknown, or a needed argument is missing.
        """
        names = [argument.name for argument in self.arguments]
        for name in named:
            if name not in names:
                raise unknown(f"{self.name} has no argument", name, names)
        missing = [a.name for a in self.arguments if a.default is None and a.name not in named]
        if missing:
            raise InvalidInputError(f"{self.name} needs {', '.join(missing)}, as in {self.example}")
        last = max((names.index(name) for name in named), default=-1)
        return [_text(a.name, named.get(a.name, a.default or "")) for a in self.arguments[: last + 1]]


def _text(name: str, value: str | float | int) -> str:
    if isinstance(value, int) and abs(value) >= _LARGEST:
        raise InvalidInputError(f"{name} is a whole number of more than 63 bits")
    return number_text(value) if isinstance(value, float) else str(value)
