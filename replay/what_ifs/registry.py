"""The what-ifs by name, their notation ``NAME:ARGUMENT+...``, and their composition.

The registry holds the recipes of this project and those of other packages, which name a `Recipe` by an entry point in
the group ``seqpoint.what_ifs``. A recipe of another package that cannot be loaded is left out, with the reason. Its
errors name the package.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint
from types import MappingProxyType
from typing import TypeVar

from profilers.errors import InvalidInputError, NotFoundError, SeqPointError
from profilers.plugins import load_plugins, package_of
from replay.calibration.parameters import Parameters
from replay.graph.graph import KernelGraph
from replay.what_ifs.what_if import (
    GROUPS,
    Recipe,
    WhatIf,
    single_steps,
    split_steps,
    split_words,
    unknown_name,
    what_if_text,
)

_T = TypeVar("_T")
_GROUP = "seqpoint.what_ifs"
#: Package of the what-ifs that rest on an annex. It plugs in by its name, so that nothing here imports an annex.
_ANNEXES = "replay.plug_ins"


@dataclass(frozen=True)
class Registry:
    """The recipes by name, and the reasons why some are left out.

    Parameters
    ----------
    recipes : mapping of str to Recipe
        Recipes of this project and of other packages, in the order of their groups.
    problems : mapping of str to str
        Reason why a recipe is left out, by ``"NAME of PACKAGE"``.
    """

    recipes: Mapping[str, Recipe]
    problems: Mapping[str, str]


def what_ifs() -> Mapping[str, Recipe]:
    """Return every recipe by name, in the order of their groups."""
    return registry().recipes


@cache
def registry() -> Registry:
    """Return the recipes of this project and of other packages, with the reasons why some are left out."""
    packages = [import_module(name) for name in ("replay.what_ifs", _ANNEXES)]
    named = [getattr(package, name) for package in packages for name in package.__all__]
    makers = sorted((make for make in named if hasattr(make, "recipe")), key=lambda make: str(make.recipe.name))
    ours = sorted((make.recipe for make in makers), key=lambda recipe: GROUPS.index(recipe.group))
    recipes = {recipe.name: recipe for recipe in ours}
    problems: dict[str, str] = {}
    for plugin in load_plugins(_GROUP, _load, taken=frozenset(recipes)):
        if plugin.value is None:
            problems[plugin.label] = plugin.problem
        else:
            recipes[plugin.name] = plugin.value
    return Registry(MappingProxyType(recipes), MappingProxyType(problems))


def _load(point: EntryPoint) -> Recipe:
    recipe = point.load()
    if not isinstance(recipe, Recipe):
        raise InvalidInputError(f"{point.value} is a {type(recipe).__name__}, not a replay.what_ifs.Recipe")
    if recipe.name != point.name:
        raise InvalidInputError(f"{point.value} is called {recipe.name}, its entry point {point.name}")
    package = package_of(point)
    return replace(recipe, make=_guarded(recipe.make, package), package=package, about=recipe.documentation)


def _guarded(make: Callable[..., WhatIf], package: str) -> Callable[..., WhatIf]:
    """Return a `make` whose errors, and those of its what-ifs, name the package."""

    def make_guarded(*values: object) -> WhatIf:
        what_if = _call(package, WhatIf, lambda: make(*values))

        def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
            return _call(package, KernelGraph, lambda: what_if(graph, parameters))

        # Calling `what_if` applies its parts, and takes assumed factors out where it re-times.
        choices = tuple(choice for step in single_steps(what_if) for choice in step.choices)
        return replace(what_if, transform=transform, parts=(), choices=choices, retimes=False)

    return make_guarded


def _call(package: str, type_: type[_T], function: Callable[[], object]) -> _T:
    """Return the result of a package's function, or raise an error that names the package."""
    try:
        result = function()
    except SeqPointError:
        raise
    except Exception as error:
        raise InvalidInputError(f"failed in package {package}: {type(error).__name__}: {error}") from error
    if not isinstance(result, type_):
        raise InvalidInputError(f"failed in package {package}: gave a {type(result).__name__}, not a {type_.__name__}")
    return result


#: Most steps of a composition, and most characters of its text; more is a mistake.
_MAX_STEPS, _MAX_LENGTH = 64, 20_000


def compose(*parts: WhatIf) -> WhatIf:
    """Return the what-if that applies `parts` from left to right; without parts, it changes nothing.

    Parameters
    ----------
    parts : WhatIf
        The what-ifs to apply, in this order.

    Raises
    ------
    InvalidInputError
        A what-if that changes the job, the device or data types follows one that quantises weights.

    Examples
    --------
    >>> from replay.what_ifs import dma_collectives, scale_links
    >>> compose(dma_collectives(), scale_links(2.0)).name
    'dma_collectives+scale_links:2'
    """

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        for what_if in parts:
            graph = what_if(graph, parameters)
        return graph

    steps = tuple(step for what_if in parts for step in what_if.steps)
    _check_order(parts)
    return WhatIf("+".join(steps) or "nothing", transform, parts)


class SharedParts:
    """Applies compositions to one graph after another; one that continues the composition before it begins there.

    So ``a``, ``a+b`` and ``a+b+c`` in a row apply each part once. The graph of the last one stays in memory if a
    further one of `what_ifs` continues it.

    Parameters
    ----------
    what_ifs : sequence of WhatIf
        What-ifs that will be applied, with the same parameters.
    """

    def __init__(self, what_ifs: Sequence[WhatIf]) -> None:
        named = [self._names(what_if) for what_if in what_ifs]
        self._continued = {each[:i] for each in named for i in range(1, len(each))} & set(named)
        self._done: tuple[KernelGraph, tuple[str, ...], KernelGraph] | None = None

    @staticmethod
    def _names(what_if: WhatIf) -> tuple[str, ...]:
        return tuple(part.name for part in what_if.parts) or (what_if.name,)

    def apply(self, what_if: WhatIf, graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        """Return the graph that a what-if of the list makes of `graph`."""
        names, changed, first = self._names(what_if), graph, 0
        if self._done is not None and self._done[0] is graph and names[: len(self._done[1])] == self._done[1]:
            first, changed = len(self._done[1]), self._done[2]
        for part in (what_if.parts or (what_if,))[first:]:
            changed = part(changed, parameters)
        self._done = (graph, names, changed) if names in self._continued else self._done
        return changed


#: Groups of what-ifs, and further what-ifs, that change the products whose weights a what-if before them quantised.
_RETIMING, _RETYPING = ("job", "device"), ("change_dtype",)


def _check_order(parts: Sequence[WhatIf]) -> None:
    """Raise an error if a what-if that changes products follows one that quantises their weights."""
    singles, copies = list(parts), ""
    while any(each.parts for each in singles):
        singles = [single for each in singles for single in (each.parts or [each])]
    for each in singles:
        name = split_words(each.name)[0]
        known = what_ifs().get(name)
        if copies and known is not None and (known.group in _RETIMING or name in _RETYPING):
            raise InvalidInputError(
                f"{name} after {copies}: copies and rates of products would not follow. Put {copies} last"
                if name != copies
                else f"{name} twice; name all formats in one, as in {name}:mx9,mx6"
            )
        copies = copies or (name if each.layers is not None else "")


def parse_what_if(text: str) -> WhatIf:
    r"""Return the what-if that a text describes.

    Parameters
    ----------
    text : str
        ``NAME:ARGUMENT:...``, several joined by ``+``; ``nothing`` changes nothing. In an argument, a ``:``, ``+`` or
        ``\`` has a ``\`` before it.

    Raises
    ------
    NotFoundError
        A what-if or a device does not exist; the message offers the nearest names.
    InvalidInputError
        Arguments are missing, too many or wrong.
    """
    if len(text) > _MAX_LENGTH:
        raise InvalidInputError(f"a what-if of {len(text)} characters; {_MAX_LENGTH} at most")
    if text.startswith("@"):
        raise InvalidInputError(
            f"{text[:80]!r}: a plan has several what-ifs; `seqpoint project` and `report` read plans"
        )
    steps = split_steps(text)
    if len(steps) > _MAX_STEPS:
        raise InvalidInputError(f"a what-if of {len(steps)} steps; {_MAX_STEPS} at most")
    what_ifs = [_parse_step(step) for step in steps]
    return what_ifs[0] if len(what_ifs) == 1 else compose(*what_ifs)


def _parse_step(step: str) -> WhatIf:
    if step == "nothing":
        return compose()
    name, *texts = split_words(step)
    return build_what_if(recipe_named(name), texts)


def build_what_if(recipe: Recipe, texts: list[str]) -> WhatIf:
    """Return the what-if that a recipe makes of the texts of its arguments.

    Parameters
    ----------
    recipe : Recipe
        The recipe, of this project or of another package.
    texts : list of str
        Texts of the first arguments; the others have their defaults.

    Raises
    ------
    InvalidInputError, NotFoundError
        As `Recipe.build`.
    """
    what_if = recipe.build(texts)
    # A package may give the what-if any name; the name has to be the text that parses to the same what-if.
    return replace(what_if, name=what_if_text(recipe.name, *texts)) if recipe.package else what_if


def recipe_named(name: str) -> Recipe:
    """Return the recipe of a what-if.

    Parameters
    ----------
    name : str
        Name of the what-if, without arguments.

    Raises
    ------
    NotFoundError
        No recipe has this name. The message offers the nearest names, or says why the recipe of a package is left out.
    """
    recipes, problems = registry().recipes, registry().problems
    if name in recipes:
        return recipes[name]
    for label, reason in problems.items():
        if label.startswith(f"{name} of "):
            raise NotFoundError(f"the what-if {label} could not be loaded: {reason}")
    raise unknown_name("no what-if is called", name, recipes)
