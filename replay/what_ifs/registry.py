"""The what-ifs by name, and composing them.

Which what-ifs there are: the project's own, and those that other packages bring.

A package adds some by entry points in the group ``seqpoint.what_ifs``, each of which names a `Recipe`.

Composition of what-ifs, and their notation: ``NAME:ARGUMENT:...``, joined by ``+``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import TypeVar

from profilers.errors import InvalidInputError, NotFoundError, SeqPointError
from replay.calibration.parameters import Parameters
from replay.graph.graph import KernelGraph
from replay.what_ifs.what_if import GROUPS, Recipe, WhatIf, split_steps, split_words, unknown, written

_T = TypeVar("_T")
_GROUP = "seqpoint.what_ifs"
#: Modules of this package with what-ifs of the project, in the order in which they are listed.
_MODULES = (
    "scale",
    "swap",
    "fuse",
    "dtype",
    "device",
    "modified",
    "power",
    "overlap",
    "dma",
    "c3",
    "t3",
    "ficco",
    "fuse_collectives",
    "world_size",
    "launch_overhead",
    "dispatch",
    "stream",
)


@dataclass(frozen=True)
class Registry:
    """What-ifs by name, and why some are not among them.

    Parameters
    ----------
    recipes : mapping of str to Recipe
    problems : mapping of str to str
        By the name of an entry point and its package: why it is left out.
    """

    recipes: Mapping[str, Recipe]
    problems: Mapping[str, str]


def what_ifs() -> Mapping[str, Recipe]:
    """Return every what-if by name, by group."""
    return registry().recipes


@cache
def registry() -> Registry:
    """Return every what-if, those of other packages included, and what is wrong with those that are left out."""
    own = [recipe for name in _MODULES for recipe in import_module(f"replay.what_ifs.{name}").RECIPES]
    found = {recipe.name: recipe for recipe in sorted(own, key=lambda one: GROUPS.index(one.group))}
    problems: dict[str, str] = {}
    for point in sorted(entry_points(group=_GROUP), key=lambda p: (p.name, _package(p), p.value)):
        place = f"{point.name} of {_package(point)}"
        try:
            recipe = _loaded(point)
        except Exception as error:  # noqa: BLE001 - a package of somebody else may fail in any way
            problems[place] = str(error) if isinstance(error, SeqPointError) else f"{type(error).__name__}: {error}"
            continue
        if (taken := found.get(recipe.name)) is not None:
            problems[place] = f"the name {recipe.name} is taken by {taken.package or 'seqpoint itself'}"
        else:
            found[recipe.name] = recipe
    return Registry(MappingProxyType(found), MappingProxyType(problems))


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown package"


def _loaded(point: EntryPoint) -> Recipe:
    recipe = point.load()
    if not isinstance(recipe, Recipe):
        raise InvalidInputError(f"{point.value} is a {type(recipe).__name__}, not a replay.what_ifs.Recipe")
    if recipe.name != point.name:
        raise InvalidInputError(f"{point.value} is called {recipe.name}, its entry point {point.name}")
    about = recipe.documentation
    return replace(recipe, make=_guarded(recipe.make, _package(point)), package=_package(point), about=about)


def _guarded(make: Callable[..., WhatIf], package: str) -> Callable[..., WhatIf]:
    """Return `make` with an error that names the package for all that it and its what-ifs do wrong."""

    def made(*values: object) -> WhatIf:
        what_if = _called(package, WhatIf, lambda: make(*values))

        def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
            return _called(package, KernelGraph, lambda: what_if(graph, parameters))

        return replace(what_if, transform=transform, parts=())

    return made


def _called(package: str, type_: type[_T], function: Callable[[], object]) -> _T:
    try:
        result = function()
    except SeqPointError:
        raise
    except Exception as error:
        raise InvalidInputError(f"failed in package {package}: {type(error).__name__}: {error}") from error
    if not isinstance(result, type_):
        raise InvalidInputError(f"failed in package {package}: gave a {type(result).__name__}, not a {type_.__name__}")
    return result


#: Steps of a composition, and characters of its text; more is a mistake.
_STEPS, _LONGEST = 64, 20_000


def compose(*parts: WhatIf) -> WhatIf:
    """Return the what-if that applies `parts` from left to right; composing nothing changes nothing.

    Examples
    --------
    >>> from replay.what_ifs import dma_collectives, scale_links
    >>> compose(dma_collectives(), scale_links(2.0)).name
    'dma_collectives+scale_links:2'
    """

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        for part in parts:
            graph = part(graph, parameters)
        return graph

    steps = tuple(step for part in parts for step in part.steps)
    patterns = tuple(pattern for part in parts for pattern in part.patterns)
    return WhatIf("+".join(steps) or "nothing", transform, steps, patterns)


def parse_what_if(text: str) -> WhatIf:
    r"""Return the what-if written as ``NAME:ARGUMENT``, several joined by ``+``; ``nothing`` changes nothing.

    In an argument, a ``:``, ``+`` or ``\`` has a ``\`` before it.

    Raises
    ------
    NotFoundError
        There is no such what-if, or no such device; the nearest names are offered.
    InvalidInputError
        Its arguments are missing, too many or wrong.
    """
    if len(text) > _LONGEST:
        raise InvalidInputError(f"a what-if of {len(text)} characters; {_LONGEST} at most")
    if text.startswith("@"):
        raise InvalidInputError(
            f"{text[:80]!r}: a plan has several what-ifs; `seqpoint project` and `report` read plans"
        )
    steps = split_steps(text)
    if len(steps) > _STEPS:
        raise InvalidInputError(f"a what-if of {len(steps)} steps; {_STEPS} at most")
    parts = [_parse_one(step) for step in steps]
    return parts[0] if len(parts) == 1 else compose(*parts)


def _parse_one(step: str) -> WhatIf:
    if step == "nothing":
        return compose()
    name, *texts = split_words(step)
    return made(recipe_named(name), texts)


def made(recipe: Recipe, texts: list[str]) -> WhatIf:
    """Return the what-if of a recipe with these texts as its first arguments.

    Raises
    ------
    InvalidInputError, NotFoundError
        As `Recipe.made`.
    """
    what_if = recipe.made(texts)
    # What another package calls it may not be what is read back as the same.
    return replace(what_if, name=written(recipe.name, *texts)) if recipe.package else what_if


def recipe_named(name: str) -> Recipe:
    """Return the recipe of a what-if.

    Raises
    ------
    NotFoundError
        There is none; the nearest names are offered, or why a package that has one of the name could not be loaded.
    """
    known = registry()
    if name in known.recipes:
        return known.recipes[name]
    for place, why in known.problems.items():
        if place.startswith(f"{name} of "):
            raise NotFoundError(f"the what-if {place} could not be loaded: {why}")
    raise unknown("no what-if is called", name, known.recipes)
