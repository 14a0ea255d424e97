r"""`WhatIf`, a named transformation of a graph, and `Recipe`, how a what-if is written and made.

A `Recipe` parses the arguments of a what-if (`Argument`) and makes a `WhatIf` of them. A what-if is written in one
line: ``NAME:ARGUMENT:...``, joined by ``+``; a ``:`` or ``+`` in an argument has a ``\`` before it, and ``::`` inside a
name needs none. The tasks on which a what-if acts are a `replay.graph.choice.TaskChoice`; `check_choices` finds a
choice that fits no task. docs/extending.md shows a whole package that adds a what-if.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np

from profilers.errors import InvalidInputError, NotFoundError, SeqPointError
from replay.calibration.parameters import Parameters
from replay.graph.choice import TaskChoice as TaskChoice
from replay.graph.choice import unknown_name as unknown_name
from replay.graph.graph import EdgeKind, KernelGraph
from replay.what_ifs.targets import Targets

#: Numbers of products outside layers: of the vocabulary, and of weights that not every layer has.
OUTPUT, OTHER = -1, -2
_OUTSIDE: Mapping[int, str] = {OUTPUT: "output layer", OTHER: "another product"}


def layer_name(layer: int) -> str:
    """Return the name of a layer by its number.

    Examples
    --------
    >>> layer_name(3), layer_name(OUTPUT)
    ('layer 3', 'output layer')
    """
    return _OUTSIDE.get(layer) or f"layer {layer}"


@dataclass(frozen=True)
class LayerQuantization:
    """Times of making the copies of a layer for one pass, ns.

    Parameters
    ----------
    what_if : str
        The what-if, or the steps of a composition up to the one that makes the copies.
    rank, iteration : int
        Rank, and iteration of the trace.
    phase : str
        Pass that the copies are for, as in `PHASES`.
    layer : int
        As in `LayerWeights`.
    elements : int
        Values of the weights.
    compute_ns : float
        Time beside which the copies can be made: from their trigger to the first product of the layer.
    quantize_ns : float
        Time of making the copies alone.
    slack_ns : float
        Compute time less that of the copies, and less that of copies that queue before them. Below 0, products wait.
    exposed_ns : float
        Time in which the first product of the layer waits for the copies, in the replay.
    """

    what_if: str
    rank: int
    iteration: int
    phase: str
    layer: int
    elements: int
    compute_ns: float
    quantize_ns: float
    slack_ns: float
    exposed_ns: float

    @property
    def name(self) -> str:
        """Name of the layer."""
        return layer_name(self.layer)

    def to_dict(self) -> dict[str, Any]:
        """Return the times as JSON; a product outside layers has no number."""
        return {**asdict(self), "layer": self.layer if self.layer >= 0 else None}


def number_text(value: float) -> str:
    """Return the shortest text that parses to exactly this number, without a ``+``.

    Examples
    --------
    >>> number_text(2.0), number_text(0.1), number_text(1e300)
    ('2', '0.1', '1e300')
    """
    return repr(float(value)).removesuffix(".0").replace("e+", "e")


def what_if_text(name: str, *arguments: str | float) -> str:
    """Return the text that parses to a what-if, with ``:`` and ``+`` in its arguments escaped.

    Parameters
    ----------
    name : str
        Name of the what-if.
    arguments : str or float
        Its arguments, in order.

    Examples
    --------
    >>> what_if_text("swap_kernel", "at::operator+*", 0.5)
    'swap_kernel:at::operator\\\\+*:0.5'
    """
    texts = [argument if isinstance(argument, str) else number_text(argument) for argument in arguments]
    escaped = [_UNSAFE.sub(lambda match: f"\\{match[1]}" if match[1] else match[0], text) for text in texts]
    # After an empty argument, the first letter of a name would be taken for the second half of a `::`.
    guarded = [
        f"\\{text}" if not before and _NAME_START.match(text) else text
        for before, text in zip([name, *escaped], escaped, strict=False)
    ]
    return ":".join((name, *guarded))


_AFTER_SCOPE = r"[A-Za-z_*?(<{~]"
_NAME_START = re.compile(_AFTER_SCOPE)
#: A ``::`` inside a name, as in ``aten::mm`` or ``at::native::*``; a number follows no such ``::``.
_SCOPE = re.compile(rf"(?<![\\:])::(?={_AFTER_SCOPE})")
#: The same in an argument, or a character that needs a ``\``.
_UNSAFE = re.compile(rf"(?<=[^\\:])::(?={_AFTER_SCOPE})|([\\:+])")


def split_steps(text: str) -> list[str]:
    """Return the texts of the steps of a composition.

    Examples
    --------
    >>> split_steps("a:1 + b:x\\\\+y")
    ['a:1', 'b:x\\\\+y']
    """
    return [step.strip() for step in _split(text, "+")]


def split_words(step: str) -> list[str]:
    """Return the name and the arguments of one step; ``::`` inside a name separates nothing.

    Examples
    --------
    >>> split_words("scale_kernels:operator=aten::mm*:0.5")
    ['scale_kernels', 'operator=aten::mm*', '0.5']
    """
    words = _split(_SCOPE.sub(r"\\:\\:", step), ":")
    return [re.sub(r"\\(.)", r"\1", word, flags=re.DOTALL) for word in words]


def _split(text: str, mark: str) -> Sequence[str]:
    """Split a text at every `mark` that has no backslash before it."""
    words, characters = [""], iter(text)
    for character in characters:
        if character == "\\":
            words[-1] += character + next(characters, "")
        elif character == mark:
            words.append("")
        else:
            words[-1] += character
    return words


Transform = Callable[[KernelGraph, Parameters], KernelGraph]


@dataclass(frozen=True)
class WhatIf:
    """A named transformation of a graph; pure, so the same graph and parameters give the same result.

    Parameters
    ----------
    name : str
        The text that parses to this what-if, arguments included: ``"scale_device:MI355X"``.
    transform : callable
        Takes a graph and the parameters and returns a new graph.
    parts : tuple of WhatIf
        The what-ifs of a composition; empty for a single what-if.
    choices : tuple of TaskChoice
        Choices of the tasks on which it acts; each has to fit a task of the trace.
    title : str
        Title that a plan file gives it.
    parameters : tuple of (str, float)
        Values of model parameters that a plan file sets for it.
    retimes : bool
        Whether it models new durations from old ones. It then gets durations without the factors that other what-ifs
        assume (`Tasks.factor`), and they apply to its result. So it commutes with them.
    targets : callable, optional
        Takes a graph and the parameters and returns the collectives that it acts on, and why not on others. None for a
        what-if that does not act on collectives one by one.
    tokens : callable, optional
        Takes a graph and returns the tokens of a step of one replica, before and after. None for a what-if that leaves
        the work of a step as it is. Steps of unlike work are compared by the time of a token.
    layers : callable, optional
        Takes a graph and the parameters and returns the times of each layer whose weights it quantises. None for a
        what-if that quantises none.
    """

    name: str
    transform: Transform
    parts: tuple["WhatIf", ...] = ()
    choices: tuple[TaskChoice, ...] = ()
    title: str = ""
    parameters: tuple[tuple[str, float], ...] = ()
    retimes: bool = False
    targets: Callable[[KernelGraph, Parameters], Targets] | None = None
    tokens: Callable[[KernelGraph], tuple[float, float]] | None = None
    layers: Callable[[KernelGraph, Parameters], Sequence[LayerQuantization]] | None = None

    def __call__(self, graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        """Return the changed graph.

        Parameters
        ----------
        graph : KernelGraph
            The graph to change; it stays as it is.
        parameters : Parameters
            Parameters of the models.

        Raises
        ------
        SeqPointError
            The change cannot be made. The message names the what-if, or the step of a composition.
        """
        if self.parts:
            return self.transform(graph, parameters)
        try:
            with np.errstate(over="ignore"):  # a graph refuses durations that are not finite
                if self.retimes:
                    changed = self.transform(graph.without_factors(), parameters).with_factors()
                else:
                    changed = self.transform(graph, parameters)
                # A plug-in may give anything; its caller names it.
                return _with_stream_lags(graph, changed) if isinstance(changed, KernelGraph) else changed
        except SeqPointError as error:
            raise type(error)(f"what-if {self.name}: {error}") from error
        except ArithmeticError as error:
            raise InvalidInputError(f"what-if {self.name}: out of the range of numbers ({error})") from error

    @property
    def steps(self) -> tuple[str, ...]:
        """Names of the what-ifs of a composition, or the name of a single what-if."""
        return tuple(step for part in self.parts for step in part.steps) or (self.name,)

    @property
    def label(self) -> str:
        """Title, or the name if it has no title."""
        return self.title or self.name


#: Least share of a kernel's duration after which the next one of its stream starts, for both to run one after another.
_SEQUENTIAL = 0.5


def _with_stream_lags(before: KernelGraph, after: KernelGraph) -> KernelGraph:
    """Return a changed graph in which a kernel that started near the end of the one before it still does.

    The next kernel of a stream may start before the one before it has ended, by its launch (programmatic dependent
    launch), or by rounding. Its edge has a lag from the start of the one before, which goes with that one's duration.
    """
    edges, (old, new) = after.edges, (graph.tasks.duration_ns for graph in (before, after))
    if len(old) != len(new) or not np.array_equal(before.edges.source, edges.source):
        return after
    source = edges.source
    sequential = edges.from_start & (edges.kind == EdgeKind.STREAM) & (edges.lag_ns >= _SEQUENTIAL * old[source])
    moved = sequential & (new[source] != old[source]) & (old[source] > 0)
    if not moved.any():
        return after
    ratio = np.divide(new, old, out=np.ones(len(old)), where=old > 0)
    return replace(after, edges=replace(edges, lag_ns=np.where(moved, edges.lag_ns * ratio[source], edges.lag_ns)))


#: A factor beyond these is a mistake.
_MIN_FACTOR, _MAX_FACTOR = 1e-6, 1e6


def check_factor(what: str, factor: float, *, zero: bool = False, least: float = _MIN_FACTOR) -> None:
    """Raise an error if a factor is not plausible.

    Parameters
    ----------
    what : str
        Name of the what-if, for the message.
    factor : float
        Factor to check.
    zero : bool
        Whether the factor may be 0.
    least : float
        Smallest factor above zero.

    Raises
    ------
    InvalidInputError
        The factor is neither zero, if that is allowed, nor from `least` to 1e6.

    Examples
    --------
    >>> check_factor("scale_links", 2.0)
    """
    if not (least <= factor <= _MAX_FACTOR or (zero and factor == 0)):
        allowed = "zero, or one" if zero else "one above zero,"
        raise InvalidInputError(f"{what}: a factor of {factor:g}; give {allowed} from {least:g} to {_MAX_FACTOR:g}")


#: Groups in which what-ifs are listed, in this order.
GROUPS: tuple[str, ...] = ("kernels", "job", "device", "communication", "host", "scheduling")
_KINDS = ("text", "number", "whole")
#: Most characters of an argument: it is a name or a number.
_MAX_LENGTH = 300
#: Whole numbers in plans are below this.
_WHOLE_LIMIT = 2**63


@dataclass(frozen=True)
class Argument:
    """One argument of a what-if.

    Parameters
    ----------
    name : str
        Name in a plan file, in lower case.
    about : str
        Meaning of the argument, in a few words.
    kind : str
        Type of the value that `Recipe.make` gets: ``"text"`` (str), ``"number"`` (float) or ``"whole"`` (int).
    choices : tuple of str
        Texts that are allowed; empty if any text is.
    default : str, optional
        Text that is used if the argument is left out; without it, the argument is required.
    older_name : str
        Name in plan files of earlier versions, which is still read.
    """

    name: str
    about: str
    kind: str = "text"
    choices: tuple[str, ...] = ()
    default: str | None = None
    older_name: str = ""

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise InvalidInputError(f"an argument's kind is one of {', '.join(_KINDS)}, not {self.kind!r}")

    def read(self, text: str) -> str | float | int:
        """Return the value of a text.

        Parameters
        ----------
        text : str
            The argument as it was written, without escapes.

        Raises
        ------
        InvalidInputError, NotFoundError
            The text is no number, or not one of the choices.
        """
        if len(text) > _MAX_LENGTH:
            raise InvalidInputError(f"{self.name} has {len(text)} characters; {_MAX_LENGTH} at most")
        if self.choices and text not in self.choices:
            raise unknown_name(f"{self.name} cannot be", text, self.choices)
        if self.kind == "text":
            return text
        try:
            return int(text) if self.kind == "whole" else float(text)
        except ValueError as error:
            what = "whole number" if self.kind == "whole" else "number"
            raise InvalidInputError(f"{self.name} {text!r} is no {what}") from error


def tasks_argument(verb: str) -> Argument:
    """Return the argument by which a what-if takes a choice of tasks.

    Parameters
    ----------
    verb : str
        What happens to the tasks, such as ``"move"``.
    """
    about = f"tasks to {verb}: all, kernels, collectives, copies, a class, a name with * and ?, or terms such as rank=0"
    return Argument("tasks", about)


@dataclass(frozen=True)
class Recipe:
    """How a what-if is written, made and described. An entry point of the group ``seqpoint.what_ifs`` names one.

    Parameters
    ----------
    name : str
        Name of the what-if: letters, digits and ``_``. The entry point has the same name.
    make : callable
        Takes the values of the arguments, in order, and returns the `WhatIf`.
    arguments : tuple of Argument
        Arguments of the what-if; arguments with a default come last.
    summary : str
        One sentence for the listing; by default the first line of the docstring of `make`.
    example : str
        The what-if as the command line writes it; by default the name, if no argument is required.
    group : str
        One of `GROUPS`, or another name.
    about : str
        What is modelled, what is not, and the source; by default the docstring of `make`.
    package : str
        Distribution that brings it; filled in for what-ifs of other packages.

    Raises
    ------
    InvalidInputError
        The name, the order of the arguments, or the missing example cannot be used.
    """

    name: str
    make: Callable[..., WhatIf]
    arguments: tuple[Argument, ...] = ()
    summary: str = ""
    example: str = ""
    group: str = "kernels"
    about: str = ""
    package: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z]\w{0,63}", self.name, re.ASCII):
            raise InvalidInputError(f"a what-if cannot be called {self.name!r}: letters, digits and _, 64 at most")
        required = [argument.default is None for argument in self.arguments]
        if required != sorted(required, reverse=True):
            raise InvalidInputError(f"{self.name}: arguments that can be left out come last")
        if any(required) and not self.example:
            raise InvalidInputError(f"{self.name}: give an example, such as {self.form} with values")
        object.__setattr__(self, "summary", self.summary or self.documentation.partition("\n")[0])
        object.__setattr__(self, "example", self.example or self.name)

    @property
    def form(self) -> str:
        """Form in which it is written: ``NAME:ARGUMENT[:OPTIONAL]``."""
        arguments = (f":{a.name.upper()}" if a.default is None else f"[:{a.name.upper()}]" for a in self.arguments)
        return self.name + "".join(arguments)

    @property
    def documentation(self) -> str:
        """What is modelled and what is not: `about`, without sections such as Raises."""
        text = inspect.cleandoc(self.about or self.make.__doc__ or "")
        return re.split(r"\n\n(?:Raises|Examples|Parameters)\n-{3,}", text)[0].strip()

    def build(self, texts: Sequence[str]) -> WhatIf:
        """Return the what-if that `make` makes of texts.

        Parameters
        ----------
        texts : sequence of str
            Texts of the first arguments; the others have their defaults.

        Raises
        ------
        InvalidInputError, NotFoundError
            There are too few or too many texts, or one is not a value of its argument.
        """
        n_required = sum(argument.default is None for argument in self.arguments)
        if not n_required <= len(texts) <= len(self.arguments):
            step = ":".join((self.name, *texts))
            raise InvalidInputError(f"{step[:_MAX_LENGTH]!r}: write {self.form}, as in {self.example}")
        defaults = [argument.default or "" for argument in self.arguments]
        values = zip(self.arguments, [*texts, *defaults[len(texts) :]], strict=True)
        return self.make(*(argument.read(text) for argument, text in values))

    def texts(self, named: dict[str, str | float | int]) -> list[str]:
        """Return the texts of arguments that are given by name, in order, up to the last of them.

        Parameters
        ----------
        named : dict of str to str, float or int
            Values by the name of their argument, as a plan file has them.

        Raises
        ------
        InvalidInputError, NotFoundError
            A name is unknown, or a required argument is missing.
        """
        names = [argument.name for argument in self.arguments]
        current = {argument.older_name: argument.name for argument in self.arguments}
        if len(named) > len(named := {current.get(name, name): value for name, value in named.items()}):
            raise InvalidInputError(f"{self.name} has an argument twice; its arguments are {', '.join(names)}")
        for name in named:
            if name not in names:
                raise unknown_name(f"{self.name} has no argument", name, names)
        missing = [a.name for a in self.arguments if a.default is None and a.name not in named]
        if missing:
            raise InvalidInputError(f"{self.name} needs {', '.join(missing)}, as in {self.example}")
        last = max((names.index(name) for name in named), default=-1)
        return [_text(a.name, named.get(a.name, a.default or "")) for a in self.arguments[: last + 1]]


Make = TypeVar("Make", bound=Callable[..., WhatIf])


def recipe(group: str, example: str, *arguments: Argument) -> Callable[[Make], Make]:
    """Attach a `Recipe`, as the attribute `recipe`, to a function of this package that makes a what-if.

    Parameters
    ----------
    group : str
        One of `GROUPS`.
    example : str
        The what-if as the command line writes it.
    arguments : Argument
        Arguments of the what-if, one a parameter of the function, in order.
    """

    def attach(make: Make) -> Make:
        names = tuple(inspect.signature(make).parameters)

        def make_by_name(*values: object) -> WhatIf:
            return make(**dict(zip(names, values, strict=True)))

        about = make.__doc__ or ""
        vars(make)["recipe"] = Recipe(make.__name__, make_by_name, arguments, "", example, group, about)
        return make

    return attach


def _text(name: str, value: str | float | int) -> str:
    if isinstance(value, int) and abs(value) >= _WHOLE_LIMIT:
        raise InvalidInputError(f"{name} is a whole number of more than 63 bits")
    return number_text(value) if isinstance(value, float) else str(value)


def check_choices(what_if: "WhatIf", graphs: Sequence[KernelGraph], parameters: Parameters) -> None:
    """Raise an error if a what-if, or a step of a composition, chooses no task of any graph.

    A step chooses among the tasks that the steps before it leave.

    Parameters
    ----------
    what_if : WhatIf
        Its choices are checked.
    graphs : sequence of KernelGraph
        Graphs of the chosen iterations; a choice has to fit a task of one of them.
    parameters : Parameters
        Parameters of the models, for the steps before a choice.

    Raises
    ------
    NotFoundError
        A choice fits no task; the message offers the nearest names, or the values that there are.
    """
    steps, changed = single_steps(what_if), list(graphs)
    last = max((number for number, step in enumerate(steps) if step.choices), default=-1)
    for number, step in enumerate(steps[: last + 1]):
        for choice in step.choices:
            _check_choice(choice, what_if, steps[:number], (graphs, changed))
        if number < last:
            try:
                changed = [step(graph, parameters) for graph in changed]
            except SeqPointError:
                return  # the what-if cannot be applied, which its application reports


def single_steps(what_if: "WhatIf") -> list["WhatIf"]:
    """Return the steps of a composition, those of its parts included, or a single what-if."""
    return [step for part in what_if.parts for step in single_steps(part)] if what_if.parts else [what_if]


def _check_choice(
    choice: TaskChoice,
    what_if: "WhatIf",
    earlier: Sequence["WhatIf"],
    graphs: tuple[Sequence[KernelGraph], Sequence[KernelGraph]],
) -> None:
    """Raise the error of a choice that fits no task, with the steps that removed its tasks."""
    before, changed = graphs
    try:
        choice.check(changed)
    except NotFoundError as error:
        left = any(choice.rows(graph).any() for graph in before)
        removed = f" (after {'+'.join(step.name for step in earlier)}, which left none)" if left and earlier else ""
        raise NotFoundError(f"what-if {what_if.label}: {error}{removed}") from error
