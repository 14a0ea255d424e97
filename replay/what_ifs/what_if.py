r"""`WhatIf` and `Recipe`: what a what-if is, how its text is parsed, and which tasks it changes.

The error for an unknown name, with the nearest ones offered.

What-ifs in one line: ``NAME:ARGUMENT``, joined by ``+``; a ``:`` or ``+`` in an argument has a ``\`` before it.

`WhatIf`: a named transformation of a graph.

Bounds of the factors that what-ifs take.

`Recipe`: how a what-if is written, made and described.

`TaskChoice`: the tasks that a what-if acts on, by class, by kind, or by a pattern of names.

Demands of the tasks that a what-if makes others of.
"""

import difflib
import fnmatch
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError, NotFoundError, SeqPointError
from profilers.trace.arrays import Bools
from profilers.trace.kernels import CLASSES, COLLECTIVE
from replay.calibration.parameters import Parameters
from replay.costs.demand import with_demands
from replay.graph.graph import KernelGraph, TaskKind

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


def number_text(value: float) -> str:
    """Return the shortest text that is read as exactly this number, without a ``+``.

    Examples
    --------
    >>> number_text(2.0), number_text(0.1), number_text(1e300)
    ('2', '0.1', '1e300')
    """
    return repr(float(value)).removesuffix(".0").replace("e+", "e")


def written(name: str, *arguments: str | float) -> str:
    """Return the line that is read as this what-if.

    Examples
    --------
    >>> written("swap_kernel", "at::add*", 0.5)
    'swap_kernel:at\\\\:\\\\:add*:0.5'
    """
    texts = (one if isinstance(one, str) else number_text(one) for one in arguments)
    return ":".join((name, *(re.sub(r"([\\:+])", r"\\\1", text) for text in texts)))


def split_steps(text: str) -> list[str]:
    """Return the steps of a composition, as written.

    Examples
    --------
    >>> split_steps("a:1 + b:x\\\\+y")
    ['a:1', 'b:x\\\\+y']
    """
    return [part.strip() for part in _split(text, "+")]


def split_words(step: str) -> list[str]:
    """Return the name and the arguments of one step."""
    return [re.sub(r"\\(.)", r"\1", part, flags=re.DOTALL) for part in _split(step, ":")]


def _split(text: str, mark: str) -> Sequence[str]:
    """Split at every `mark` that has no backslash before it."""
    parts, characters = [""], iter(text)
    for character in characters:
        if character == "\\":
            parts[-1] += character + next(characters, "")
        elif character == mark:
            parts.append("")
        else:
            parts[-1] += character
    return parts


Transform = Callable[[KernelGraph, Parameters], KernelGraph]


@dataclass(frozen=True)
class WhatIf:
    """A named transformation of a graph; pure, so the same graph and parameters give the same result.

    Parameters
    ----------
    name : str
        As the command line writes it, arguments included: ``"scale_device:MI355X"``. Reading it gives this what-if.
    transform : callable
        (graph, parameters) to graph.
    parts : tuple of str
        Names of the what-ifs that a composition is made of.
    patterns : tuple of str
        The names or patterns of kernels that it acts on.
    title : str
        What a plan file calls it.
    parameters : tuple of (str, float)
        Values that a plan file gives parameters of the models under it, in place of their own.
    """

    name: str
    transform: Transform
    parts: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    title: str = ""
    parameters: tuple[tuple[str, float], ...] = ()

    def __call__(self, graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        """Return `graph` with the change made.

        Raises
        ------
        SeqPointError
            It cannot be made; the message names the what-if, of a composition the part.
        """
        if self.parts:
            return self.transform(graph, parameters)
        try:
            with np.errstate(over="ignore"):  # what is then not finite is an error of the graph
                return self.transform(graph, parameters)
        except SeqPointError as error:
            raise type(error)(f"what-if {self.name}: {error}") from error
        except ArithmeticError as error:
            raise InvalidInputError(f"what-if {self.name}: out of the range of numbers ({error})") from error

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of its parts, or its own."""
        return self.parts or (self.name,)

    @property
    def label(self) -> str:
        """Its title, or its name."""
        return self.title or self.name


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


_TASK_KINDS = {"kernels": TaskKind.KERNEL, "collectives": TaskKind.COLLECTIVE, "copies": TaskKind.COPY}
#: What is of another kind than kernels; each kernel of the class is a collective.
_NO_KERNELS = ("collectives", "copies", COLLECTIVE)
#: A pattern is matched with every name of a trace.
_LONGEST_PATTERN, _STARS = 200, 16


@dataclass(frozen=True)
class TaskChoice:
    """Tasks on devices.

    Parameters
    ----------
    text : str
        ``all``; ``kernels``, ``collectives`` or ``copies``; a class of `profilers.trace.kernels.CLASSES`; or the
        name of a kernel as the trace writes it, in which ``*`` stands for any text and ``?`` for any character (so
        for a ``:``).

    Raises
    ------
    InvalidInputError
        It is empty, longer than 200 characters, or has more than 16 stars.
    """

    text: str

    def __post_init__(self) -> None:
        if not self.text or len(self.text) > _LONGEST_PATTERN or self.text.count("*") > _STARS:
            raise InvalidInputError(
                f"{self.text[:60]!r} chooses no kernels: give a class, or a name with * and ?, of 1 to "
                f"{_LONGEST_PATTERN} "
                f"characters and {_STARS} stars at most"
            )

    @property
    def patterns(self) -> tuple[str, ...]:
        """The text, where it is a name or pattern."""
        return () if self.text == "all" or self.text in _TASK_KINDS or self.text in CLASSES else (self.text,)

    def rows(self, graph: KernelGraph) -> Bools:
        """Return which tasks of `graph` are chosen."""
        tasks = graph.tasks
        if self.text == "all":
            return graph.on_device()
        if self.text in _TASK_KINDS:
            return np.asarray((tasks.kind == _TASK_KINDS[self.text]) & graph.on_device())
        if self.text in CLASSES:
            return np.asarray((tasks.class_ == CLASSES.index(self.text)) & graph.on_device())
        fits = np.array([name_fits(self.text, name) for name in graph.names], dtype=bool)
        return np.asarray(fits[tasks.name] & graph.on_device()) if len(fits) else graph.on_device()


def kernel_choice(what: str, text: str) -> TaskChoice:
    """Return the choice of a what-if that acts on kernels alone.

    Raises
    ------
    InvalidInputError
        As `TaskChoice`, or it chooses collectives or copies.
    """
    if text in _NO_KERNELS:
        raise InvalidInputError(f"{what} acts on kernels that compute, and {text!r} are none: nothing would change")
    return TaskChoice(text)


def name_fits(pattern: str, name: str) -> bool:
    """Return whether a name is of a pattern; brackets stand for themselves, since C++ names have them."""
    return re.match(fnmatch.translate(pattern.replace("[", "[[]")), name) is not None


def check_patterns(what_if: "WhatIf", graphs: Sequence[KernelGraph]) -> None:
    """Make sure that every pattern fits a name of some graph; in one graph alone it may fit none.

    Raises
    ------
    NotFoundError
        One fits none; the nearest classes and names are offered.
    """
    for pattern in what_if.patterns:
        names = dict.fromkeys(name for graph in graphs for name in _device_names(graph))
        if not any(name_fits(pattern, name) for name in names):
            error = unknown(
                "no class or kernel of the trace is called", pattern, ("all", *_TASK_KINDS, *CLASSES, *names)
            )
            raise type(error)(f"what-if {what_if.label}: {error}")


def _device_names(graph: KernelGraph) -> Iterable[str]:
    return (graph.names[i] for i in np.unique(graph.tasks.name[graph.on_device()]).tolist())


_COLUMNS = ("demand", "occupies", "waves", "footprint", "hit_share")


def with_demands_of(graph: KernelGraph, rows: npt.NDArray[np.bool_], parameters: Parameters) -> KernelGraph:
    """Return `graph` with the demands of some tasks worked out anew; those of all others stay."""
    new, tasks = with_demands(graph, parameters).tasks, graph.tasks
    columns = {}
    for name in _COLUMNS:
        chosen = rows[:, None] if name == "demand" else rows
        columns[name] = np.where(chosen, getattr(new, name), getattr(tasks, name))
    return graph.with_tasks(**columns)
